"""Looking back: what a run knew at any point of its log, what a step changed, and where two runs went apart.

Everything is derived from the log; snapshots only make it faster.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, TypedDict

import msgspec
from msgspec import UNSET

from limpet.clock import SECOND, to_microseconds
from limpet.context.brief import Chosen, shown
from limpet.engine.definitions.types import codec_of
from limpet.engine.run.working_state import State
from limpet.errors import InvalidArgument, NotFound
from limpet.events import VOCABULARY, AnyBody, Event, Fact
from limpet.events import bodies as b
from limpet.events.values import encode
from limpet.journal import load
from limpet.service.views import readable
from limpet.state import AgentState, RunState
from limpet.state.patch import diff as patch_between
from limpet.state.patch import words
from limpet.stores import RunRow, Store

__all__ = [
    "Comparison",
    "Diff",
    "Moment",
    "MomentJson",
    "Point",
    "ValueChange",
    "compare",
    "diff",
    "no_step",
    "point",
    "state_at",
    "until_next",
]

PAGE = 1000
WINDOW = 64
_JSON = codec_of(Any)


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of a run's log, said in one of these ways."""

    before: int | None = None
    """The number of a step: just before its first attempt."""
    after: int | None = None
    """The number of a step: just after it was settled, or after the last that is known of it."""
    seq: int | None = None
    """The number of an event: after it."""
    at: datetime | int | None = None
    """A time, with its zone or in microseconds: after the last event until then."""

    def __post_init__(self) -> None:
        said = [name for name, value in asdict(self).items() if value is not None]
        if len(said) > 1:
            raise InvalidArgument(path=said[-1], reason=f"say either {' or '.join(said)}, not both")
        if isinstance(self.at, datetime):
            to_microseconds(self.at, "at")


class MomentJson(TypedDict):
    """What a run knew, as plain data; the state under its known names."""

    run: str
    status: str
    seq: int
    time: int
    step: int
    position: str
    next: str | None
    decisions: list[Chosen]
    state: AgentState


class Moment(State[Any]):
    """What an agent knew at a point of its log, what it had chosen, and what it meant to do next."""

    def __init__(self, state: RunState) -> None:
        super().__init__(state.working, _JSON)
        self.run, self.status, self.seq = state.run, state.status, state.position.seq
        self.time = state.updated
        """Of the last event, in microseconds."""
        self.step = state.position.step
        """The highest number of a step."""
        self.position = str(state.position)
        self.whole = state
        """Everything that the log folds to."""

    @property
    def decisions(self) -> tuple[Chosen, ...]:
        """What it had chosen, the newest last."""
        made = self.whole.decisions
        return tuple(Chosen(question=each.question, chosen=shown(each.chosen), because=each.because) for each in made)

    @property
    def next(self) -> str | None:
        """The item of the plan that it was at, or would come to."""
        items = self.working.items
        for status in ("doing", "pending"):
            found = next((item.item for item in items if item.status == status), None)
            if found is not None:
                return found
        return None

    def as_json(self) -> MomentJson:
        """The same as plain data; the state under its known names."""
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
        changes = words(AgentState(), patch_between(AgentState(), self.working))
        lines += [f"  {line}" for line in changes]
        lines += [f"  decided {each.question} {each.chosen}: {each.because}" for each in self.decisions]
        return "\n".join(lines)


@dataclass(frozen=True)
class ValueChange:
    """What something was, and what it is."""

    before: Any
    after: Any


@dataclass(frozen=True, kw_only=True)
class Diff:
    """What is different between two points."""

    facts: Mapping[str, ValueChange] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    """Every change, in words."""

    def __str__(self) -> str:
        return "\n".join(self.lines) or "nothing changed"


@dataclass(frozen=True, kw_only=True)
class Comparison(Diff):
    """Where two runs went apart, and how they differ in the end."""

    divergence: tuple[int, str, str] | None = None
    """The first event that is not the same in both, and what each did there, in words."""
    steps: Mapping[int, ValueChange] = field(default_factory=dict)
    """Steps with another tool, outcome or result, by number; nothing where one has none."""
    decisions: Mapping[str, ValueChange] = field(default_factory=dict)
    spent: Mapping[str, ValueChange] = field(default_factory=dict)
    outcome: ValueChange = ValueChange(None, None)


async def state_at(store: Store, run: str, where: Point) -> Moment:
    """What a run knew at a point."""
    return Moment(await _state(store, run, await point(store, run, where)))


async def _state(store: Store, run: str, seq: int) -> RunState:
    if seq < 1:
        raise InvalidArgument(path="seq", reason="a log begins with event 1")
    return await load(store, run, at_most=seq)


async def diff(store: Store, run: str, one: Point, other: Point) -> Diff:
    """What changed between two points of a run."""
    first, second = await point(store, run, one), await point(store, run, other)
    before, after = await _state(store, run, first), await _state(store, run, second)
    return _difference(before.working, after.working)


