"""Records of the calls of an agent's code, built from the log; replay is answered from them. Pure.

A call has one record, under its name in the log: the event that opened it, what happened since, and the event that
settled it. Commands are kept by their sequence, because a wait names the command that ended it. Records of finished
turns are dropped: the code never reaches them again. So are those of completed steps whose result the code has, unless
a snapshot needs them.
"""

from collections.abc import Iterator
from typing import assert_never

from msgspec import Struct

from limpet.engine.definitions.upgrades import Versions
from limpet.events import AnyBody, Event, StatePatch
from limpet.events import bodies as b
from limpet.state.run import later

__all__ = [
    "LATE",
    "OVER_BUDGET",
    "STALE",
    "History",
    "Opening",
    "Record",
    "Settling",
    "enclosing_scopes",
    "scope_of",
]

# Under these names, after that of a step, its refusal is recorded.
STALE, OVER_BUDGET, LATE = "/stale#1", "/refused#1", "/late#1"

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


class Record(Struct, gc=False):
    """The record of one call in the log."""

    name: str
    opened: Opening
    seq: int = 0
    time: int = 0
    """Sequence and time of the event that opened the call."""
    cancelled_at: int = 0
    """Time when the code cancelled the call; 0 if it did not."""
    end: int | None = None
    """Sequence of the event that settled the call."""
    settled: Settling | None = None
    latest: AnyBody | None = None
    """For a step, its last event."""
    resolutions: int = 0
    """How often its outcome was unknown and then resolved."""
    escalations: int = 0
    """How often a person was asked about its failure."""
    ignored_return: int = 0
    """For a call whose failure a resume undid, the event of the return that no longer counts."""
    shared: bool = False
    """Whether a fork shares the call with its origin: it returns its result, and does not count for divergence."""

    @property
    def number(self) -> int | None:
        """Number of the step, if the call is one."""
        return self.opened.number if isinstance(self.opened, b.StepStarted) else None

    @property
    def args_digest(self) -> str:
        """Digest of the call's arguments, if they are compared on replay."""
        return self.opened.asked if isinstance(self.opened, b.StepStarted | b.AgentCalled) else ""

    @property
    def versions(self) -> Versions:
        """Versions of the types of the call's arguments."""
        match self.opened:
            case b.StepStarted():
                return self.opened.args.versions
            case b.AgentCalled():
                return self.opened.versions
            case _:
                return {}

    def has_other_args(self, asked: str, versions: Versions) -> bool:
        """Return whether the recorded arguments differ. They are not compared if the versions of their types differ."""
        return bool(asked and self.args_digest and asked != self.args_digest) and self.versions == versions

    @property
    def has_effect(self) -> bool:
        """Whether the call may have had an external effect, or asked a person or called an agent."""
        match self.opened:
            case b.StepStarted():
                return self.opened.effect != "none"
            case b.RequestOpened():
                return self.opened.kind == "ask"  # other requests belong to a step, which is checked itself
            case b.AgentCalled():
                return self.opened.mode != "notify"  # a notification belongs to its request, which is checked itself
            case b.MessageSaid():
                return True
            case _:
                return False


