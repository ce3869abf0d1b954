"""Replay a run's code against its log, in a copy of the run in memory, without any external call.

Replay up to a step to reproduce a failure there, or the whole log to find out before a deployment which runs the
current code cannot continue.
"""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any, NamedTuple, Self, TypedDict

from msgspec import Struct

from limpet.clock import SECOND, FrozenClock, SystemClock
from limpet.engine.definitions.agents import Agent
from limpet.engine.execution.failures import failure_of
from limpet.engine.execution.handle import Port
from limpet.engine.execution.kit import Kit
from limpet.engine.run.conversation import conversation_of
from limpet.engine.run.working_state import State
from limpet.engine.worker.dry_run import AllowedTools, DryRun, DryRunResult
from limpet.errors import InvalidArgument, LimpetError, NotFound, StepFailed
from limpet.events import Event, blobs_of
from limpet.events import bodies as b
from limpet.ids import RandomIds
from limpet.journal import load_step
from limpet.service.moments import Point, point
from limpet.service.views import Ended, read_end
from limpet.state import AgentState
from limpet.stores import Claimed, Inline, Store, WorkerRow
from limpet.stores.memory import MemoryBackend
from limpet.view import View

__all__ = ["Replay", "ReplayCheck", "ReplayJson", "ReplayOptions", "check", "replay"]

WORKER = "replay"
_ENDS = ("run.completed", "run.failed", "run.cancelled")
_UNDOING = ("cancel.requested", "compensation.started", "compensation.skipped")


class ReplayOptions(NamedTuple):
    """Options of a replay."""

    allow: Collection[str] = ()
    """Tools that may be called where the log has no result."""
    on_step: Callable[[int], object] | None = None
    """Called with the number of each step when the code reaches it, in the code's own call stack."""


class ReplayJson(TypedDict):
    """A replay as plain data, with the state under its public names."""

    run: str
    """Run id."""
    how: str
    """`returned`, `raised`, `waits`, `reached` (the end of the log), `diverged` or `refused`."""
    value: Any
    """The value that the code returned."""
    error: dict[str, Any] | None
    """Error of the last step, if it failed."""
    raised: str | None
    """The exception that the code raised."""
    state: AgentState
    """Working state at the end."""


class Replay(Struct, frozen=True, kw_only=True):
    """Result of a replay."""

    run: str
    state: State[Any]
    """State of the run where the replay stopped."""
    error: StepFailed | None = None
    """Error of the last step, if it failed."""
    raised: BaseException | None = None
    """Exception that the code raised now, with its traceback."""
    how: str = ""
    """`returned`, `raised`, `waits`, `reached` (the end of the log), `diverged` or `refused`."""
    value: Any = None
    """Return value as JSON."""
    to: int | None = None
    """The step to stop at, if the replay reached it."""

    def as_json(self) -> ReplayJson:
        """Return the replay as plain data, with the state under its public names."""
        error = None if self.error is None else {"code": self.error.code, **self.error.facts}
        raised = None if self.raised is None else _describe(self.raised)
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
                return f"{self.run} matches its log up to step {self.to}"
            case "reached":
                return f"{self.run} reached the end of its log: {_describe(self.raised)}"
            case _:
                return f"{self.run} {self.how}: {_describe(self.error or self.raised)}"


class ReplayCheck(View, frozen=True, kw_only=True):
    """Whether the current code matches the log of a run."""

    run: str
    """Run id."""
    problem: str | None = None
    """Why the code does not match; None if it does."""
    step: int = 0
    """Number of the last step in the log."""

    def __str__(self) -> str:
        return f"{self.run}: {'ok' if self.problem is None else self.problem}"


async def replay(
    store: Store,
    run: str,
    agent: Agent[Any, Any],
    port: Port,
    to: int | None = None,
    options: ReplayOptions = ReplayOptions(),  # noqa: B008 - immutable
) -> Replay:
    """Replay a run up to the end of a step, or to the end of its log."""
    row = await store.get(run)
    upto = row.seq if to is None else await point(store, run, Point(after=to))
    is_shared = row.origin_at is not None and upto <= row.origin_at
    found = await _dry_run(RunCopy(store, run, upto), agent, port, options, to if is_shared else None)
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
    """Check whether the current code matches the log of a run."""
    row = await store.get(run)
    try:
        found = await _dry_run(RunCopy(store, run, row.seq), agent, port, ReplayOptions())
        _, end = await read_end(store, run) or (None, None)
        output = None
        if isinstance(end, b.RunCompleted):
            output = agent.output_codec.upgrade(await store.unpack(end.output), end.output.versions)
        return ReplayCheck(run=run, problem=_problem(found, end, output), step=row.step)
    except LimpetError as error:
        return ReplayCheck(run=run, problem=error.summary, step=row.step)


async def _dry_run(
    copy: "RunCopy", agent: Agent[Any, Any], port: Port | None, options: ReplayOptions, last: int | None = None
) -> DryRunResult:
    """Execute the current code on a copy of a run. `last` is the step to stop at if the copy contains more."""
    blocked = AllowedTools(options.allow)
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
        return await DryRun(kit, copy.claimed, agent, blocked, options.on_step, last).execute()