async def compare(store: Store, one: str, other: str) -> Comparison:
    """Where two runs went apart, and how they differ in the end."""
    logs = [await _log(store, run) for run in (one, other)]
    states = [await load(store, run) for run in (one, other)]
    found = _difference(states[0].working, states[1].working)
    steps = _changes(*(_steps(body for _, body in log) for log in logs))
    decisions = _changes(*(_decisions(body for _, body in log) for log in logs))
    spent = _changes(*(_used(state) for state in states))
    ends = ValueChange(*(f"{state.status} {shown(state.output)}".strip() for state in states))
    parted = _parted(*logs)
    lines = [
        *([f"first different at event {parted[0]}: {parted[1]} / {parted[2]}"] if parted else ["the same events"]),
        *(f"step {number}: {change.before or 'none'} / {change.after or 'none'}" for number, change in steps.items()),
        *(f"{question} {change.before or 'none'} / {change.after or 'none'}" for question, change in decisions.items()),
        *found.lines,
        *(
            f"{_SPENT.get(name, name)}: {change.before or 0:g} / {change.after or 0:g}"
            for name, change in spent.items()
        ),
        *([f"outcome: {ends.before} / {ends.after}"] if ends.before != ends.after else []),
    ]
    return Comparison(
        facts=found.facts,
        lines=tuple(lines),
        divergence=parted,
        steps=steps,
        decisions=decisions,
        spent=spent,
        outcome=ends,
    )


async def _log(store: Store, run: str) -> list[tuple[Event, AnyBody]]:
    events = [event async for event in store.log(run)]
    return list(zip(events, await readable(store, [store.decode(event) for event in events]), strict=True))


def _difference(before: AgentState, after: AgentState) -> Diff:
    patch = patch_between(before, after)
    old, new = _values(before.known_facts), _values(after.known_facts)
    return Diff(facts=_changes(old, new), lines=tuple(words(before, patch)))


def _values(facts: Iterable[Fact]) -> dict[str, Any]:
    return {fact.key: msgspec.json.decode(fact.value) for fact in facts}