class History:
    """All records of a run, built from its log event by event."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.considered: set[str] = set()
        """Steps for which something was asked or refused before they started; some may be gone by now."""
        self.is_partial = False
        """Whether records of steps were dropped that a snapshot would need."""
        self._handed_over: set[str] = set()
        """Steps whose result the code gets as soon as their end is in the log."""
        self.commands: dict[int, AnyBody] = {}
        """Answers, signals and returns, by sequence."""
        self.expired: dict[str, b.RequestExpired] = {}
        """Requests that expired undecided, by id."""
        self.signals: dict[str, list[int]] = {}
        """Sequences of the signals that no wait has received, by name."""
        self.escalations: dict[str, list[b.RequestExpired]] = {}
        """Escalations of each request, in order."""
        self.last_number = 0
        """Highest step number that was assigned."""
        self.recorded_number = 0
        """Highest step number in the log."""
        self.last_child = 0
        """Number in the last generated id of a called run."""
        self.used: set[str] = set()
        """Requests whose approval a step has used."""
        self.flags: list[tuple[int, str, str]] = []
        """Flags that a policy raised, each with its sequence and detail."""
        self.turns: dict[str, int] = {}
        """Current turn of each loop."""
        self.deadlines: list[tuple[int, int | None]] = []
        """The deadline and its changes, each with its sequence."""
        self.patches: dict[int, StatePatch] = {}
        """Patches from outside that wait for the next turn, by sequence."""
        self.undoing: b.CompensationStarted | b.CompensationSkipped | None = None
        """The event that started the compensation."""
        self._scopes: dict[str, dict[str, None]] = {}
        """Names of the records, by scope."""
        self._failed: b.RunFailed | None = None

    @property
    def is_undoing(self) -> bool:
        """Whether a compensation has started."""
        return self.undoing is not None

    def answer_to(self, request: str) -> tuple[int, b.RequestAnswered] | None:
        """Return the answer to a request with its sequence, or None."""
        answers = ((seq, body) for seq, body in self.commands.items() if isinstance(body, b.RequestAnswered))
        return next((each for each in answers if each[1].request == request), None)

    @property
    def deadline(self) -> int | None:
        """Current deadline of the run."""
        return self.deadlines[-1][1] if self.deadlines else None

    def deadline_at(self, seq: int) -> int | None:
        """Return the deadline that the run had when an event was written."""
        return next((deadline for since, deadline in reversed(self.deadlines) if since < seq), None)

    def is_cancelled(self, name: str) -> bool:
        """Return whether the log has a cancellation of a call by the code."""
        record = self.records.get(name)
        return record is not None and record.cancelled_at > 0

    def end_of(self, name: str) -> int:
        """Return the sequence of the end of a call, or of its start if it has none."""
        record = self.records[name]
        return record.end or record.seq

    def failed_after(self, seq: int) -> Iterator[str]:
        """Yield the calls that failed after an event."""
        return (name for name, record in self.records.items() if (record.end or 0) > seq and self._is_failed(record))

    def _is_failed(self, record: Record) -> bool:
        """Return whether a call was refused, rejected, failed, or timed out."""
        settled, opened = record.settled, record.opened
        match settled:
            case None:
                return isinstance(opened, b.ValueRecorded) and record.name.endswith((STALE, OVER_BUDGET, LATE))
            case b.StepFailed() | b.StepResolved(outcome="gave_up"):
                return True
            case b.WaitEnded(how="timeout"):
                return not isinstance(opened, b.RequestOpened) or (opened.default is None and opened.kind in _RAISING)
            case b.WaitEnded(how="returned"):
                returned = self.commands.get(settled.event or 0)
                return isinstance(returned, b.AgentReturned) and returned.outcome != "completed"
            case b.WaitEnded(how="answered"):
                answer = self.commands.get(settled.event or 0)
                is_rejected = isinstance(answer, b.RequestAnswered) and answer.decision == "rejected"
                return is_rejected and isinstance(opened, b.RequestOpened) and opened.kind in _REJECTED
            case _:
                return False

    def hand_over(self, name: str) -> None:
        """Note that the code gets the result of a step once its end is in the log. Nothing asks for its record then.

        A run in turns keeps it, because its snapshots contain the records of the current turn.
        """
        if self.turns:
            return
        self.is_partial = True
        record = self.records.get(name)
        if record is None or record.settled is None:
            self._handed_over.add(name)
        else:
            self._drop(record)

    def learn_step(self, started: Event, opened: b.StepStarted, completed: Event, settled: b.StepCompleted) -> None:
        """Add the start and the end of a step that follow each other, like `learn` for both.

        A step whose result the code gets has no record.
        """
        name = opened.name
        if name in self.records or settled.name != name or opened.grant is not None:
            self.learn(started, opened)
            self.learn(completed, settled)
            return
        if name in self._handed_over:
            self._handed_over.discard(name)
        else:
            self._scopes.setdefault(scope_of(name), {})[name] = None
            self.records[name] = Record(
                name, opened, started.seq, started.time, end=completed.seq, settled=settled, latest=settled
            )
        self._number(opened.number)

    def learn(self, event: Event, body: AnyBody) -> None:  # noqa: C901, PLR0912, PLR0915 - one match over all kinds
        """Add the next event."""
        if isinstance(body, b.StepCompleted):  # checked first, because most events are about steps
            self._settle(event, body)
            return
        if isinstance(body, b.StepStarted):
            self._begin_attempt(event, body)
            return
        match body:
            # The most frequent kinds come first: each pattern before the right one takes time.
            case b.RunClaimed() | b.RunReleased() | b.RunWaiting():
                pass
            case b.RunCompleted() | b.RunCancelled() | b.CancelRequested() | b.PauseRequested():
                pass
            case b.RunCreated():
                self.deadlines.append((event.seq, body.deadline))
            case b.TurnStarted():
                self._begin_turn(body)
            case b.DecisionMade() | b.ArtifactStored() | b.ValueRecorded() | b.VersionChosen() | b.MessageSaid():
                self._open(event, body).end = event.seq
            case b.RequestAnswered() | b.AgentReturned():
                self.commands[event.seq] = body
            case b.SignalReceived():
                self.commands[event.seq] = body
                self.signals.setdefault(body.signal, []).append(event.seq)
            case b.RequestOpened():
                self._open(event, body)  # a step that waits for approval has its number
                self._number(body.number or 0)
            case b.TimerSet() | b.WaitOpened():
                self._open(event, body)
            case b.AgentCalled():
                self._call(event, body)
            case b.StatePatched():
                self._open(event, body).end = event.seq
                self.patches.pop(body.event or 0, None)
            case b.RunForked():
                self.apply_fork(body)
                self.deadlines.append((event.seq, body.deadline))
            case b.RequestExpired() if body.outcome == "escalated":
                self.escalations.setdefault(body.request, []).append(body)
            case b.RequestExpired():
                self.expired.setdefault(body.request, body)
            case b.WaitEnded():
                self._take_signal(body)
                self._settle(event, body)
                if body.how == "withdrawn":
                    self.records[body.name].cancelled_at = event.time
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
            case b.StepUnknown(reason="cancelled"):
                self._cancel(event, body)
            case b.StepUnknown():
                self.records[body.name].latest = body
            case b.RunFailed():
                self._failed = body
            case b.ResumeRequested():
                self._void_failure()
            case b.RiskFlagged():
                self.flags.append((event.seq, body.flag, body.detail))
            case b.CompensationStarted() | b.CompensationSkipped():
                self.undoing = self.undoing or body
            case b.CompensationCompleted() | b.CompensationFailed() | b.StepProgressed():
                pass
            case b.PatchReceived():
                self.patches[event.seq] = body.patch
            case b.DeadlineExtended():
                self.deadlines.append((event.seq, later(self.deadline, body.deadline)))
            case b.GrantGiven() | b.GrantRevoked() | b.BudgetReserved() | b.BudgetExtended():
                pass
            case b.ExternalRead() | b.ExternalInvalidated() | b.ScoreGiven() | b.ScoreWithdrawn() | b.RunMoved():
                pass
            case b.ConversationCreated() | b.ConversationForked() | b.ConversationCompacted() | b.MessageAdded():
                pass
            case b.AuditStarted() | b.AuditRecorded() | b.RecordCreated() | b.RecordPatched():
                pass
            case _:
                assert_never(body)

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
        if body.number > self.recorded_number:
            self._number(body.number)
        if body.grant is not None:
            self.used.add(body.grant)

    def _number(self, number: int) -> None:
        if number > self.recorded_number:
            self.recorded_number = number
            if number > self.last_number:  # noqa: PLR1730 - `max` takes four times as long, in each replayed step
                self.last_number = number

    def _open(self, event: Event, body: Opening) -> Record:
        """Add a new record. It replaces one that ended with a failure of the run."""
        return self.put(Record(body.name, body, event.seq, event.time))

    def put(self, record: Record) -> Record:
        """Add a record."""
        if record.name not in self.records:
            self._scopes.setdefault(scope_of(record.name), {})[record.name] = None
        if type(record.opened) in _BEFORE_STEPS:
            self.considered.add(record.name.rpartition("/")[0])
        self.records[record.name] = record
        return record

    def recover(self, fresh: "History") -> None:
        """Take over dropped records from a history of the same log, in the order of the log."""
        own = self.records.copy()
        self.records.clear()
        for name, record in fresh.records.items():
            self.records[name] = own.get(name, record)
        self._scopes, self.is_partial = fresh._scopes, False

    def _cancel(self, event: Event, body: b.StepUnknown) -> None:
        """Note that the code cancelled a step. Its outcome is unknown only if an attempt was running."""
        record = self.records[body.name]
        record.cancelled_at = event.time
        if isinstance(record.latest, b.StepStarted):
            record.latest = body

    def _settle(self, event: Event, body: Settling) -> None:
        record = self.records[body.name]
        record.settled, record.end, record.latest = body, event.seq, body
        if body.name in self._handed_over:
            self._handed_over.discard(body.name)
            self._drop(record)

    def _take_signal(self, ended: b.WaitEnded) -> None:
        """Remove a signal that a wait has received."""
        signal = self.commands.get(ended.event) if ended.event is not None else None
        if isinstance(signal, b.SignalReceived) and ended.event is not None:
            self.signals[signal.signal].remove(ended.event)

    def _void_failure(self) -> None:
        """After a resume, void the ends of the calls that the run failed with, and nothing else."""
        failed, self._failed = self._failed, None
        for name in () if failed is None else failed.voids:
            record = self.records.get(name)
            if record is not None:
                self._void_end(record)

    def _void_end(self, record: Record) -> None:
        """Let a call go on that failed or was cancelled.

        A step is retried under its own number and key, unless it was applied and a repeat is not safe; a request is
        asked again, unless it was answered before it was withdrawn; a timer goes on until its own time; a failed called
        run is resumed. A called run that was cancelled cannot be resumed, so the agent is called again, unless the run
        was faster.
        A call that a fork shares is made again, as the fork's own.
        """
        opened, settled = record.opened, record.settled
        if record.shared:
            self._drop(record)
        elif isinstance(opened, b.StepStarted):
            is_applied = isinstance(settled, b.StepCompleted)  # only its output is missing
            if not is_applied or opened.effect in ("none", "idempotent"):
                self._reopen(record)
        elif isinstance(opened, b.AgentCalled) and isinstance(settled, b.WaitEnded):
            if settled.how != "withdrawn":
                record.ignored_return = settled.event or self._failed_return(opened.run)
                self._reopen(record)
            elif any(returned.outcome == "completed" for _, returned in self._returns(opened.run)):
                self._reopen(record)
            else:
                self._drop(record)
        elif isinstance(opened, b.TimerSet) or self._is_answered(record):
            self._reopen(record)
        else:
            self._drop(record)

    def _is_answered(self, record: Record) -> bool:
        """Return whether a request was answered, and not rejected, before the code withdrew it."""
        opened, settled = record.opened, record.settled
        if not isinstance(opened, b.RequestOpened) or not isinstance(settled, b.WaitEnded):
            return False
        answer = self.answer_to(opened.request) if settled.how == "withdrawn" else None
        return answer is not None and answer[1].decision != "rejected"

    def _reopen(self, record: Record) -> None:
        record.settled = record.end = None
        record.cancelled_at = 0

    def _returns(self, run: str) -> Iterator[tuple[int, b.AgentReturned]]:
        """Yield the returns of a called run, each with its sequence."""
        for seq, body in self.commands.items():
            if isinstance(body, b.AgentReturned) and body.run == run:
                yield seq, body

    def _failed_return(self, run: str) -> int:
        """Return the event with which a run failed while its caller no longer waited for it, or 0."""
        return max((seq for seq, body in self._returns(run) if body.outcome != "completed"), default=0)

    def _drop(self, record: Record) -> None:
        del self.records[record.name]
        del self._scopes[scope_of(record.name)][record.name]

    def _begin_turn(self, body: b.TurnStarted) -> None:
        """Drop the records of the previous turn, and the loops inside it."""
        self.turns = {loop: number for loop, number in self.turns.items() if not loop.startswith(f"{body.loop}/")}
        self.turns[body.loop] = body.number
        path = f"{body.loop}/{body.number - 1}/"
        for scope in [scope for scope in self._scopes if scope.startswith(path)]:
            for name in self._scopes.pop(scope):
                self._forget(self.records.pop(name))

    def apply_fork(self, body: b.RunForked) -> None:
        """Drop calls that were open at the fork point, and replace results that the fork overrides."""
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
        """Return whether the code got the end of a call. A request that belongs to a step counts with the step."""
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
        """Return whether a request ended without an approval, and the code got that."""
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


# Requests whose rejection raises an error in the code, and those whose expiration does.
_REJECTED = ("approval", "budget")
_RAISING = ("ask", *_REJECTED)
# Events that may belong to a step that has not started.
_BEFORE_STEPS = (b.RequestOpened, b.ValueRecorded)


def scope_of(name: str) -> str:
    """Return the scope of a call: the part of its name in the log up to the last slash."""
    return name[: name.rindex("/") + 1] if "/" in name else ""


def enclosing_scopes(scope: str) -> Iterator[str]:
    """Yield a scope and all scopes around it."""
    yield scope
    while scope:
        scope = scope_of(scope.removesuffix("/"))
        yield scope
