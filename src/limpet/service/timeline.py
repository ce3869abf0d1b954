"""The timeline of a run: when it worked and when it waited, from its log."""

from dataclasses import dataclass, field, replace
from typing import Literal

from limpet.events import AnyBody, Event
from limpet.events import bodies as b
from limpet.stores import Store

__all__ = ["Span", "TimelineBuilder", "TimelineRow", "timeline"]

# Names of waits that have no name in the log.
WORKER, OPERATOR = "worker", "operator"
SpanKind = Literal["running", "completed", "failed", "unknown", "waits"]


@dataclass(frozen=True, kw_only=True)
class Span:
    """One attempt of a step, the wait before its next attempt, or a wait of the run."""

    how: SpanKind
    start: int
    end: int | None = None
    """None while it lasts."""
    at_most: bool = False
    """Whether `start` is the earliest possible time: start and end were appended together, as for a quick read."""


@dataclass(kw_only=True)
class TimelineRow:
    """A step with its attempts, or a wait of the whole run."""

    number: int | None
    """Step number; None for a wait."""
    name: str
    """The step's identity, or what the run waited for."""
    spans: list[Span] = field(default_factory=list)

    @property
    def start(self) -> int:
        """Start time."""
        return self.spans[0].start

    @property
    def end(self) -> int | None:
        """End time; None while it lasts."""
        return self.spans[-1].end

    def close(self, time: int, how: SpanKind | None = None) -> None:
        """End the current span."""
        last = self.spans[-1]
        if last.end is None:
            self.spans[-1] = replace(last, end=time, how=how or last.how)

    def set_earliest_start(self, time: int) -> bool:
        """If a row has a single span without length, set its earliest possible start. Returns whether it did."""
        [*more, last] = self.spans
        if not more and last.start == last.end and time < last.start:
            self.spans[-1] = replace(last, start=time, at_most=True)
            return True
        return False


async def timeline(store: Store, run: str) -> list[TimelineRow]:
    """Return every step and wait of a run, in order. For a fork, only those after the fork point."""
    found = TimelineBuilder()
    async for event in store.log(run):
        found.add(event, store.decode(event))
    return found.rows


class TimelineBuilder:
    """Builds a timeline from the events of a log."""

    def __init__(self) -> None:
        self.rows: list[TimelineRow] = []
        self._steps: dict[int, TimelineRow] = {}
        self._waits: dict[str, TimelineRow] = {}
        """Current waits by name: timers, signals, requests, called runs, a worker, an operator."""
        self._is_parked = False
        self._now = self._before = 0

    def add(self, event: Event, body: AnyBody) -> None:
        """Add one event."""
        if isinstance(body, b.RunForked):
            self.rows, self._steps, self._waits = [], {}, {}  # the events before belong to the original run
            self._now = 0
        if event.time > self._now:
            self._before, self._now = self._now, event.time
        self._add_step(event.time, body)
        self._add_run(event.time, body)
        self._add_wait(event.time, body)

    def _add_step(self, time: int, body: AnyBody) -> None:
        match body:
            case b.StepStarted():
                self._start_step(time, body)
            case b.StepCompleted():
                self._end_step(time, body.number, "completed")
            case b.StepFailed():
                self._end_step(time, body.number, "failed")
                if body.retry_at is not None and body.number in self._steps:
                    self._steps[body.number].spans.append(Span(how="waits", start=time))
            case b.StepUnknown():
                self._end_step(time, body.number, "unknown")
            case _:
                pass

    def _add_run(self, time: int, body: AnyBody) -> None:
        match body:
            case b.RunCreated() | b.RunForked() | b.RunReleased() | b.ResumeRequested():
                self._wait(time, WORKER, WORKER)
            case b.RunClaimed():
                self._is_parked = False
                self._end_wait(time, WORKER)
                self._end_wait(time, OPERATOR)
            case b.RunWaiting():
                self._is_parked = True
                if any(wait.what == OPERATOR for wait in body.waits):
                    self._wait(time, OPERATOR, OPERATOR)
            case b.RunCompleted() | b.RunFailed() | b.RunCancelled():
                for line in (*self._waits.values(), *self._steps.values()):
                    line.close(time)
                self._waits.clear()
            case _:
                pass

    def _add_wait(self, time: int, body: AnyBody) -> None:
        match body:
            case b.TimerSet():
                self._wait(time, body.name, "time")
            case b.WaitOpened():
                self._wait(time, body.name, f"signal {body.signal}")
            case b.RequestOpened():
                self._wait(time, body.request, "person")
            case b.AgentCalled(mode="call"):
                self._wait(time, body.run, f"run {body.run}")
            case b.WaitEnded():
                self._end_wait(time, body.name)
                self._end_wait(time, body.request or "")
            case b.RequestAnswered() | b.RequestExpired(outcome="default" | "raised"):
                self._end_wait(time, body.request)
            case b.AgentReturned():
                self._end_wait(time, body.run)
            case _:
                pass

    def _wait(self, time: int, key: str, what: str) -> None:
        if key not in self._waits:
            line = self._waits[key] = TimelineRow(number=None, name=what, spans=[Span(how="waits", start=time)])
            self.rows.append(line)

    def _end_wait(self, time: int, key: str) -> None:
        """End a wait. A run that no process drives then waits for a worker."""
        line = self._waits.pop(key, None)
        if line is not None:
            self._close(line, time)
            if self._is_parked:
                self._wait(time, WORKER, WORKER)

    def _start_step(self, time: int, body: b.StepStarted) -> None:
        line = self._steps.get(body.number)
        if line is None:
            line = self._steps[body.number] = TimelineRow(number=body.number, name=body.name)
            self.rows.append(line)
        else:
            line.close(time)
        line.spans.append(Span(how="running", start=time))

    def _end_step(self, time: int, number: int, how: SpanKind) -> None:
        if number in self._steps:
            self._close(self._steps[number], time, how)

    def _close(self, line: TimelineRow, time: int, how: SpanKind | None = None) -> None:
        """End the current span of a row. The first span to end after a pause in the log gets the time since the last
        event.
        """
        line.close(time, how)
        if line.set_earliest_start(self._before or time):
            self._before = time
