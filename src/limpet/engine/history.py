"""What the log says about each call of an agent's code: the memory that replay answers from. Pure.

A verb has one record, under its identity: the event that opened it, what happened to it since, and the event that
settled it. Commands from outside are kept by their place in the log, because a wait names the one that ended it. What
happened in turns that are over is forgotten: nobody comes to it again.
"""

from dataclasses import dataclass

from limpet.events import AnyBody, Event
from limpet.events import bodies as b

__all__ = ["History", "Record", "Settling", "scope_of"]

Opening = (
    b.StepStarted
    | b.StatePatched
    | b.DecisionMade
    | b.ArtifactStored
    | b.ValueRecorded
    | b.VersionChosen
    | b.RequestOpened
    | b.TimerSet
    | b.WaitOpened
    | b.AgentCalled
    | b.MessageSaid
)
Settling = b.StepCompleted | b.StepFailed | b.StepResolved | b.WaitEnded


@dataclass(slots=True)
class Record:
    """What is known of one call."""

    name: str
    opened: Opening
    end: int | None = None
    """The sequence of the event that settled it."""
    settled: Settling | None = None
    latest: AnyBody | None = None
    """Of a step: the last thing that happened to it."""

    @property
    def asked(self) -> str:
        """The digest of what the code asked with, where it counts."""
        return self.opened.asked if isinstance(self.opened, b.StepStarted | b.AgentCalled) else ""

    @property
    def has_effect(self) -> bool:
        """Whether something outside may have happened, or somebody was asked or called."""
        match self.opened:
            case b.StepStarted():
                return self.opened.effect != "none"
            case b.RequestOpened() | b.AgentCalled() | b.MessageSaid():
                return True
            case _:
                return False


class History:
    """All records of a run, as its log is learnt event by event."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.commands: dict[int, AnyBody] = {}
        """Answers, signals and returns, by their sequence."""
        self.expired: dict[str, b.RequestExpired] = {}
        """Requests that nobody decided in time, by their id."""
        self.last_number = 0
        """The highest number of a step."""
        self._scopes: dict[str, list[str]] = {}
        self._failed: b.RunFailed | None = None

    def learn(self, event: Event, body: AnyBody) -> None:
        """Take in the next event."""
        match body:
            case b.RequestAnswered() | b.SignalReceived() | b.AgentReturned():
                self.commands[event.seq] = body
            case b.RequestOpened() if body.kind != "ask":
                pass  # it belongs to a step, which asks for itself
            case b.StepStarted():
                self._begin_attempt(body)
            case b.RequestOpened() | b.TimerSet() | b.WaitOpened() | b.AgentCalled():
                self._open(body)
            case (
                b.StatePatched()
                | b.DecisionMade()
                | b.ArtifactStored()
                | b.ValueRecorded()
                | b.VersionChosen()
                | b.MessageSaid()
            ):
                self._open(body).end = event.seq
            case b.TurnStarted():
                self._forget_turn(f"{body.loop}/{body.number - 1}/")
            case b.RequestExpired():
                self.expired[body.request] = body
            case _:
                self._go_on(event, body)

    def _go_on(self, event: Event, body: AnyBody) -> None:
        match body:
            case b.StepCompleted() | b.WaitEnded():
                self._settle(event, body)
            case b.StepFailed() if body.retry_at is None:
                self._settle(event, body)
            case b.StepResolved() if body.outcome != "not_applied":
                self._settle(event, body)
            case b.StepFailed() | b.StepUnknown() | b.StepResolved():
                self.records[body.name].latest = body
            case b.RunFailed():
                self._failed = body
            case b.ResumeRequested():
                self._void()
            case _:
                pass

    def _begin_attempt(self, body: b.StepStarted) -> None:
        record = self.records.get(body.name) or self._open(body)
        record.latest = body
        self.last_number = max(self.last_number, body.number)

    def _open(self, body: Opening) -> Record:
        """A new record; one that was opened before, and ended with a failure of the run, begins anew."""
        if body.name not in self.records:
            self._scopes.setdefault(scope_of(body.name), []).append(body.name)
        record = self.records[body.name] = Record(body.name, body)
        return record

    def _settle(self, event: Event, body: Settling) -> None:
        record = self.records[body.name]
        record.settled, record.end, record.latest = body, event.seq, body

    def _void(self) -> None:
        """A resume takes back the failure that ended the run, and nothing else."""
        failed, self._failed = self._failed, None
        record = self.records.get(failed.name) if failed is not None and failed.name is not None else None
        if record is not None:
            record.settled = record.end = None

    def _forget_turn(self, path: str) -> None:
        for scope in [scope for scope in self._scopes if scope.startswith(path)]:
            for name in self._scopes.pop(scope):
                del self.records[name]


def scope_of(name: str) -> str:
    """Where a call was made: its identity without its own name."""
    return name[: name.rindex("/") + 1] if "/" in name else ""
