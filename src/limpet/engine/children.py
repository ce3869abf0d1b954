"""Other agents: a run is created in the append that says so, and tells its parent in the append that ends it."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from limpet.clock import Duration, microseconds
from limpet.engine.agents import Agent, Budget, check_agent
from limpet.engine.execution import Execution
from limpet.engine.history import Record
from limpet.engine.waits import Waits
from limpet.errors import AgentFailed, ContractError, DeadlineExceeded, InputConflict, InvalidValue
from limpet.events import Limits, Lineage, Payload, StatePatch, digest
from limpet.events import bodies as b
from limpet.ids import check_id
from limpet.policy import budget as budgets
from limpet.policy import deadline as deadlines
from limpet.stores import Create, Taken

__all__ = ["Children", "creation"]


def creation(
    agent: Agent[Any, Any],
    packed: Payload,
    *,
    deadline: int | None,
    limits: Limits | None,
    more: dict[str, Any],
) -> b.RunCreated:
    """How a run of an agent begins; `more` are user, session and the like."""
    exclusive = None
    if agent.rules.exclusive is not None:
        owner = more.get(agent.rules.exclusive)
        if owner is None:
            reason = f"it is exclusive by {agent.rules.exclusive}: start it with {agent.rules.exclusive}=…"
            raise ContractError(agent=agent.name, what="start", reason=reason)
        exclusive = f"{agent.rules.exclusive}:{owner}"
    return b.RunCreated(
        agent=agent.name,
        agent_version=agent.version,
        input=packed,
        initial=None if limits is None else StatePatch(budget=limits),
        steps=agent.rules.steps,
        deadline=deadline,
        exclusive=exclusive,
        **more,
    )


class How(NamedTuple):
    """How another agent is set to work."""

    mode: Literal["call", "start"]
    id: str | None = None
    budget: Budget | None = None
    within: int | None = None
    """Microseconds that it may take."""


class Children:
    """The runs that one execution calls and starts."""

    def __init__(self, execution: Execution, waits: Waits) -> None:
        self._x = execution
        self._waits = waits
        self._lent: dict[str, Limits] = {}
        """What went along with calls that may not be in the log yet."""

    def find(self, agent: Agent[Any, Any], input: object, how: str) -> tuple[str, Any, Record | None]:
        """The call that the code makes now: its identity, its input as JSON, its record."""
        check_agent(agent)
        plain = agent.dump_input(input)
        name = self._x.take(f"{how}:{agent.name}")
        return name, plain, self._x.find(name, b.AgentCalled, digest([agent.name, plain]))

    async def call(
        self,
        agent: Agent[Any, Any],
        found: tuple[str, Any, Record | None],
        wanted: Budget | None,
        within: Duration | None,
    ) -> Any:
        """The other agent's result."""
        x, (name, plain, record) = self._x, found
        await x.admit()
        if record is None:
            limit = None if within is None else microseconds(within)
            await self._create(agent, name, plain, How("call", budget=wanted, within=limit))
            record = x.history.records[name]
        ended = await self._waits.child(record)
        assert ended.event is not None
        returned = x.history.commands[ended.event]
        assert isinstance(returned, b.AgentReturned)
        if returned.outcome == "completed":
            try:
                return agent.output_shape.load(await x.unpack(returned.output))
            except InvalidValue as error:
                raise x.blame(ContractError(agent=agent.name, what="result", reason=error.reason), name) from error
        failure = returned.failure
        failed = AgentFailed(
            run=returned.run,
            agent=agent.name,
            outcome=returned.outcome,
            error_type=failure.type if failure else "",
            message=failure.message if failure else "",
        )
        raise x.blame(failed, name)

    async def start(self, agent: Agent[Any, Any], found: tuple[str, Any, Record | None], id: str | None) -> str:
        """The id of a run that goes on alone."""
        x, (name, plain, record) = self._x, found
        await x.admit()
        if record is None:
            await self._create(agent, name, plain, How("start", id=None if id is None else check_id(id)))
            record = x.history.records[name]
            await x.finish(x.turnstile.issue())
        else:
            assert record.end is not None
            await x.enter(record.end)
        assert isinstance(record.opened, b.AgentCalled)
        return record.opened.run

    async def _create(self, agent: Agent[Any, Any], name: str, plain: Any, how: How) -> None:
        """One append: it was called, and its run exists."""
        x, mode = self._x, how.mode
        await x.check_new(name)
        now = x.kit.now()
        if isinstance(deadlines.decide(now, x.deadline), deadlines.Passed):
            assert x.deadline is not None
            raise x.blame(DeadlineExceeded(deadline=x.deadline), name)
        x.children += 1
        child = how.id or f"{x.run}.{agent.name}-{x.children}"
        packed, blobs = x.kit.store.pack(plain)
        limits = self._slice(agent, how.budget)
        own = [now + limit for limit in (how.within, agent.rules.deadline) if limit is not None]
        deadline = deadlines.wake(x.deadline if mode == "call" else None, *own)
        created = creation(
            agent,
            packed,
            deadline=deadline,
            limits=limits,
            more={"parent": Lineage(run=x.run, name=name, mode=mode), "user": x.user, "session": x.session},
        )
        called = b.AgentCalled(
            name=name,
            run=child,
            agent=agent.name,
            mode=mode,
            asked=digest([agent.name, plain]),
            agent_version=agent.version,
            budget=limits if mode == "call" and x.journal.fold.working.budget is not None else None,
            deadline=deadline,
        )
        if called.budget is not None:
            self._lent[child] = called.budget
        try:
            await self._append(called, created, child, blobs)
        finally:
            self._lent.pop(child, None)

    async def _append(self, called: b.AgentCalled, created: b.RunCreated, child: str, blobs: Sequence[Any]) -> None:
        x = self._x
        leg = Create(run=child, bodies=(created,), actor=x.kit.worker)
        with x.work():
            taken = await x.insist(lambda: x.journal.append_together(called, legs=[leg], blobs=blobs))
            if taken is not None:
                self._check_same(taken, created, child)
                await x.append(called)

    def _check_same(self, taken: Taken, created: b.RunCreated, child: str) -> None:
        """A run of this id exists: of a start with an id of its own, perhaps the very one that was meant."""
        first = taken.first
        if not isinstance(first, b.RunCreated) or (first.agent, first.input) != (created.agent, created.input):
            raise InputConflict(run=child, agent=taken.row.agent)

    def _slice(self, agent: Agent[Any, Any], wanted: Budget | None) -> Limits | None:
        """What the child may use: what was asked for or what it says itself, never more than is left."""
        fold = self._x.journal.fold
        limits = fold.working.budget
        share = wanted.limits if wanted is not None else agent.rules.budget
        if limits is None:
            return share
        lent = [child.budget for child in fold.children if child.budget is not None]
        lent += [budget for run, budget in self._lent.items() if all(run != child.run for child in fold.children)]
        return budgets.slice_of(budgets.remaining(limits, fold.spent, lent), share)
