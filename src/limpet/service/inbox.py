"""The inbox: requests to people, and their decisions.

Each decision is validated before it is written. The first one is final.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from limpet.clock import Duration, microseconds
from limpet.engine.execution.views import Request
from limpet.errors import NotAllowed, NotFound
from limpet.events import Limits
from limpet.events import bodies as b
from limpet.journal import load
from limpet.secret import hidden
from limpet.service.answers import check_approvable, check_args, check_rejectable, validate_answer
from limpet.service.resolve import open_request, run_of
from limpet.service.settings import Settings
from limpet.service.views import request_of
from limpet.state.run import Grant
from limpet.stores import RequestFilter, RequestRow

__all__ = ["Inbox"]

ANYONE = "anyone"


class Inbox:
    """The open requests of an app, and the commands that decide them."""

    def __init__(self, settings: Settings, send: Callable[..., Awaitable[None]]) -> None:
        self._settings = settings
        self._store = settings.store
        self._send = send

    async def inbox(
        self, *, to: str | None, run: str | None, risk: str | None, older_than: Duration | None
    ) -> list[Request]:
        """Return the open requests, the oldest first. `to` is a person, including their groups, or a group."""
        names = [None] if to is None else [to, *self._groups(to)]
        found: dict[str, RequestRow] = {}
        for name in dict.fromkeys(names):
            rows = await self._store.requests(RequestFilter(to=name, run=run, risk=risk))
            found.update((row.id, row) for row in rows)
        latest = None if older_than is None else await self._store.now() - microseconds(older_than)
        rows = sorted(found.values(), key=lambda row: (row.opened, row.id))
        return [await request_of(self._store, row) for row in rows if latest is None or row.opened <= latest]

    async def answer(self, request: str | Request, answer: object, by: str) -> None:
        """Answer a request."""
        found = await self._decidable(request, by)
        plain = validate_answer(found, answer)
        packed, blobs = self._store.pack(plain)
        bodies: list[b.Command] = [self._decision(found, "answered", by, answer=packed)]
        if found.kind == "budget" and isinstance(plain, dict):
            limits = msgspec.convert(plain, Limits)
            bodies.append(b.BudgetExtended(command=self._settings.ids.new(), by=by, limits=limits))
        await self._send(found.run, *bodies, blobs=blobs, judged=self._addressees(found))

    async def approve(self, request: str | Request, by: str, args: Mapping[str, Any] | None, *, standing: bool) -> None:
        """Approve a request: once, with other arguments, or for all further calls of this tool in this run."""
        found = await self._decidable(request, by)
        check_approvable(found, standing=standing)
        edited = None if args is None else hidden({**found.args, **args})
        if edited is not None:
            check_args(found, edited)
        packed, blobs = (None, ()) if edited is None else self._store.pack(edited)
        bodies: list[b.Command] = [self._decision(found, "approved", by, args=packed)]
        if standing:
            new = self._settings.ids.new
            bodies.append(b.GrantGiven(command=new(), grant=new(), by=by, tool=found.tool, request=found.id))
        await self._send(found.run, *bodies, blobs=blobs, judged=self._addressees(found))

    async def reject(self, request: str | Request, by: str, because: str) -> None:
        """Reject a request, with a reason."""
        found = await self._decidable(request, by)
        check_rejectable(found)
        decision = self._decision(found, "rejected", by, because=self._store.redaction.text(because))
        await self._send(found.run, decision, judged=self._addressees(found))

    async def grants(self, run: str) -> list[Grant]:
        """Return the standing approvals of a run."""
        await run_of(self._store, run)
        return [grant for grant in (await load(self._store, run)).grants if grant.standing]

    async def revoke(self, run: str, grant: str, by: str, because: str) -> None:
        """Revoke a standing approval: the next call of its tool asks again."""
        if grant not in {each.grant for each in await self.grants(run)}:
            raise NotFound(what="grant", id=grant)
        because = self._store.redaction.text(because)
        await self._send(run, b.GrantRevoked(command=self._settings.ids.new(), grant=grant, by=by, because=because))

    async def _decidable(self, request: str | Request, by: str) -> Request:
        """Return an open request, if this person may decide it. Raises NotAllowed."""
        found = await open_request(self._store, request if isinstance(request, str) else request.id)
        is_asked = self._settings.people is None or {ANYONE, by, *self._groups(by)} & set(found.to)
        if not by or not is_asked:
            raise NotAllowed(request=found.id, by=by, to=found.to)
        return found

    def _addressees(self, request: Request) -> tuple[str, ...] | None:
        """Return the addressees that the check used, if groups are configured. The store rejects the command if they
        changed.
        """
        return None if self._settings.people is None else request.to

    def _groups(self, person: str) -> Sequence[str]:
        return [group for group, members in (self._settings.people or {}).items() if person in members]

    def _decision(self, request: Request, decision: Any, by: str, **more: Any) -> b.RequestAnswered:
        return b.RequestAnswered(
            command=self._settings.ids.new(),
            request=request.id,
            decision=decision,
            by=by,
            digest=request.digest,
            via=self._settings.interface,
            **more,
        )
