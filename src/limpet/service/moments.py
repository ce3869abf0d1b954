"""The state of a run at any point of its log: where it was, what it knew, what it had done, and what had failed.

Everything is derived from the log; snapshots and the index of steps only make it faster.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, TypedDict

import msgspec
from msgspec.structs import asdict

from limpet.clock import SECOND, to_microseconds
from limpet.context.brief import Chosen, chosen_of
from limpet.engine.definitions.types import codec_of
from limpet.engine.execution.views import PositionInfo, WaitsFor
from limpet.engine.run.working_state import State
from limpet.errors import InvalidArgument, NotFound
from limpet.events import Fact, PlanItem, Spent
from limpet.journal import load, load_step
from limpet.service.page import Page
from limpet.service.steps import (
    FailureInfo,
    StepInfo,
    describe_failure,
    describe_step,
    failure_info,
    some_steps,
    step_infos,
)
from limpet.service.views import position_info, short_text, wait_info, waiting_patches
from limpet.state import AgentState, RunState
from limpet.state.log_view import SETTLED
from limpet.state.patch import origin_of
from limpet.stores import Store
from limpet.stores.fork_reads import StepRange
from limpet.times import format_time, to_datetime, to_datetime_or_none
from limpet.view import View

__all__ = ["JSON", "Moment", "MomentJson", "Point", "point", "state_after", "state_at", "used_by", "used_text"]

JSON = codec_of(Any)
# Steps that a moment shows, unless more are wanted.
STEPS = 10
_POINT = re.compile(r"(before|after|event):(\d{1,18})")


class Point(View, frozen=True, kw_only=True):
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

    @classmethod
    def of(cls, text: "Point | str | None") -> "Point | None":
        """Return the point that a text stands for: `before:6`, `after:6`, `event:12`, or a time."""
        if text is None or isinstance(text, Point):
            return text
        found = _POINT.fullmatch(text)
        if found is not None:
            return cls(**{found[1].replace("event", "seq"): int(found[2])})
        try:
            return cls(at=msgspec.convert(text, datetime))
        except msgspec.ValidationError:
            reason = "pass before:STEP, after:STEP, event:NUMBER, or a time such as 2026-11-16T12:00:00Z"
            raise InvalidArgument(path="point", reason=f"{text!r} is not a point of a run; {reason}") from None


class StepPage(TypedDict):
    """Some steps, and where the others begin."""

    items: list[StepInfo]
    """Some steps."""
    next: str | None
    """Cursor of the next steps; null if there are none."""


class MomentJson(TypedDict):
    """The state of a run as plain data, under its public names."""

    run: str
    """Run id."""
    status: str
    """Status at this point."""
    seq: int
    """Number of the last event at this point."""
    time: datetime
    """Time of that event."""
    step: int
    """Highest number of a step so far."""
    position: PositionInfo
    """Position in the log, the steps and the plan."""
    next: str | None
    """The current item of the plan, or the next one."""
    input: str
    """Input of the run, shortened."""
    waits_for: tuple[WaitsFor, ...]
    """The conditions that the run waits for."""
    wake: datetime | None
    """When the run continues automatically."""
    open_steps: tuple[StepInfo, ...]
    """Steps that are not settled."""
    steps: StepPage
    """The last settled steps."""
    decisions: list[Chosen]
    """The last decisions of the agent."""
    failure: FailureInfo | None
    """Why the run failed."""
    failure_step: int | None
    """The step that failed."""
    spent: Mapping[str, float]
    """Usage, such as tokens and cost."""
    counters: Mapping[str, int]
    """Numbers of events by purpose."""
    state: AgentState
    """Working state of the agent."""
    text: str
    """All of it for people."""


class Moment(State[Any]):
    """The state of a run at a point in its log: position, working state, decisions, open and settled steps, cost."""

    def __init__(
        self, state: RunState, open_steps: tuple[StepInfo, ...], steps: Page[StepInfo], input: str = ""
    ) -> None:
        super().__init__(state.working, JSON)
        self.run, self.status, self.seq = state.run, state.status, state.position.seq
        self.time = to_datetime(state.updated)
        """Time of the last event."""
        self.step = state.position.step
        """Highest step number."""
        self.position = position_info(state.position)
        self.input = input
        """Input of the run, shortened."""
        self.open_steps = open_steps
        """Steps that were not settled, each with its attempts, errors and the time of the next attempt."""
        self.steps = steps
        """The newest settled steps, the newest first. `app.steps(..., seq=moment.seq)` has the others."""
        self._whole = state

    @property
    def whole(self) -> RunState:
        """The complete state that the log folds to."""
        return self._whole

    @property
    def decisions(self) -> tuple[Chosen, ...]:
        """The last decisions, the newest last."""
        return tuple(map(chosen_of, self.whole.decisions))

    @property
    def failure(self) -> FailureInfo | None:
        """Why the run failed; while it runs, its last error."""
        return failure_info(self.whole.error)

    @property
    def failure_step(self) -> int | None:
        """The step of that error."""
        return self.whole.error_step

    @property
    def spent(self) -> Mapping[str, float]:
        """Usage so far: steps, tokens, cost, and seconds of work."""
        return used_by(self.whole.spent)

    @property
    def next(self) -> str | None:
        """The current item of the plan, or the next one."""
        place = self.working.position
        return None if place is None else self.working.plan[place]

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
            "input": self.input,
            "waits_for": tuple(wait_info(str(wait)) for wait in self.whole.waits),
            "wake": to_datetime_or_none(self.whole.wake),
            "open_steps": self.open_steps,
            "steps": {"items": list(self.steps), "next": self.steps.next},
            "decisions": list(self.decisions),
            "failure": self.failure,
            "failure_step": self.failure_step,
            "spent": self.spent,
            "counters": msgspec.to_builtins(self.whole.counters),
            "state": self.working,
            "text": str(self),
        }

    def __str__(self) -> str:
        head = f"{self.run} after event {self.seq}, {format_time(self.time)}: {self.status}, {self.position}"
        return "\n".join([head, *(f"  {name:<9} {text}".rstrip() for name, text in self._lines())])

    def _limits(self) -> Iterator[tuple[str, str]]:
        """Yield what bounds the run."""
        if self.working.constraints:
            yield "bound by", ", ".join(f"{name}: {value}" for name, value in self.working.constraints.items())
        if self.working.budget is not None:
            given = (
                (name, value)
                for name, value in msgspec.structs.asdict(self.working.budget).items()
                if value is not None
            )
            yield "budget", ", ".join(f"{name} {value:g}" for name, value in given if name != "exhausted")
        if self.whole.deadline is not None:
            yield "deadline", format_time(self.whole.deadline)
        if self.whole.patches:
            yield "patches", waiting_patches(len(self.whole.patches), self.whole.status)

    def _lines(self) -> Iterator[tuple[str, str]]:
        """Yield the parts of the state, each with its name."""
        state = self.working
        yield from (("goal", self.goal), ("input", self.input)) if self.goal else (("input", self.input),)
        if state.plan:
            yield "plan", ", ".join(_item(number, item) for number, item in enumerate(state.items, 1))
        yield from (("fact", _fact(each)) for each in state.known_facts)
        yield from (("question", each) for each in state.open_questions)
        yield from (("artifact", f"{each.artifact_id}: {each.summary}") for each in state.artifacts)
        if state.risk_flags:
            yield (
                "flags",
                ", ".join(f"{each.flag} ({each.detail})" if each.detail else each.flag for each in state.flags),
            )
        yield from self._limits()
        if not isinstance(state.data, msgspec.UnsetType):
            yield "data", bytes(state.data).decode()
        for made in self.decisions:
            sure = "" if made.confidence is None else f" (confidence {made.confidence:g})"
            yield "decided", f"{made.question} {made.chosen}: {made.because}{sure}"
        yield from (("open", describe_step(each)) for each in self.open_steps)
        if self.whole.waits:
            until = "" if self.whole.wake is None else f", until {format_time(self.whole.wake)}"
            yield "waits for", f"{', '.join(map(str, self.whole.waits))}{until}"
        yield from (("did", describe_step(each)) for each in self.steps)
        if self.steps.next is not None:
            yield "", f"earlier: limpet steps {self.run} --newest --cursor {self.steps.next} --seq {self.seq}"
        if self.failure is not None:
            place = "" if self.failure_step is None else f" (step {self.failure_step})"
            yield "failed", f"{describe_failure(self.failure)}{place}"
        yield "spent", used_text(self.spent)


def _item(number: int, item: PlanItem) -> str:
    return f"{number} {item.item}" + (f" ({item.status})" if item.status != "pending" else "")


def _fact(fact: Fact) -> str:
    return f"{fact.key} = {bytes(fact.value).decode()}{origin_of(fact)}"


def used_by(spent: Spent) -> dict[str, float]:
    """Return usage under its public names."""
    return {
        "steps": spent.steps,
        "tokens": spent.tokens,
        "cost": spent.cost,
        "seconds": round(spent.wall_us / SECOND, 3),
    }


def used_text(used: Mapping[str, float]) -> str:
    """Return usage in one line, without zeros."""
    units = {"steps": "step", "tokens": "token", "seconds": "s active"}
    found = [
        f"{number:g} {units[name]}{'s' * (number != 1 and name != 'seconds')}"
        for name, number in used.items()
        if number and name in units
    ]
    return ", ".join([*found, f"cost {used.get('cost', 0):g}"])


async def state_at(store: Store, run: str, where: Point, *, steps: int = STEPS) -> Moment:
    """Return the state of a run at a point, with its newest settled steps. However long its log is, little is read."""
    seq = await point(store, run, where)
    state = await state_after(store, run, seq)
    unsettled = [step.number for step in state.steps]
    newest = StepRange(limit=steps + 1 + len(unsettled), backwards=True, upto=seq)
    settled = [step for step in await step_infos(store, run, newest) if step.status in SETTLED]
    return Moment(
        state,
        tuple(await some_steps(store, run, unsettled, upto=seq)),
        Page.cut(settled, steps, lambda step: step.number),
        await short_text(store, state.input),
    )


async def state_after(store: Store, run: str, seq: int) -> RunState:
    """Return the state of a run after an event."""
    if seq < 1:
        raise InvalidArgument(path="seq", reason="must be at least 1, the first event")
    return await load(store, run, at_most=seq)


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
