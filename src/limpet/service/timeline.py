"""The timeline of a run: when it worked and when it waited, from its steps and waits."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Literal

from msgspec.structs import replace

from limpet.events import bodies as b
from limpet.journal import load_steps
from limpet.state.log_view import SETTLED, LogView, StepView, WaitView
from limpet.stores import RunRow, Store
from limpet.stores.api.base import LARGEST_PAGE
from limpet.stores.fork_reads import StepRange
from limpet.times import to_datetime, to_datetime_or_none
from limpet.view import View

__all__ = ["Span", "TimelineRow", "timeline_of", "timeline_page"]

# Events after a page in which the ends of its waits are looked for.
FURTHER = 500

SpanKind = Literal["running", "completed", "failed", "unknown", "interrupted", "waits"]


class Span(View, frozen=True, kw_only=True):
    """One attempt of a step, the wait before its next attempt, or a wait of the run."""

    how: SpanKind
    """How an attempt ended, or `waits`."""
    start: datetime
    """Start time."""
    end: datetime | None = None
    """None while it lasts."""
    at_most: bool = False
    """Whether `start` is the earliest possible time: start and end were appended together, as for a quick read."""


class TimelineRow(View, frozen=True, kw_only=True):
    """A step with its attempts, or a wait of the whole run."""

    number: int | None
    """Step number; None for a wait."""
    name: str
    """The step's identity, or what the run waited for."""
    spans: tuple[Span, ...]
    """Attempts and waits, in order."""

    @property
    def start(self) -> datetime:
        """Start time."""
        return self.spans[0].start

    @property
    def end(self) -> datetime | None:
        """End time; None while it lasts."""
        return self.spans[-1].end


async def timeline_page(store: Store, row: RunRow, limit: int, after: int = 0) -> tuple[list[TimelineRow], int | None]:
    """Return the steps after a number, with the waits between them, in order; and the last step if there are more.

    Only this part of the log is read, and a little more to find the ends of its waits. For a fork, the steps that it
    shares with its origin are left out.
    """
    limit = min(limit, LARGEST_PAGE - 1)
    shared = 0 if row.origin_at is None else await _shared_steps(store, row)
    first = max(after, shared)
    steps = await load_steps(store, row.id, StepRange(after=max(first - 1, 0), limit=limit + 2))
    own = [step for step in steps if step.number > first]
    shown, later = own[:limit], own[limit:]
    if first > shared and not shown:
        return [], None
    before = [step for step in steps if step.number <= first and not step.shared]
    start = before[0].seq - 1 if before else row.origin_at or 0
    end = later[0].seq if later else row.seq + 1
    view = await _waits_between(store, row, start, end)
    rows = timeline_of([*before, *shown], view)
    told = len(before) + sum(wait.seq < shown[0].seq for wait in view.waits) if before else 0
    return rows[told:], shown[-1].number if later else None


async def _waits_between(store: Store, row: RunRow, start: int, end: int) -> LogView:
    """Return a log view with the waits that began between two events. Their ends are looked for a little further."""
    view = LogView()
    async for event in store.log(row.id, after=start):
        if event.seq >= end:
            view.waits = [wait for wait in view.waits if wait.seq < end]
            if event.seq - end >= FURTHER or all(wait.ended is not None for wait in view.waits):
                break
        view.add(event, store.decode(event))
    view.waits = [wait for wait in view.waits if wait.seq < end]
    view.ended = view.ended or row.ended
    return view


async def _shared_steps(store: Store, row: RunRow) -> int:
    """Return the number of steps that a fork shares with its origin."""
    [event] = await store.read(row.id, after=row.origin_at or 0, limit=1)
    body = store.decode(event)
    assert isinstance(body, b.RunForked)
    return body.step


def timeline_of(steps: Iterable[StepView], view: LogView) -> list[TimelineRow]:
    """Return some steps, and the waits of a log view, in the order in which they started."""
    ended = to_datetime_or_none(view.ended)
    rows = [(step.seq, _step(step, ended)) for step in steps if not step.shared]
    rows += [(wait.seq, _wait(wait)) for wait in view.waits]
    return _with_earliest_starts([row for _, row in sorted(rows, key=lambda each: each[0])])


def _step(step: StepView, ended: datetime | None) -> TimelineRow:
    return TimelineRow(number=step.number, name=step.name, spans=tuple(_spans(step, ended)))


def _spans(step: StepView, ended: datetime | None) -> Iterator[Span]:
    """Yield the attempts and the waits between them. The end of the run ends what is open."""
    for place, attempt in enumerate(step.attempts, start=1):
        end = to_datetime_or_none(attempt.ended)
        yield Span(how=attempt.status, start=to_datetime(attempt.started), end=end or ended)
        is_last = place == len(step.attempts)
        if end is not None and attempt.status == "failed" and not (is_last and step.status in SETTLED):
            yield Span(how="waits", start=end, end=ended if is_last else to_datetime(step.attempts[place].started))


def _wait(wait: WaitView) -> TimelineRow:
    name = f"{wait.what} {wait.key}" if wait.what in ("signal", "run") else wait.what
    span = Span(how="waits", start=to_datetime(wait.started), end=to_datetime_or_none(wait.ended))
    return TimelineRow(number=None, name=name, spans=(span,))


def _with_earliest_starts(rows: list[TimelineRow]) -> list[TimelineRow]:
    """Give each step that was recorded with its end the time since the row before it ended, as its longest duration."""
    found, before = list[TimelineRow](), rows[0].start if rows else None
    for row in rows:
        [first, *more] = row.spans
        if row.number is not None and not more and first.start == first.end and before and before < first.start:
            row = replace(row, spans=(replace(first, start=before, at_most=True),))  # noqa: PLW2901
        found.append(row)
        times = [time for span in row.spans for time in (span.start, span.end) if time is not None]
        before = max([*times, before or times[0]])
    return found