def _changes(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> dict[Any, ValueChange]:
    keys = dict.fromkeys((*before, *after))
    return {
        key: ValueChange(before.get(key), after.get(key))
        for key in keys
        if before.get(key, UNSET) != after.get(key, UNSET)
    }


def _steps(bodies: Iterable[AnyBody]) -> dict[int, str]:
    """What each step did and came to, in words."""
    found: dict[int, str] = {}
    tools: dict[int, str] = {}
    for body in bodies:
        match body:
            case b.StepStarted():
                tools[body.number] = f"{body.tool}({shown(body.args)})"
                found[body.number] = f"{tools[body.number]} began"
            case b.StepCompleted():
                found[body.number] = f"{tools.get(body.number, body.name)} → {shown(body.output)}"
            case b.StepFailed() | b.StepUnknown():
                why = body.failure.type if body.failure is not None else "unknown"
                found[body.number] = f"{tools.get(body.number, body.name)} ✗ {why}"
            case b.RunForked():
                for number, output in body.results.items():
                    found[int(number)] = f"{tools.get(int(number), number)} → {shown(output)} (edited)"
            case b.StepResolved():
                found[body.number] = f"{tools.get(body.number, body.name)} {body.outcome} {shown(body.output)}".strip()
            case _:
                pass
    return found


def _decisions(bodies: Iterable[AnyBody]) -> dict[str, str]:
    made = [body for body in bodies if isinstance(body, b.DecisionMade)]
    return {f"{body.name}: {body.question}": f"{shown(body.chosen)} ({body.because})" for body in made}


_SPENT = {"seconds": "seconds of work"}


def _used(state: RunState) -> dict[str, float]:
    spent = state.spent
    wall = spent.wall_us / SECOND
    return {"steps": spent.steps, "tokens": spent.tokens, "cost": spent.cost, "seconds": round(wall, 3)}


def _parted(
    one: Sequence[tuple[Event, AnyBody]], other: Sequence[tuple[Event, AnyBody]]
) -> tuple[int, str, str] | None:
    """The first place where two logs say something else: claims, times and ids of commands aside."""
    pairs = [[(event, body) for event, body in log if not isinstance(body, _INCIDENTAL)] for log in (one, other)]
    for (event, body), (_, twin) in zip(*pairs, strict=False):
        if _essence(body) != _essence(twin):
            return event.seq, _in_words(body), _in_words(twin)
    lengths = [len(each) for each in pairs]
    if lengths[0] == lengths[1]:
        return None
    longer = pairs[0] if lengths[0] > lengths[1] else pairs[1]
    event, body = longer[min(lengths)]
    said = _in_words(body)
    return (event.seq, said, "its end") if longer is pairs[0] else (event.seq, "its end", said)


_INCIDENTAL = (b.RunClaimed, b.RunReleased, b.RunWaiting, b.RunForked, b.RunCreated)
_BY_CHANCE = (
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


def _essence(body: AnyBody) -> tuple[type, dict[str, Any]]:
    plain: dict[str, Any] = msgspec.json.decode(encode(body))
    return type(body), {name: value for name, value in plain.items() if name not in _BY_CHANCE}


def _in_words(body: AnyBody) -> str:
    name = getattr(body, "name", "")
    match body:
        case b.StepStarted():
            return f"{name} began with {shown(body.args)}"
        case b.StepCompleted():
            return f"{name} gave {shown(body.output)}"
        case b.StepFailed():
            return f"{name} failed: {body.failure.type}"
        case b.DecisionMade():
            return f"{body.question} {shown(body.chosen)}"
        case _:
            return " ".join(filter(None, (VOCABULARY.kind_of(body).name, name)))


async def until_next(store: Store, run: str, step: int) -> int:
    """The number of the last event after a step was settled and before another began."""
    last = await point(store, run, Point(after=step))
    while page := await store.read(run, after=last, limit=WINDOW):
        for event in page:
            if event.kind == "step.started":
                return last
            last = event.seq
    return last


# Finding a point


async def point(store: Store, run: str, where: Point) -> int:
    """The number of the last event before a point; the end, if nothing is said."""
    row = await store.get(run)
    if where.seq is not None:
        return min(where.seq, row.seq)
    if where.at is not None:
        return await _at(store, run, row.seq, where.at)
    if where.before is not None:
        return (await _begun(store, row, where.before)) - 1
    if where.after is not None:
        return await _settled(store, row, where.after)
    return row.seq


async def _at(store: Store, run: str, last: int, at: datetime | int) -> int:
    """Times never run backwards along a log, so the place is searched for by halves."""
    wanted = to_microseconds(at, "at") if isinstance(at, datetime) else at
    low, high = 0, last
    while low < high:
        middle = (low + high + 1) // 2
        [event] = await store.read(run, after=middle - 1, limit=1)
        low, high = (middle, high) if event.time <= wanted else (low, middle - 1)
    if low == 0:
        raise NotFound(what="event", id=f"{run} at that time")
    return low


async def _begun(store: Store, row: RunRow, number: int) -> int:
    """Where a step began: of a fork among its own events first, since its numbers go on from the cut."""
    run, last = row.id, row.seq
    while row.origin is not None and row.origin_at is not None:
        try:
            return await _started(store, run, min(row.origin_at, last), last, number)
        except NotFound:
            last, row = min(row.origin_at, last), await store.get(row.origin)
    return await _started(store, run, 0, last, number)


async def _started(store: Store, run: str, first: int, last: int, number: int) -> int:
    """Where a step began: searched for by halves, since most begin in order; else looked for from the start."""
    low, high = first, last
    while high - low > WINDOW:
        middle = (low + high) // 2
        found = await _first_start(store, run, middle, WINDOW)
        if found is None or found[1] >= number:
            high = middle
        else:
            low = middle
    for begin, most in ((max(low - WINDOW, first), 4 * WINDOW), (first, last - first)):
        start = await _start_of(store, run, begin, most, number)
        if start is not None:
            return start
    raise no_step(run, number, (await store.get(run)).step)


def no_step(run: str, number: int, last: int) -> NotFound:
    """What is said where a run has no step of a number."""
    error = NotFound(what="step", id=f"{run} step {number}")
    error.add_note(f"The run has steps 1 to {last}." if last else "The run has no step yet.")
    return error


async def _first_start(store: Store, run: str, after: int, most: int) -> tuple[int, int] | None:
    for event in await store.read(run, after=after, limit=most):
        if event.kind == "step.started":
            body = store.decode(event)
            assert isinstance(body, b.StepStarted)
            return event.seq, body.number
    return None


async def _start_of(store: Store, run: str, after: int, most: int, number: int) -> int | None:
    end = after + most
    while after < end and (page := await store.read(run, after=after, limit=PAGE)):
        for event in page:
            if event.kind == "step.started":
                body = store.decode(event)
                assert isinstance(body, b.StepStarted)
                if body.number == number:
                    return event.seq
        after = page[-1].seq
    return None


_ENDS = (b.StepCompleted, b.StepFailed, b.StepUnknown, b.StepResolved)


async def _settled(store: Store, row: RunRow, number: int) -> int:
    """Where a step was settled; or the last that is known of it, if it was not."""
    run, after = row.id, await _begun(store, row, number)
    latest = after
    while page := await store.read(run, after=after, limit=WINDOW):
        for event in page:
            body = store.decode(event) if event.kind.startswith("step.") else None
            if isinstance(body, _ENDS) and body.number == number:
                latest = event.seq
                if not isinstance(body, b.StepUnknown) and not (isinstance(body, b.StepFailed) and not body.is_final):
                    return latest
        after = page[-1].seq
    return latest
