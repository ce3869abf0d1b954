"""The state of a run at any point of its log, the changes between two points, and the differences of two runs.

Everything is derived from the log; snapshots only make it faster.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, TypedDict

import msgspec

from limpet.clock import SECOND, format_time, to_datetime, to_microseconds
from limpet.context.brief import Chosen, shown
from limpet.engine.definitions.types import codec_of
from limpet.engine.execution.views import PositionInfo
from limpet.engine.run.working_state import State
from limpet.errors import InvalidArgument, NotFound
from limpet.events import VOCABULARY, AnyBody, Event
from limpet.events import bodies as b
from limpet.events.values import encode
from limpet.journal import load, load_step
from limpet.service.views import load_values, position_info
from limpet.state import AgentState, LogView, RunState, StepView
from limpet.state.log_view import SETTLED
from limpet.state.patch import describe_patch
from limpet.state.patch import diff as patch_between
from limpet.stores import Store
from limpet.stores.fork_reads import StepRange

__all__ = [
    "ChangeInfo",
    "Comparison",
    "Diff",
    "DivergenceInfo",
    "Moment",
    "MomentJson",
    "Point",
    "compare",
    "diff",
    "point",
    "state_at",
    "until_next",
]

WINDOW = 64
_JSON = codec_of(Any)


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point in a run's log. Pass at most one of its fields; the default is the end of the log."""

    before: int | None = None
    """Step number: the point just before its first attempt."""
    after: int | None = None
    """Step number: the point just after it was settled, or after its last event so far."""
    seq: int | None = None
    """Event number: the point after this event."""
    at: datetime | int | None = None
    """A datetime with a time zone, or microseconds since 1970: the point after the last event until then."""

    def __post_init__(self) -> None:
        given = [name for name, value in asdict(self).items() if value is not None]
        if len(given) > 1:
            raise InvalidArgument(path=given[-1], reason=f"pass {' or '.join(given)}, not both")
        if isinstance(self.at, datetime):
            to_microseconds(self.at, "at")


class MomentJson(TypedDict):
    """The state of a run as plain data, under its public names."""

    run: str
    status: str
    seq: int
    time: datetime
    step: int
    position: PositionInfo
    next: str | None
    decisions: list[Chosen]
    state: AgentState


class Moment(State[Any]):
    """The state of a run at a point in its log: its working state, decisions and next item."""

    def __init__(self, state: RunState) -> None:
        super().__init__(state.working, _JSON)
        self.run, self.status, self.seq = state.run, state.status, state.position.seq
        self.time = to_datetime(state.updated)
        """Time of the last event."""
        self.step = state.position.step
        """Highest step number."""
        self.position = position_info(state.position)
        self.whole = state
        """The complete state that the log folds to."""

    @property
    def decisions(self) -> tuple[Chosen, ...]:
        """Decisions so far, the newest last."""
        made = self.whole.decisions
        return tuple(Chosen(question=each.question, chosen=shown(each.chosen), because=each.because) for each in made)

    @property
    def next(self) -> str | None:
        """The current item of the plan, or the next one."""
        items = self.working.items
        for status in ("doing", "pending"):
            found = next((item.item for item in items if item.status == status), None)
            if found is not None:
                return found
        return None

    def as_json(self) -> MomentJson:
        """Return the state as plain data, under its public names."""
        return {
            "run": self.run,
            "status": self.status,
            "seq": self.seq,
            "time": self.time,
            "step": self.step,
            "position": self.position,
            "next": self.next,
            "decisions": list(self.decisions),
            "state": self.working,
        }

    def __str__(self) -> str:
        lines = [f"{self.run} after event {self.seq}: {self.status}, {self.position}"]
        changes = describe_patch(AgentState(), patch_between(AgentState(), self.working))
        lines += [f"  {change.text}" for change in changes]
        lines += [f"  decided {each.question} {each.chosen}: {each.because}" for each in self.decisions]
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class ChangeInfo:
    """One difference, as data and as text."""

    part: str
    """`goal`, `plan`, `fact`, `question`, `artifact`, `flag`, `budget`, `constraints` or `data`; of two runs also
    `step`, `decision`, `spent` and `outcome`.
    """
    key: str
    """The fact, step, question …; "" if there is only one."""
    before: Any
    after: Any
    text: str