def _problem(found: DryRunResult, end: Ended | None, output: Any) -> str | None:
    """Return why the current code does not match the log and its end, or None."""
    match found.how:
        case "diverged" | "refused":
            return _describe(found.error)
        case "returned" if isinstance(end, b.RunCompleted):
            return None if found.value == output else "returns a different result"
        case "raised" if isinstance(end, b.RunFailed):
            is_same = found.error is not None and failure_of(found.error).type == end.failure.type
            return None if is_same else f"fails with {_describe(found.error)}"
        case "raised":
            return f"fails with {_describe(found.error)}"
        case "reached" if isinstance(end, b.RunCompleted):
            return f"continues where the run ended: {_describe(found.error)}"
        case "waits" if isinstance(end, b.RunCompleted | b.RunFailed):
            return f"waits where the run ended, for {', '.join(found.waits)}"
        case _:
            return None


def _without_end(events: Sequence[Event]) -> Sequence[Event]:
    """Return a log without its end, its cancellation and its compensations."""
    kinds = [event.kind for event in events]
    undoing = next((place for place, kind in enumerate(kinds) if kind in _UNDOING), len(kinds))
    for place in reversed(range(undoing)):
        if kinds[place] == "resume.requested":
            break
        if kinds[place] in _ENDS:
            return events[:place]
    return events[:undoing]


class RunCopy:
    """A copy of a run in memory, up to an event, claimed by this process. Use it with `async with`."""

    def __init__(self, source: Store, run: str, upto: int) -> None:
        self._source, self._run, self._upto = source, run, upto
        self._clock = FrozenClock(0)
        self.store = Store(MemoryBackend(self._clock), Inline())
        self.claimed: Claimed
        self.time = 0
        """Time of the last event."""

    async def __aenter__(self) -> Self:
        await self.store.open()
        self.store.codec = self._source.codec  # The same codec, so that hashes and blob names are the same.
        run = self._run
        await self._copy(run)
        row = await self.store.get(run)
        self._clock.set(max(self.time, row.start_at or 0))
        worker = WorkerRow(id=WORKER, agents={row.agent: (row.agent_version,)})
        await self.store.register(worker, lease=SECOND)
        await self.store.send_commands(run, b.ResumeRequested(command="replay"), actor=WORKER)
        [self.claimed] = await self.store.claim(WORKER, limit=1)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.store.close()

    async def _copy(self, run: str) -> None:
        """Copy a run after its origins, which are copied completely. Of a fork, at least its first own event."""
        row = await self._source.get(run)
        if row.origin is not None:
            await self._copy_whole(row.origin)
        for talk in {row.conversation or "", conversation_of(run)}:
            if talk in await self._source.positions([talk]):
                await self._copy_whole(talk)
        upto = max(self._upto, (row.origin_at or 0) + 1)
        own = [event async for event in self._own(run) if event.seq <= upto]
        await self._load(_without_end(own))
        self.time = own[-1].time

    async def _copy_whole(self, run: str) -> None:
        if run in await self.store.positions([run]):
            return
        row = await self._source.get(run)
        if row.origin is not None:
            await self._copy_whole(row.origin)
        await self._load([event async for event in self._own(run)])

    async def _own(self, run: str) -> AsyncIterator[Event]:
        row = await self._source.get(run)
        async for event in self._source.log(run, after=row.origin_at or 0):
            yield event

    async def _load(self, events: Sequence[Event]) -> None:
        if not events:
            raise InvalidArgument(path="to", reason="the run has no events at that point")
        for name in {name for event in events for name in blobs_of(self._source.decode(event))}:
            data = b"".join([part async for part in self._source.read_blob(name)])
            await self.store.put_blob(data)
        self.time = events[-1].time
        self._clock.set(self.time)
        await self.store.load(events, actor=WORKER)


def _step_error(error: BaseException | None) -> StepFailed | None:
    """Return the failed step that caused an exception."""
    for _ in range(20):
        if error is None or isinstance(error, StepFailed):
            return error
        error = error.__cause__ or error.__context__
    return None


async def _recorded_error(store: Store, run: str, number: int, upto: int) -> StepFailed | None:
    """Return the recorded error of a step, which the code handled."""
    try:
        step = await load_step(store, run, number, upto=upto)
    except NotFound:
        return None
    last, failed = step.attempts[-1], [attempt for attempt in step.attempts if attempt.status == "failed"]
    if last.status == "completed" or last.outcome is not None or not failed or failed[-1].error is None:
        return None
    failure = failed[-1].error
    return StepFailed(
        tool=step.tool,
        number=number,
        attempts=failed[-1].number,
        error_type=failure.type,
        message=failure.message,
        error_types=failure.mro,
    )


def _describe(error: BaseException | None) -> str:
    if isinstance(error, LimpetError):
        return error.summary
    return "" if error is None else f"{type(error).__name__}: {error}"
