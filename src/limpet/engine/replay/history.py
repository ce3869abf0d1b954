"""What the log says about each call of an agent's code: the memory that replay answers from. Pure.

A verb has one record, under its identity: the event that opened it, what happened to it since, and the event that
settled it. Commands from outside are kept by their place in the log, because a wait names the one that ended it. What
happened in turns that are over is forgotten: nobody comes to it again.
"""

from dataclasses import dataclass

from limpet.engine.definitions.upgrades import Versions
from limpet.events import AnyBody, Event
from limpet.events import bodies as b

__all__ = ["History", "Opening", "Record", "Settling", "scope_of"]

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
    seq: int = 0
    time: int = 0
    """Where in the log and when it was opened."""
    left: int = 0
    """When the code cancelled it, if it did."""
    end: int | None = None
    """The sequence of the event that settled it."""
    settled: Settling | None = None
    latest: AnyBody | None = None
    """Of a step: the last thing that happened to it."""
    resolutions: int = 0
    """How often it was unknown, and settled."""
    escalations: int = 0
    """How often a person was asked what now."""
    since: int = 0
    """Of a call that a resume took back: the return that does not count any more."""
    shared: bool = False
    """It was made before this run branched off another: it answers, and nothing is refused because of it."""

    @property
    def number(self) -> int | None:
        """Of a step."""
        return self.opened.number if isinstance(self.opened, b.StepStarted) else None

    @property
    def asked(self) -> str:
        """The digest of what the code asked with, where it counts."""
        return self.opened.asked if isinstance(self.opened, b.StepStarted | b.AgentCalled) else ""

    @property
    def versions(self) -> Versions:
        """Those of the types of what the code asked with."""
        match self.opened:
            case b.StepStarted():
                return self.opened.args.versions
            case b.AgentCalled():
                return self.opened.versions
            case _:
                return {}

    def is_other(self, asked: str, versions: Versions) -> bool:
        """Whether it was asked with other arguments; those whose types have moved on since are not compared."""
        return bool(asked and self.asked and asked != self.asked) and self.versions == versions

    @property
    def has_effect(self) -> bool:
        """Whether something outside may have happened, or somebody was asked or called."""
        match self.opened:
            case b.StepStarted():
                return self.opened.effect != "none"
            case b.RequestOpened():
                return self.opened.kind == "ask"  # the others belong to a step, which asks for itself
            case b.AgentCalled():
                return self.opened.mode != "notify"  # the request itself is asked for
            case b.MessageSaid():
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
        self.signals: dict[str, list[int]] = {}
        """Signals that no wait has taken, by name, each by its place in the log."""
        self.escalations: dict[str, list[b.RequestExpired]] = {}
        """How a request went on from person to person."""
        self.last_number = 0
        """The highest number that a step was given."""
        self.recorded_number = 0
        """The highest number of a step in the log."""
        self.last_child = 0
        """The number of the last run that was named after this one."""
        self.used: set[str] = set()
        """Requests whose approval a step has used."""
        self.flags: list[tuple[int, str]] = []
        """Flags that a policy raised, each with its place in the log."""
        self.turns: dict[str, int] = {}
        """The current turn of each loop."""
        self.undoing: b.CompensationStarted | b.CompensationSkipped | None = None
        """How a compensation began."""
        self._scopes: dict[str, list[str]] = {}
        self._failed: b.RunFailed | None = None

    @property
    def is_undoing(self) -> bool:
        """Whether a compensation has begun."""
        return self.undoing is not None

    def answer_to(self, request: str) -> tuple[int, b.RequestAnswered] | None:
        """What was decided of a request, and its place in the log."""
        answers = ((seq, body) for seq, body in self.commands.items() if isinstance(body, b.RequestAnswered))
        return next((each for each in answers if each[1].request == request), None)

    def is_last(self, name: str) -> bool:
        """Whether nothing was begun after this call had ended."""
        end = self.records[name].end if name in self.records else None
        return end is not None and all(record.seq <= end for record in self.records.values())

    def learn(self, event: Event, body: AnyBody) -> None:  # noqa: C901, PLR0912 - one match
        """Take in the next event."""
        if isinstance(body, b.StepCompleted):  # most are steps
            self._settle(event, body)
            return
        if isinstance(body, b.StepStarted):
            self._begin_attempt(event, body)
            return
        match body:
            case b.RequestAnswered() | b.AgentReturned():
                self.commands[event.seq] = body
            case b.SignalReceived():
                self.commands[event.seq] = body
                self.signals.setdefault(body.signal, []).append(event.seq)
            case b.RequestOpened():
                self._open(event, body)  # a step that waits for a word has its number
                self._number(body.number or 0)
            case b.TimerSet() | b.WaitOpened():
                self._open(event, body)
            case b.AgentCalled():
                self._call(event, body)
            case (
                b.StatePatched()
                | b.DecisionMade()
                | b.ArtifactStored()
                | b.ValueRecorded()
                | b.VersionChosen()
                | b.MessageSaid()
            ):
                self._open(event, body).end = event.seq
            case b.TurnStarted():
                self._begin_turn(body)
            case b.RunForked():
                self.branch_off(body)
            case b.RequestExpired() if body.outcome == "escalated":
                self.escalations.setdefault(body.request, []).append(body)
            case b.RequestExpired():
                self.expired.setdefault(body.request, body)
            case _:
                self._go_on(event, body)

    def _go_on(self, event: Event, body: AnyBody) -> None:  # noqa: C901, PLR0912 - one match
        match body:
            case b.WaitEnded():
                self._take_signal(body)
                self._settle(event, body)
                if body.how == "withdrawn":
                    self.records[body.name].left = event.time
            case b.StepFailed() if body.is_final:
                self._settle(event, body)
            case b.StepFailed():
                self.records[body.name].latest = body
                self.records[body.name].escalations += body.escalated
            case b.StepResolved():
                self.records[body.name].latest = body
                self.records[body.name].resolutions += 1
                if body.outcome != "not_applied":
                    self._settle(event, body)
            case b.StepUnknown():
                self.records[body.name].latest = body
                if body.reason == "cancelled":
                    self.records[body.name].left = event.time
            case b.RunFailed():
                self._failed = body
            case b.ResumeRequested():
                self._void()
            case b.RiskFlagged():
                self.flags.append((event.seq, body.flag))
            case b.CompensationStarted() | b.CompensationSkipped():
                self.undoing = self.undoing or body
            case _:
                pass

    def _call(self, event: Event, body: b.AgentCalled) -> None:
        record = self._open(event, body)
        number = body.run.rpartition("-")[2]
        if body.run.endswith(f".{body.agent}-{number}") and number.isdecimal():
            self.last_child = max(self.last_child, int(number))
        if body.mode in ("start", "notify"):
            record.end = event.seq

    def _begin_attempt(self, event: Event, body: b.StepStarted) -> None:
        record = self.records.get(body.name) or self._open(event, body)
        record.latest = body
        self._number(body.number)
        if body.grant is not None:
            self.used.add(body.grant)

    def _number(self, number: int) -> None:
        self.recorded_number = max(self.recorded_number, number)
        self.last_number = max(self.last_number, number)

    def _open(self, event: Event, body: Opening) -> Record:
        """A new record; one that was opened before, and ended with a failure of the run, begins anew."""
        return self.put(Record(body.name, body, event.seq, event.time))

    def put(self, record: Record) -> Record:
        """Keep a record."""
        if record.name not in self.records:
            self._scopes.setdefault(scope_of(record.name), []).append(record.name)
        self.records[record.name] = record
        return record

    def _settle(self, event: Event, body: Settling) -> None:
        record = self.records[body.name]
        record.settled, record.end, record.latest = body, event.seq, body

    def _take_signal(self, ended: b.WaitEnded) -> None:
        """A signal that a wait took is not there for others."""
        signal = self.commands.get(ended.event) if ended.event is not None else None
        if isinstance(signal, b.SignalReceived) and ended.event is not None:
            self.signals[signal.signal].remove(ended.event)

    def _void(self) -> None:
        """A resume takes back the failure that ended the run, and nothing else.

        A step is tried anew under its own number and key; who was asked is asked anew; a run that was called, and has
        failed, goes on. What a fork shares it did not do itself: it does it anew, as its own.
        """
        failed, self._failed = self._failed, None
        record = self.records.get(failed.name) if failed is not None and failed.name is not None else None
        if record is None:
            return
        if record.shared:
            self._drop(record)
        elif isinstance(record.opened, b.StepStarted):
            record.settled = record.end = None
        elif isinstance(record.opened, b.AgentCalled) and isinstance(record.settled, b.WaitEnded):
            record.since = record.settled.event or 0
            record.settled = record.end = None
        else:
            self._drop(record)

    def _drop(self, record: Record) -> None:
        del self.records[record.name]
        self._scopes[scope_of(record.name)].remove(record.name)

    def _begin_turn(self, body: b.TurnStarted) -> None:
        """What happened in the turn before is over, and so are the loops inside it."""
        self.turns = {loop: number for loop, number in self.turns.items() if not loop.startswith(f"{body.loop}/")}
        self.turns[body.loop] = body.number
        path = f"{body.loop}/{body.number - 1}/"
        for scope in [scope for scope in self._scopes if scope.startswith(path)]:
            for name in self._scopes.pop(scope):
                self._forget(self.records.pop(name))

    def branch_off(self, body: b.RunForked) -> None:
        """What was under way at the cut is not part of what is shared; some results are others from here on."""
        kept = [record for record in self.records.values() if self._is_shared(record)]
        self.records, self._scopes = {}, {}
        for record in kept:
            record.shared = True
            output = body.results.get(str(record.number))
            if output is not None and record.number is not None:
                record.settled = record.latest = b.StepCompleted(
                    name=record.name, number=record.number, attempt=1, output=output
                )
            self.put(record)
        self.last_number = self.recorded_number = body.step
        self._failed = self.undoing = None

    def _is_shared(self, record: Record) -> bool:
        """Whether the code was told how a call ended; a word for a step counts with that step."""
        if record.end is None or (isinstance(record.settled, b.WaitEnded) and record.settled.how == "withdrawn"):
            return False
        owner = self.records.get(record.name.rpartition("/")[0])
        match record.opened:
            case b.RequestOpened() if record.opened.kind != "ask":
                return self._is_shared(owner) if owner is not None else self._is_refused(record)
            case b.AgentCalled() if record.opened.mode == "notify":
                return owner is not None and self._is_shared(owner)
            case b.ValueRecorded() if owner is not None:
                return self._is_shared(owner)
            case _:
                return True

    def _is_refused(self, record: Record) -> bool:
        """Whether a request ended without a yes, which the code was told."""
        if not isinstance(record.settled, b.WaitEnded) or record.settled.how == "withdrawn":
            return False
        answer = self.commands.get(record.settled.event or 0)
        return not isinstance(answer, b.RequestAnswered) or answer.decision == "rejected"

    def _forget(self, record: Record) -> None:
        if isinstance(record.settled, b.WaitEnded) and record.settled.event is not None:
            self.commands.pop(record.settled.event, None)
        if isinstance(record.opened, b.RequestOpened):
            self.expired.pop(record.opened.request, None)
            self.escalations.pop(record.opened.request, None)


def scope_of(name: str) -> str:
    """Where a call was made: its identity without its own name."""
    return name[: name.rindex("/") + 1] if "/" in name else ""