@dataclass(frozen=True, kw_only=True)
class Diff:
    """The differences between two points."""

    changes: tuple[ChangeInfo, ...]
    text: str
    """All changes, one per line."""

    def __str__(self) -> str:
        return self.text

    def of(self, part: str) -> dict[str, ChangeInfo]:
        """Return the changes of one part by key."""
        return {change.key: change for change in self.changes if change.part == part}


@dataclass(frozen=True, kw_only=True)
class DivergenceInfo:
    """The first event that differs between two logs."""

    seq: int
    one: str
    """The event in the first run, as text."""
    other: str


@dataclass(frozen=True, kw_only=True)
class Comparison(Diff):
    """Where two runs diverge, and how their steps, decisions, states, usage and outcomes differ."""

    divergence: DivergenceInfo | None = None


async def state_at(store: Store, run: str, where: Point) -> Moment:
    """Return the state of a run at a point."""
    return Moment(await _state(store, run, await point(store, run, where)))


async def _state(store: Store, run: str, seq: int) -> RunState:
    if seq < 1:
        raise InvalidArgument(path="seq", reason="must be at least 1, the first event")
    return await load(store, run, at_most=seq)


async def diff(store: Store, run: str, one: Point, other: Point) -> Diff:
    """Return the changes between two points of a run."""
    first, second = await point(store, run, one), await point(store, run, other)
    before, after = await _state(store, run, first), await _state(store, run, second)
    changes = _difference(before.working, after.working)
    return Diff(changes=tuple(changes), text="\n".join(change.text for change in changes) or "nothing changed")


async def compare(store: Store, one: str, other: str) -> Comparison:
    """Compare two runs: where they diverge, and how their final states differ."""
    logs = [await _log(store, run) for run in (one, other)]
    states = [await load(store, run) for run in (one, other)]
    changes = [
        *_changes("step", *(_steps(log) for log in logs)),
        *_changes("decision", *(_decisions(body for _, body in log) for log in logs)),
        *_difference(states[0].working, states[1].working),
        *_changes("spent", *(_used(state) for state in states)),
        *_changes("outcome", *({"": f"{state.status} {shown(state.output)}".strip()} for state in states)),
    ]
    diverged = _divergence(*logs)
    head = "the events are the same"
    if diverged is not None:
        head = f"diverged at event {diverged.seq}: {diverged.one} / {diverged.other}"
    text = "\n".join([head, *(change.text for change in changes)])
    return Comparison(changes=tuple(changes), text=text, divergence=diverged)


async def _log(store: Store, run: str) -> list[tuple[Event, AnyBody]]:
    events = [event async for event in store.log(run)]
    return list(zip(events, await load_values(store, [store.decode(event) for event in events]), strict=True))


def _difference(before: AgentState, after: AgentState) -> list[ChangeInfo]:
    return [ChangeInfo(**each._asdict()) for each in describe_patch(before, patch_between(before, after))]


def _changes(part: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[ChangeInfo]:
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key), after.get(key)
        if old != new:
            yield ChangeInfo(part=part, key=key, before=old, after=new, text=_words(part, key, old, new))


def _words(part: str, key: str, old: Any, new: Any) -> str:
    match part:
        case "spent":
            return f"{_SPENT.get(key, key)}: {old or 0:g} / {new or 0:g}"
        case "decision":
            return f"{key} {old or 'none'} / {new or 'none'}"
        case _:
            return f"{part}{f' {key}' if key else ''}: {old or 'none'} / {new or 'none'}"


def _steps(log: Iterable[tuple[Event, AnyBody]]) -> dict[str, str]:
    """Return each step and its outcome, as text."""
    view = LogView()
    for event, body in log:
        view.add(event, body)
    return {str(number): _outcome(step) for number, step in view.steps.items()}


def _outcome(step: StepView) -> str:
    call = f"{step.tool}({shown(step.args)})"
    if step.status in SETTLED and step.attempts[-1].status == "completed":
        return f"{call} → {shown(step.result)}{' (edited)' if step.edited else ''}"
    if step.error is not None or step.status == "unknown":
        return f"{call} ✗ {'unknown' if step.error is None else step.error.type}"
    return f"{call} {step.status}"


def _decisions(bodies: Iterable[AnyBody]) -> dict[str, str]:
    made = [body for body in bodies if isinstance(body, b.DecisionMade)]
    return {f"{body.name}: {body.question}": f"{shown(body.chosen)} ({body.because})" for body in made}


