"""The inbox: requests to people, and their decisions.

Each decision is validated before it is written. The first one is final.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from limpet.clock import Duration, microseconds
from limpet.engine.execution.principal import Principal
from limpet.engine.execution.views import Request
from limpet.errors import AlreadyAnswered, InvalidArgument, NeedsPerson, NotAllowed, NotFound
from limpet.events import Limits
from limpet.events import bodies as b
from limpet.journal import load
from limpet.secret import hidden
from limpet.service.answers import check_approvable, check_args, check_rejectable, validate_answer
from limpet.service.deciders import Deciders
from limpet.service.page import Page
from limpet.service.resolve import open_request, run_of
from limpet.service.settings import Settings
from limpet.service.views import request_of
from limpet.stores import RequestFilter, RequestRow
from limpet.stores.api.base import LARGEST_PAGE
from limpet.view import View

__all__ = ["Decided", "GrantInfo", "Inbox"]


class Decided(View, frozen=True, kw_only=True):
    """A decision of a request."""

    request: str
    """Request id."""
    run: str
    """Run id."""
    decision: Literal["answered", "approved", "rejected"]
    """The decision."""
    by: str
    """Who decided."""


class GrantInfo(View, frozen=True, kw_only=True):
    """A standing approval of a run."""

    grant: str
    """Id of the standing approval."""
    by: str
    """Who approved."""
    tool: str | None
    """Tool that it allows."""
    risk: str | None
    """Risk that it allows."""


class Inbox:
    """The open requests of an app, and the commands that decide them."""

    def __init__(self, settings: Settings, send: Callable[..., Awaitable[None]]) -> None:
        self._settings = settings
        self._store = settings.store
        self._send = send
        self._deciders = Deciders(settings.store, settings.people)

    async def inbox(
        self,
        names: Sequence[str | None],
        *,
        run: str | None,
        risk: str | None,
        older_than: Duration | None,
        limit: int,
        cursor: str | None,
    ) -> Page[Request]:
        """Return the open requests to these people and groups, the oldest first; None stands for all of them."""
        until = None if older_than is None else await self._store.now() - microseconds(older_than)
        where = RequestFilter(run=run, risk=risk, opened_until=until, after=_after(cursor))
        found: dict[str, RequestRow] = {}
        for name in names:
            rows = await self._store.requests(replace(where, to=name), limit=min(limit, LARGEST_PAGE) + 1)
            found.update((row.id, row) for row in rows)
        rows = sorted(found.values(), key=lambda row: (row.opened, row.id))
        requests = [(row, await request_of(self._store, row)) for row in rows[:limit]]
        more = [(row, None) for row in rows[limit:]]
        page = Page.cut([*requests, *more], limit, lambda each: f"{each[0].opened}.{each[0].id}")
        return Page((request for _, request in page if request is not None), page.next)

    def addressed(self, to: str | None, only_for: Principal | None) -> Sequence[str | None]:
        """Return the names to list requests of: a group, or a person and their groups; None stands for all names.

        With `only_for`, only those under which this person is asked.
        """
        wanted = None if to is None else dict.fromkeys([to, *self._deciders.groups_of(to)])
        if only_for is None:
            return [None] if wanted is None else [*wanted]
        theirs = sorted(self._deciders.names_of(only_for))
        return theirs if wanted is None else [each for each in wanted if each in theirs]

    async def may_decide(self, request: Request, who: Principal) -> bool:
        """Return whether a caller may decide a request."""
        try:
            await self._deciders.check(request, who)
        except (NotAllowed, NeedsPerson):
            return False
        return True

    def check_asked(self, request: Request, who: Principal) -> None:
        """Raise NotAllowed unless a person is asked."""
        self._deciders.check_asked(request, who)

    async def answer(self, request: str | Request, answer: object, who: Principal, id: str) -> Decided:
        """Answer a request."""
        found = await self._decidable(request, who, id)
        plain = validate_answer(found, answer)
        packed, blobs = self._store.pack(plain)
        bodies: list[b.Command] = [self._decision(found, "answered", who, id, answer=packed)]
        if found.kind == "budget" and isinstance(plain, dict):
            limits = msgspec.convert(plain, Limits)
            bodies.append(b.BudgetExtended(command=f"{id}:budget", limits=limits, **who.sender))
        await self._send(found.run, *bodies, blobs=blobs, judged=self._addressees(found, who))
        return Decided(request=found.id, run=found.run, decision="answered", by=who.name)

    async def approve(
        self, request: str | Request, who: Principal, id: str, args: Mapping[str, Any] | None, *, standing: bool
    ) -> Decided:
        """Approve a request: once, with other arguments, or for all further calls of this tool in this run."""
        found = await self._decidable(request, who, id)
        check_approvable(found, standing=standing)
        edited = None if args is None else hidden({**found.args, **args})
        if edited is not None:
            check_args(found, edited)
        packed, blobs = (None, ()) if edited is None else self._store.pack(edited)
        bodies: list[b.Command] = [self._decision(found, "approved", who, id, args=packed)]
        if standing:
            name = f"{id}:grant"
            bodies.append(b.GrantGiven(command=name, grant=name, tool=found.tool, request=found.id, **who.sender))
        await self._send(found.run, *bodies, blobs=blobs, judged=self._addressees(found, who))
        return Decided(request=found.id, run=found.run, decision="approved", by=who.name)

    async def reject(self, request: str | Request, who: Principal, id: str, because: str) -> Decided:
        """Reject a request, with a reason."""
        found = await self._decidable(request, who, id)
        check_rejectable(found)
        decision = self._decision(found, "rejected", who, id, because=self._store.redaction.text(because))
        await self._send(found.run, decision, judged=self._addressees(found, who))
        return Decided(request=found.id, run=found.run, decision="rejected", by=who.name)

    async def grants(self, run: str) -> list[GrantInfo]:
        """Return the standing approvals of a run."""
        await run_of(self._store, run)
        standing = [grant for grant in (await load(self._store, run)).grants if grant.standing]
        return [GrantInfo(grant=each.grant, by=each.by, tool=each.tool, risk=each.risk) for each in standing]

    async def grant(self, run: str, who: Principal, id: str, tool: str | None, risk: str | None) -> GrantInfo:
        """Give a standing approval of a tool or a risk."""
        await run_of(self._store, run)
        if bool(tool) == bool(risk):
            raise InvalidArgument(path="tool", reason="pass either a tool or a risk")
        given = GrantInfo(grant=f"{id}:grant", by=who.name, tool=tool or None, risk=risk or None)
        body = b.GrantGiven(command=id, grant=given.grant, tool=given.tool, risk=given.risk, **who.sender)
        await self._send(run, body)
        return given

    async def revoke(self, run: str, grant: str, who: Principal, id: str, because: str) -> None:
        """Revoke a standing approval: the next call of its tool asks again."""
        if grant not in {each.grant for each in await self.grants(run)}:
            if await self._store.has_command(run, id):
                return  # the command is repeated
            raise NotFound(what="grant", id=grant)
        because = self._store.redaction.text(because)
        await self._send(run, b.GrantRevoked(command=id, grant=grant, because=because, **who.sender))

    async def _decidable(self, request: str | Request, who: Principal, id: str) -> Request:
        """Return an open request, if this person may decide it. Raises NotAllowed.

        A request that this very command has decided is returned, too: the command is repeated.
        """
        found = await self._find(request if isinstance(request, str) else request.id, id)
        await self._deciders.check(found, who)
        return found

    async def _find(self, request: str, id: str) -> Request:
        try:
            return await open_request(self._store, request)
        except AlreadyAnswered:
            [row] = await self._store.requests(RequestFilter(status=None, id=request))
            if not await self._store.has_command(row.run, id):
                raise
            return await request_of(self._store, row)

    def _addressees(self, request: Request, who: Principal) -> tuple[str, ...] | None:
        """Return the addressees that the check used, if there was one. The store refuses others."""
        return request.to if self._deciders.checks(who) else None

    def _decision(self, request: Request, decision: Any, who: Principal, id: str, **more: Any) -> b.RequestAnswered:
        return b.RequestAnswered(
            command=id, request=request.id, decision=decision, digest=request.digest, **who.sender, **more
        )


def _after(cursor: str | None) -> tuple[int, str] | None:
    """Return the request that a cursor stands for."""
    if cursor is None:
        return None
    opened, dot, id = cursor.partition(".")
    if not opened.isdecimal() or not dot:
        raise InvalidArgument(path="cursor", reason=f"{cursor!r} is not a cursor; pass `next` of the page before")
    return int(opened), id
