"""Replay: the code of a run gone through again, in a copy of it in memory, without a single call to the outside.

Up to a step, to reproduce what went wrong there; or as far as it is recorded, to see before a deploy which runs today's
code would not go through.
"""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypedDict

from limpet.clock import SECOND, FrozenClock, SystemClock
from limpet.engine.definitions.agents import Agent
from limpet.engine.execution.execution import Kit
from limpet.engine.execution.failures import failure_of
from limpet.engine.execution.handle import Port
from limpet.engine.run.conversation import conversation_of
from limpet.engine.run.working_state import State
from limpet.engine.worker.dry_run import AllowedTools, DryRun, DryRunResult
from limpet.errors import InvalidArgument, LimpetError, NotFound, StepFailed
from limpet.events import Event, blobs_of
from limpet.events import bodies as b
from limpet.ids import RandomIds
from limpet.service.moments import Point, point
from limpet.service.views import Ended, end_of
from limpet.state import AgentState
from limpet.stores import Claimed, Inline, Store, WorkerRow
from limpet.stores.memory import MemoryBackend

__all__ = ["Replay", "ReplayCheck", "ReplayJson", "ReplayOptions", "check", "replay"]

WORKER = "replay"
_ENDS = ("run.completed", "run.failed", "run.cancelled")
_UNDOING = ("cancel.requested", "compensation.started", "compensation.skipped")


class ReplayOptions(NamedTuple):
    """What a replay may do, and who looks on."""

    allow: Collection[str] = ()
    """Tools that are called, if the code comes to them where nothing is recorded."""
    coming_to: Callable[[int], object] | None = None
    """Told the number of each step as the code comes to it, in the code's own call."""


class ReplayJson(TypedDict):
    """A replay as plain data; the state under its known names."""

    run: str
    how: str
    value: Any
    error: dict[str, Any] | None
    raised: str | None
    state: AgentState


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What came of going through a run again."""

    run: str
    state: State[Any]
    """What the code knew where it stopped."""
    error: StepFailed | None = None
    """What the last step failed with, if it did."""
    raised: BaseException | None = None
    """What the code raised, live: with its traceback, as it is today."""
    how: str = ""
    """`returned`, `raised`, `waits`, `reached` (the end of what is recorded), `diverged` or `refused`."""
    value: Any = None
    """What it returned, as JSON."""
    to: int | None = None
    """The step that it was to go to, if it came there."""

    def as_json(self) -> ReplayJson:
        """The same as plain data; the state under its known names."""
        error = None if self.error is None else {"code": self.error.code, **self.error.facts}
        raised = None if self.raised is None else _words(self.raised)
        return {
            "run": self.run,
            "how": self.how,
            "value": self.value,
            "error": error,
            "raised": raised,
            "state": self.state.working,
        }

    def __str__(self) -> str:
        match self.how:
            case "returned":
                return f"{self.run} returns {self.value!r}"
            case "waits":
                return f"{self.run} waits"
            case "reached" if self.to is not None:
                return f"{self.run} goes through up to step {self.to}, as asked"
            case "reached":
                return f"{self.run} comes to the end of what is recorded: {_words(self.raised)}"
            case _:
                return f"{self.run} {self.how}: {_words(self.error or self.raised)}"


@dataclass(frozen=True, kw_only=True)
class ReplayCheck:
    """Whether today's code goes through what a run has recorded."""

    run: str
    problem: str | None = None
    """What is wrong, in words."""
    step: int = 0
    """The last step that its log has."""

    def __str__(self) -> str:
        return f"{self.run}: {'goes through' if self.problem is None else self.problem}"


async def replay(
    store: Store,
    run: str,
    agent: Agent[Any, Any],
    port: Port,
    to: int | None = None,
    ways: ReplayOptions = ReplayOptions(),  # noqa: B008 - it is a tuple
) -> Replay:
    """Go through a run up to the end of a step, or as far as it is recorded."""
    row = await store.get(run)
    upto = row.seq if to is None else await point(store, run, Point(after=to))
    is_shared = row.origin_at is not None and upto <= row.origin_at
    found = await _rehearse(RunCopy(store, run, upto), agent, port, ways, to if is_shared else None)
    number = to if to is not None else row.step
    return Replay(
        run=run,
        state=State(found.state, agent.data_codec),
        error=_step_error(found.error) or await _recorded_error(store, run, number, upto),
        raised=found.error,
        how=found.how,
        value=found.value,
        to=to if to in found.steps else None,
    )


async def check(store: Store, run: str, agent: Agent[Any, Any], port: Port | None = None) -> ReplayCheck:
    """Whether today's code goes through what a run has recorded."""
    row = await store.get(run)
    try:
        found = await _rehearse(RunCopy(store, run, row.seq), agent, port, ReplayOptions())
        end, output = await end_of(store, run), None
        if isinstance(end, b.RunCompleted):
            output = agent.output_codec.upgrade(await store.unpack(end.output), end.output.versions)
        return ReplayCheck(run=run, problem=_problem(found, end, output), step=row.step)
    except LimpetError as error:
        return ReplayCheck(run=run, problem=error.summary, step=row.step)


