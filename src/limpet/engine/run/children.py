"""Runs of other agents. The append that records a call creates the run; the append that ends it notifies the caller.

Input and result are checked before they are sent and again on arrival. A called run gets the facts and artifacts that
were named, a part of the budget, the deadline, the session and the user, and nothing else.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from limpet.clock import earliest
from limpet.engine.approvals.refusals import NewStep, recall_late, refuse_late
from limpet.engine.definitions.agents import Agent, Budget, check_agent
from limpet.engine.definitions.contracts import find_agent
from limpet.engine.definitions.types import codec_of
from limpet.engine.definitions.upgrades import NOTHING
from limpet.engine.execution.execution import Execution
from limpet.engine.execution.principal import sent_by_run
from limpet.engine.execution.spending import lent_budgets, spent_before
from limpet.engine.replay.history import Record
from limpet.engine.run.conversation import conversation_of
from limpet.engine.waits.waits import Waits
from limpet.errors import (
    AgentFailed,
    ContractError,
    IdConflict,
    LimpetError,
    NotFound,
    NotRecorded,
    WrongState,
)
from limpet.events import Failure, Limits, Lineage, Payload, StatePatch, digest
from limpet.events import bodies as b
from limpet.ids import LONGEST_ID, check_id
from limpet.journal import OnPlaced
from limpet.policy import budget as budgets
from limpet.stores import Create, Taken

__all__ = ["CallOptions", "Children", "creation"]

_JSON = codec_of(Any)


def creation(
    agent: Agent[Any, Any],
    packed: Payload,
    *,
    deadline: int | None,
    initial: StatePatch | None,
    more: dict[str, Any],
) -> b.RunCreated:
    """Return the first event of a new run. `more` has user, session and the like."""
    exclusive = None
    if agent.rules.exclusive is not None:
        owner = more.get(agent.rules.exclusive)
        if owner is None:
            reason = f"runs are exclusive per {agent.rules.exclusive}; pass {agent.rules.exclusive}="
            raise ContractError(agent=agent.name, what="start", reason=reason)
        exclusive = f"{agent.rules.exclusive}:{owner}"
        lineage = more.get("parent")
        if isinstance(lineage, Lineage) and exclusive in lineage.slots:
            exclusive = None  # a run that waits for this one holds the slot
    return b.RunCreated(
        agent=agent.name,
        agent_version=agent.version,
        input=packed.under(agent.input_codec.versions),
        initial=initial,
        steps=agent.rules.steps,
        deadline=deadline,
        exclusive=exclusive,
        contract=agent.contract_hash,
        **more,
    )


class CallOptions(NamedTuple):
    """How to run another agent, and what to pass to it."""

    mode: Literal["call", "start", "handoff"]
    id: str | None = None
    budget: Budget | None = None
    time_limit: int | None = None
    """Time limit in microseconds."""
    facts: Sequence[str] = ()
    artifacts: Sequence[str] = ()


class OutgoingCall(NamedTuple):
    """A call of another agent that the code makes now."""

    agent: Agent[Any, Any] | str
    name: str
    plain: Any
    record: Record | None

    @property
    def digest(self) -> str:
        """Digest of the call, which must be the same on replay."""
        return _call_digest(self.agent, self.plain)


def _call_digest(agent: Agent[Any, Any] | str, plain: Any) -> str:
    return digest([agent if isinstance(agent, str) else agent.name, plain])


class Children:
    """The runs that one execution calls, starts and hands off to."""

    def __init__(self, execution: Execution, waits: Waits) -> None:
        self._x = execution
        self._waits = waits

    def find(self, agent: Agent[Any, Any] | str, input: object, how: str) -> OutgoingCall:
        """Return the call that the code makes now: its name in the log, its input as JSON, and its record."""
        if not isinstance(agent, str):
            check_agent(agent)
        plain = _JSON.dump(input) if isinstance(agent, str) else agent.dump_input(input)
        plain = self._x.kit.store.redaction.value(plain)
        name = self._x.take_name(f"{how}:{agent if isinstance(agent, str) else agent.name}")
        versions = NOTHING if isinstance(agent, str) else agent.input_codec.versions
        record = self._x.find(name, b.AgentCalled, _call_digest(agent, plain), versions)
        if how == "handoff":
            self._x.handed_to = agent if isinstance(agent, str) else agent.name
        return OutgoingCall(agent, name, plain, record)

    async def call(self, sent: OutgoingCall, how: CallOptions) -> Any:
        """Run the other agent, and return its result."""
        with self._x.noting_cancellation(sent.name):
            return await self._call(sent, how)

    async def _call(self, sent: OutgoingCall, how: CallOptions) -> Any:
        x, name, record = self._x, sent.name, sent.record
        await x.gate.wait_until_open()
        await recall_late(x, name)
        is_replayed = record is not None and record.settled is not None
        if record is None or (record.ignored_return and not await self._resume_again(record)):
            try:
                await self._create(await self._resolve(sent.agent), sent, how)
            except LimpetError:
                x.handed_to = None  # nothing was handed off
                raise
        record = x.history.records[name]
        try:
            ended = await self._waits.child(record)
        except asyncio.CancelledError:
            self._withdraw_call(record)
            raise
        assert ended.event is not None
        returned = x.history.commands[ended.event]
        assert isinstance(returned, b.AgentReturned)
        if returned.outcome != "completed":
            raise x.attribute_error(self._error_of(record, returned), name)
        output = await x.recorder.unpack(returned.output)
        if isinstance(sent.agent, str):
            await self._check_result(sent.agent, record, returned, output, is_replayed=is_replayed)
            return output
        try:
            return sent.agent.load_output(output, returned.output.versions if returned.output is not None else {})
        except ContractError as error:
            raise x.attribute_error(error, name) from error

    async def _check_result(
        self, agent: str, record: Record, returned: b.AgentReturned, output: Any, *, is_replayed: bool
    ) -> None:
        """Check the result of an agent called by name, if its contract has changed since the call.

        It was already checked where it ran. A mismatch is recorded, because the newest contract may differ on replay.
        """
        x, called, refusal = self._x, record.opened, f"{record.name}/result#1"
        assert isinstance(called, b.AgentCalled)
        known = x.find(refusal, b.ValueRecorded)
        if known is not None:
            faults = (await x.recorder.recall(known, b.ValueRecorded)).value.value()
        elif returned.contract == called.contract or is_replayed:
            return
        else:
            faults = list((await self._resolve(agent)).output_codec.faults(output, "result"))
            if not faults:
                return
            await x.recorder.record(refusal, faults)
        reason = "; ".join(faults[:5])[:500]
        raise x.attribute_error(
            ContractError(agent=agent, what="result", reason=reason, faults=tuple(faults)), record.name
        )

    def _withdraw_opened(self, name: str, is_written: bool) -> None:
        """Withdraw a call that the code has cancelled while it was being recorded, if it is in the log."""
        if is_written:
            self._waits.note_withdrawn(name)
            self._withdraw_call(self._x.history.records[name])

    def _withdraw_call(self, record: Record) -> None:
        """Cancel a called run because the code no longer waits for it. On replay, the command is sent again."""
        x, called = self._x, record.opened
        assert isinstance(called, b.AgentCalled)
        if x.gate.is_closed or x.gate.stopped is not None:
            return
        reason = f"{x.run} does not wait for it any more"
        cancel = b.CancelRequested(command=f"{x.run}:withdrawn-{record.seq}", reason=reason, **sent_by_run(x.run))

        async def tell() -> None:
            try:
                await x.recorder.flush()  # If this process dies now, the same call must win the race after the resume.
                await x.recorder.ask_store(lambda: x.kit.store.send_commands(called.run, cancel, actor=x.kit.worker))
            except (WrongState, NotFound):
                pass  # It has ended, or was pruned.
            except LimpetError as error:
                x.gate.stop(error)

        x.gate.keep(tell)

    async def _resume_again(self, record: Record) -> bool:
        """Await a called run again after a resume undid its failure. Returns False if it cannot be resumed.

        If the code cancels the call meanwhile, it is withdrawn.
        """
        if self._waits.returned(record) is not None:
            return True
        x, is_added = self._x, False

        async def write() -> bool:
            nonlocal is_added
            if not is_added:
                if not await self._resume_child(record):
                    return False
                # From here the run can be cancelled: the fold counts it as awaited again.
                x.journal.add(record.opened)
                is_added = True
            await x.recorder.flush()
            return True

        return await x.recorder.write_to_end(write, partial(self._withdraw_opened, record.name))

    async def _resume_child(self, record: Record) -> bool:
        x, called = self._x, record.opened
        assert isinstance(called, b.AgentCalled)
        resume = b.ResumeRequested(command=f"{x.run}:resume-{record.ignored_return}", **sent_by_run(x.run))
        try:
            await x.recorder.ask_store(lambda: x.kit.store.send_commands(called.run, resume, actor=x.kit.worker))
        except NotFound:
            return False
        except WrongState:  # already resumed by another process, unless it has ended permanently
            row = await x.recorder.ask_store(lambda: x.kit.store.get(called.run))
            return row.status not in ("failed", "cancelled")
        return True

    async def start(self, sent: OutgoingCall, id: str | None) -> str:
        """Start a run without waiting for it, and return its id."""
        x, record = self._x, sent.record
        await x.gate.wait_until_open()
        await recall_late(x, sent.name)
        if record is None:
            agent = await self._resolve(sent.agent)
            ticket = x.return_order.defer_ticket()
            try:
                how = CallOptions("start", id=None if id is None else check_id(id))
                await self._create(agent, sent, how, on_placed=ticket.issue)
            except BaseException:
                ticket.cancel()
                raise
            await x.recorder.finish(ticket.take())
            called = x.history.records[sent.name].opened
            assert isinstance(called, b.AgentCalled)
        else:
            called = await x.recorder.recall(record, b.AgentCalled)
        return called.run

    async def _resolve(self, agent: Agent[Any, Any] | str) -> Agent[Any, Any]:
        """Return the agent; one that is called by name is described by its stored contract."""
        if not isinstance(agent, str):
            return agent
        return await self._x.recorder.ask_store(lambda: find_agent(self._x.kit.store, agent))

    def _error_of(self, record: Record, returned: b.AgentReturned) -> LimpetError:
        """Return the error for a called run that did not complete.

        "rejected" means that it refused its input and never started.
        """
        called, failure = record.opened, returned.failure or Failure(type="")
        assert isinstance(called, b.AgentCalled)
        if returned.outcome == "rejected":
            return ContractError(agent=called.agent, what="input", reason=failure.message, faults=_faults(failure))
        error = AgentFailed(
            run=returned.run,
            agent=called.agent,
            outcome=returned.outcome,
            error_type=failure.type,
            message=failure.message,
            step=returned.number,
            error_types=failure.mro,
            traceback=failure.traceback,
        )
        if failure.traceback:
            error.add_note(failure.traceback.rstrip())
        return error

    async def _create(
        self, agent: Agent[Any, Any], sent: OutgoingCall, how: CallOptions, on_placed: OnPlaced | None = None
    ) -> None:
        """Record the call and create its run in one append."""
        x, name, mode = self._x, sent.name, how.mode
        plain = agent.dump_json(sent.plain) if isinstance(sent.agent, str) else sent.plain
        await x.check_new(name)
        now = x.kit.now()
        if x.is_late:
            await refuse_late(x, NewStep(agent.name, name, 0, {}))
        packed, blobs = x.kit.store.pack(plain)
        limits = self._slice(agent, how)
        initial = self._initial(agent, how, limits)
        own = [now + limit for limit in (how.time_limit, agent.rules.deadline) if limit is not None]
        deadline = earliest(None if mode == "start" else x.deadline, *own)
        created = creation(
            agent,
            packed,
            deadline=deadline,
            initial=initial,
            more={
                **sent_by_run(x.run),
                "parent": Lineage(run=x.run, name=name, mode=mode, slots=() if mode == "start" else self._slots()),
                "user": x.user,
                "session": x.session,
                "artifacts": {each: x.memory.artifacts[each] for each in how.artifacts},
                "effects": x.effects,
                "live": x.memory.created.live,
                "conversation": self._conversation() if mode == "handoff" else None,
                "engine": x.kit.engine,
            },
        )
        if x.is_dry_run:
            await x.gate.halt(NotRecorded(tool=agent.name, effect=f"agent, {mode}"))
        x.children += how.id is None
        child = _chosen_id(x, how.id) if how.id is not None else _child_id(x.run, agent.name, x.children)
        called = b.AgentCalled(
            name=name,
            run=child,
            agent=agent.name,
            mode=mode,
            asked=sent.digest,
            agent_version=agent.version,
            contract=agent.contract_hash,
            budget=limits if x.journal.working.budget is not None else None,
            deadline=deadline,
            facts=tuple(how.facts),
            artifacts=tuple(how.artifacts),
            versions={} if isinstance(sent.agent, str) else dict(agent.input_codec.versions),
        )
        while not await self._append(called, created, blobs, is_own=how.id is not None, on_placed=on_placed):
            x.children += 1
            called = replace(called, run=_child_id(x.run, agent.name, x.children))

    def _conversation(self) -> str:
        """Return this run's conversation, which the other run continues."""
        return self._x.memory.created.conversation or conversation_of(self._x.run)

    def _slots(self) -> tuple[str, ...]:
        """Return the exclusive slots held by this run, or by runs that wait for it."""
        created = self._x.memory.created
        above = created.parent.slots if created.parent is not None else ()
        return above if created.exclusive is None else (*above, created.exclusive)

    def _initial(self, agent: Agent[Any, Any], how: CallOptions, limits: Limits | None) -> StatePatch | None:
        """Return the initial state of the other run: the named facts and artifacts, and its budget."""
        known = self._x.state.working.freeze()
        facts = {fact.key: fact for fact in known.known_facts}
        artifacts = {each.artifact_id: each for each in known.artifacts}
        for what, wanted, available in (("facts", how.facts, facts), ("artifacts", how.artifacts, artifacts)):
            if missing := [each for each in wanted if each not in available]:
                raise ContractError(agent=agent.name, what=what, reason=f"the calling run has no {', '.join(missing)}")
        if limits is None and not how.facts and not how.artifacts:
            return None
        source = f"run {self._x.run}"
        return StatePatch(
            budget=UNSET if limits is None else limits,
            facts=tuple(replace(facts[each], step=None, source=facts[each].source or source) for each in how.facts),
            artifacts=tuple(replace(artifacts[each], step=None) for each in how.artifacts),
        )

    async def _append(
        self,
        called: b.AgentCalled,
        created: b.RunCreated,
        blobs: Sequence[Any],
        *,
        is_own: bool,
        on_placed: OnPlaced | None,
    ) -> bool:
        """Record the call and create the run in one append. Returns False if another run already has the generated id.

        A pruned run may have had the id of this run, and have left behind a run that it started. A call that the code
        cancels meanwhile is withdrawn. A run that is started goes on.
        """
        x, child = self._x, called.run
        leg, added = Create(run=child, bodies=(created,), actor=x.kit.worker), list[b.AgentCalled]()

        async def write() -> bool:
            with x.gate.work():
                if not added:
                    taken = await x.recorder.write_until_stored(
                        lambda: x.journal.append_together(called, legs=[leg], blobs=blobs, on_placed=on_placed)
                    )
                    if taken is None or not is_own:
                        return taken is None
                    self._check_same(taken, created, child)
                    if on_placed is not None:
                        on_placed()
                    x.journal.add(called)
                    added.append(called)
                await x.recorder.flush()
            return True

        if called.mode == "start":
            return await write()
        return await x.recorder.write_to_end(
            lambda: self._with_loan(called, write), partial(self._withdraw_opened, called.name)
        )

    async def _with_loan(self, called: b.AgentCalled, write: Callable[[], Awaitable[bool]]) -> bool:
        """Count the budget as lent until the call is in the log, also if the write is repeated for a cancelled call."""
        lent = self._x.lent
        if called.budget is not None:
            lent[called.run] = called.budget
        try:
            is_written = await write()
        except LimpetError:
            lent.pop(called.run, None)
            raise
        lent.pop(called.run, None)
        return is_written

    def _check_same(self, taken: Taken, created: b.RunCreated, child: str) -> None:
        """Raise IdConflict unless the existing run with the id is the one that the code means."""
        first = taken.first
        same = isinstance(first, b.RunCreated) and _essence(first) == _essence(created)
        waited_for = created.parent is not None and created.parent.mode != "start"
        if not same or (waited_for and isinstance(first, b.RunCreated) and first.parent != created.parent):
            raise IdConflict(what="run", id=child, reason=f"by agent {taken.row.agent!r} with a different input")

    def _slice(self, agent: Agent[Any, Any], how: CallOptions) -> Limits | None:
        """Return the budget of the other run: the requested one or its own, but at most what is left.

        A started run gets only its own budget, if any. It counts as spent here, because nothing returns the rest.
        """
        limits = self._x.journal.working.budget
        share = how.budget.limits if how.budget is not None else agent.rules.budget
        if limits is None or (how.mode == "start" and share is None):
            return share
        lent = lent_budgets(self._x)
        spent = spent_before(self._x, self._x.history.last_number + 1, lent=False)
        return budgets.slice_of(budgets.remaining(limits, spent, lent), share)


def _chosen_id(x: Execution, id: str) -> str:
    """Return the id for a run with an id of its own. A fork without live effects prefixes it, to leave the id free."""
    if x.effects == "live":
        return id
    tried = f"{x.run}.{id}"
    return tried if len(tried) <= LONGEST_ID else f"{digest(x.run)[:32]}.{id}"[:LONGEST_ID]


def _child_id(run: str, agent: str, number: int) -> str:
    """Return the id of a called run; it starts with a digest of this run's id if it would be too long."""
    child = f"{run}.{agent}-{number}"
    return child if len(child) <= LONGEST_ID else f"{digest(run)[:32]}.{agent}-{number}"


def _essence(created: b.RunCreated) -> tuple[Any, ...]:
    """Return the fields that make two creations the same."""
    return created.agent, created.input, created.effects, created.live


def _faults(failure: Failure) -> tuple[str, ...]:
    facts = failure.facts.value() if failure.facts is not None and failure.facts.is_inline else {}
    found = facts.get("faults", ()) if isinstance(facts, dict) else ()
    return tuple(each for each in found if isinstance(each, str))