_SPENT = {"seconds": "working time in s"}


def _used(state: RunState) -> dict[str, float]:
    spent = state.spent
    wall = spent.wall_us / SECOND
    return {"steps": spent.steps, "tokens": spent.tokens, "cost": spent.cost, "seconds": round(wall, 3)}


def _divergence(one: Sequence[tuple[Event, AnyBody]], other: Sequence[tuple[Event, AnyBody]]) -> DivergenceInfo | None:
    """Return the first event that differs, ignoring claims, times and command ids, and what each run did there."""
    pairs = [[(event, body) for event, body in log if not isinstance(body, _INCIDENTAL)] for log in (one, other)]
    for (event, body), (_, twin) in zip(*pairs, strict=False):
        if _comparable(body) != _comparable(twin):
            return DivergenceInfo(seq=event.seq, one=_describe(body), other=_describe(twin))
    lengths = [len(each) for each in pairs]
    if lengths[0] == lengths[1]:
        return None
    longer = pairs[0] if lengths[0] > lengths[1] else pairs[1]
    event, body = longer[min(lengths)]
    text = _describe(body)
    first, second = (text, "end of log") if longer is pairs[0] else ("end of log", text)
    return DivergenceInfo(seq=event.seq, one=first, other=second)


_INCIDENTAL = (b.RunClaimed, b.RunReleased, b.RunWaiting, b.RunForked, b.RunCreated)
_INCIDENTAL_FIELDS = (
    "run",
    "command",
    "request",
    "key",
    "timeout_at",
    "retry_at",
    "wake",
    "expires",
    "grant",
    "event",
    "deadline",
)


def _comparable(body: AnyBody) -> tuple[type, dict[str, Any]]:
    plain: dict[str, Any] = msgspec.json.decode(encode(body))
    return type(body), {name: value for name, value in plain.items() if name not in _INCIDENTAL_FIELDS}


def _describe(body: AnyBody) -> str:
    name = getattr(body, "name", "")
    match body:
        case b.StepStarted():
            return f"{name} started with {shown(body.args)}"
        case b.StepCompleted():
            return f"{name} returned {shown(body.output)}"
        case b.StepFailed():
            return f"{name} failed: {body.failure.type}"
        case b.DecisionMade():
            return f"{body.question} {shown(body.chosen)}"
        case _:
            return " ".join(filter(None, (VOCABULARY.kind_of(body).name, name)))


async def until_next(store: Store, run: str, step: int) -> int:
    """Return the last event after a step was settled and before the next step started."""
    last = await _last_event(store, run, step)
    while page := await store.read(run, after=last, limit=WINDOW):
        for event in page:
            if event.kind == "step.started":
                return last
            last = event.seq
    return last


# Find a point


async def point(store: Store, run: str, where: Point) -> int:
    """Return the number of the last event before a point."""
    row = await store.get(run)
    if where.seq is not None:
        return min(where.seq, row.seq)
    if where.at is not None:
        return await _at(store, run, row.seq, where.at)
    if where.before is not None:
        return (await load_step(store, run, where.before)).seq - 1
    if where.after is not None:
        return await _last_event(store, run, where.after)
    return row.seq


async def _at(store: Store, run: str, last: int, at: datetime | int) -> int:
    """Search by bisection: times never decrease along a log."""
    wanted = to_microseconds(at, "at") if isinstance(at, datetime) else at
    low, high = 0, last
    while low < high:
        middle = (low + high + 1) // 2
        [event] = await store.read(run, after=middle - 1, limit=1)
        low, high = (middle, high) if event.time <= wanted else (low, middle - 1)
    if low == 0:
        [first] = await store.read(run, limit=1)
        fix = f"Pass a later time: the run was created at {format_time(first.time)}."
        raise NotFound(what="event", id=f"{run} until {format_time(wanted)}", fix=fix)
    return low


async def _last_event(store: Store, run: str, number: int) -> int:
    """Return the event that settled a step, or its last event so far."""
    step = await load_step(store, run, number)
    if step.end is not None:
        return step.end
    events = await store.read_steps(run, StepRange(after=number - 1, before=number + 1))
    return max(event.seq for event in events if event.seq >= step.seq)