async def _rehearse(
    copy: "RunCopy", agent: Agent[Any, Any], port: Port | None, ways: ReplayOptions, last: int | None = None
) -> DryRunResult:
    """How far today's code comes with a copy of a run; no further than to a step, where the copy holds more."""
    blocked = AllowedTools(ways.allow)
    async with copy:
        kit = Kit(
            store=copy.store,
            clock=SystemClock(),
            ids=RandomIds(SystemClock()),
            worker=WORKER,
            perform=blocked,
            now=lambda: copy.time,
            linger=0,
            silent_after=3600 * SECOND,
            backoffs=False,
            port=port,
        )
        return await DryRun(kit, copy.claimed, agent, blocked, ways.coming_to, last).execute()


def _problem(found: DryRunResult, end: Ended | None, output: Any) -> str | None:
    """Why today's code does not go through what was recorded up to an end, if there is one, in words."""
    match found.how:
        case "diverged" | "refused":
            return _words(found.error)
        case "returned" if isinstance(end, b.RunCompleted):
            return None if found.value == output else "it returns something else"
        case "raised" if isinstance(end, b.RunFailed):
            is_same = found.error is not None and failure_of(found.error).type == end.failure.type
            return None if is_same else f"it fails with {_words(found.error)}"
        case "raised":
            return f"it fails with {_words(found.error)}"
        case "reached" if isinstance(end, b.RunCompleted):
            return f"it goes on where it ended: {_words(found.error)}"
        case "waits" if isinstance(end, b.RunCompleted | b.RunFailed):
            return f"it waits where it ended: for {', '.join(found.waits)}"
        case _:
            return None


def _without_end(events: Sequence[Event]) -> Sequence[Event]:
    """A log before it ended, was cancelled or was being undone."""
    kinds = [event.kind for event in events]
    undoing = next((place for place, kind in enumerate(kinds) if kind in _UNDOING), len(kinds))
    for place in reversed(range(undoing)):
        if kinds[place] == "resume.requested":
            break
        if kinds[place] in _ENDS:
            return events[:place]
    return events[:undoing]


class RunCopy:
    """A run up to an event once more, in memory, claimed; `async with`."""

    def __init__(self, source: Store, run: str, upto: int) -> None:
        self._source, self._run, self._upto = source, run, upto
        self._clock = FrozenClock(0)
        self.store = Store(MemoryBackend(self._clock), Inline())
        self.claimed: Claimed
        self.time = 0
        """Of its last event."""

    async def __aenter__(self) -> Self:
        await self.store.open()
        self.store.codec = self._source.codec  # so that hashes and names of blobs are the same
        run = self._run
        await self._bring(run)
        row = await self.store.get(run)
        self._clock.set(max(self.time, row.start_at or 0))
        worker = WorkerRow(id=WORKER, agents={row.agent: (row.agent_version,)})
        await self.store.register(worker, lease=SECOND)
        await self.store.send_commands(run, b.ResumeRequested(command="replay"), actor=WORKER)
        [self.claimed] = await self.store.claim(WORKER, limit=1)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.store.close()

    async def _bring(self, run: str) -> None:
        """Its origins first, as they are; of a fork, at least that it is one."""
        row = await self._source.get(run)
        if row.origin is not None:
            await self._bring_whole(row.origin)
        for talk in {row.conversation or "", conversation_of(run)}:
            if talk in await self._source.places([talk]):
                await self._bring_whole(talk)
        upto = max(self._upto, (row.origin_at or 0) + 1)
        own = [event async for event in self._own(run) if event.seq <= upto]
        await self._load(_without_end(own))
        self.time = own[-1].time

    async def _bring_whole(self, run: str) -> None:
        if run in await self.store.places([run]):
            return
        row = await self._source.get(run)
        if row.origin is not None:
            await self._bring_whole(row.origin)
        await self._load([event async for event in self._own(run)])

    async def _own(self, run: str) -> AsyncIterator[Event]:
        row = await self._source.get(run)
        async for event in self._source.log(run, after=row.origin_at or 0):
            yield event

    async def _load(self, events: Sequence[Event]) -> None:
        if not events:
            raise InvalidArgument(path="to", reason="nothing of it is there at that point")
        for name in {name for event in events for name in blobs_of(self._source.decode(event))}:
            data = b"".join([part async for part in self._source.read_blob(name)])
            await self.store.put_blob(data)
        self.time = events[-1].time
        self._clock.set(self.time)
        await self.store.load(events, actor=WORKER)


def _step_error(error: BaseException | None) -> StepFailed | None:
    """The failed step behind what the code raised."""
    for _ in range(20):
        if error is None or isinstance(error, StepFailed):
            return error
        error = error.__cause__ or error.__context__
    return None


async def _recorded_error(store: Store, run: str, number: int, upto: int) -> StepFailed | None:
    """What a step is recorded to have failed with, though the code went on."""
    tool, found = "", None
    try:
        start = await point(store, run, Point(before=number))
    except NotFound:
        return None
    async for event in store.log(run, after=start):
        if event.seq > upto:
            break
        body = store.decode(event) if event.kind.startswith("step.") else None
        if isinstance(body, b.StepStarted) and body.number == number:
            tool = body.tool
        elif isinstance(body, b.StepCompleted | b.StepResolved) and body.number == number:
            found = None
        elif isinstance(body, b.StepFailed) and body.number == number:
            found = StepFailed(
                tool=tool,
                number=number,
                attempts=body.attempt,
                error_type=body.failure.type,
                message=body.failure.message,
                error_types=body.failure.mro,
            )
    return found


def _words(error: BaseException | None) -> str:
    if isinstance(error, LimpetError):
        return error.summary
    return "" if error is None else f"{type(error).__name__}: {error}"
