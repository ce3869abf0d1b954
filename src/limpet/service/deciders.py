"""Who may decide a request: its addressees, where people are known; services and those who started the run may not.

Over MCP, a model types what its person is said to want. So only questions are answered there by an argument; anything
else, also yes or no, needs a form that the person filled in, or the right of a service to approve.
"""

from collections.abc import Mapping, Sequence

from limpet.engine.execution.principal import Principal
from limpet.engine.execution.views import Request
from limpet.errors import NeedsPerson, NotAllowed
from limpet.events import bodies as b
from limpet.service.answers import is_question
from limpet.stores import Store

__all__ = ["ANYONE", "Deciders"]

ANYONE = "anyone"
NO_PERSON = "only people decide approvals"
OWN_RUN = "the person who started a run does not approve its steps"
SERVICE_FIX = "Let a person decide, or give the service's token the right approve-by-agent."
STARTER_FIX = "Let another person decide, or set Approvals(self_approval=True) in the agent."


class Deciders:
    """The people of an app, and their rights to decide requests."""

    def __init__(self, store: Store, people: Mapping[str, Sequence[str]] | None) -> None:
        self._store = store
        self._people = people

    def checks(self, who: Principal) -> bool:
        """Return whether rights are checked: groups are configured, or the caller has authenticated."""
        return self._people is not None or bool(who.roles)

    def groups_of(self, person: str) -> list[str]:
        """Return the groups that a person belongs to, as the app knows them."""
        return [group for group, members in (self._people or {}).items() if person in members]

    def names_of(self, who: Principal) -> set[str]:
        """Return the names under which a sender is asked. Groups that the sender brings replace the app's own."""
        return {ANYONE, who.name, *(who.groups or self.groups_of(who.name))}

    def check_asked(self, request: Request, who: Principal) -> None:
        """Raise NotAllowed unless the sender is one of those whom a request is for."""
        if self.names_of(who).isdisjoint(request.to):
            raise NotAllowed(request=request.id, by=who.name, to=request.to)

    async def check(self, request: Request, who: Principal) -> None:
        """Raise NotAllowed unless the sender may decide a request."""
        if not who.name:
            raise NotAllowed(request=request.id, by="", to=request.to)
        if self.checks(who):
            await self._check_right(request, who)
        is_by_model = who.door == "mcp" and not who.is_confirmed and "approve-by-agent" not in who.rights
        if is_by_model and not is_question(request.kind, request.schema):
            raise NeedsPerson(request=request.id, by=who.name)

    async def _check_right(self, request: Request, who: Principal) -> None:
        self.check_asked(request, who)
        if who.kind != "person" and request.kind != "ask" and "approve-by-agent" not in who.rights:
            raise NotAllowed(request=request.id, by=who.name, to=request.to, reason=NO_PERSON, fix=SERVICE_FIX)
        is_guarded = request.kind == "approval" and not request.self_approval
        if is_guarded and await self._starter(request.run) == who.name:
            raise NotAllowed(request=request.id, by=who.name, to=request.to, reason=OWN_RUN, fix=STARTER_FIX)

    async def _starter(self, run: str) -> str:
        """Return who started a run; for one that another run called, who started that."""
        while True:
            row = await self._store.get(run)
            [event] = await self._store.read(run, after=row.origin_at or 0, limit=1)
            created = self._store.decode(event)
            assert isinstance(created, b.Attributed)
            if created.via != "run":
                return created.by
            run = created.by
