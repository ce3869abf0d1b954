"""The steps, requests and waits of a run, as its log tells them: one reading, with one match over all kinds of events.

Everything that shows steps takes them from here: reports, timelines, briefs, queries across runs, comparisons, and the
list of effects to compensate. `Fold` keeps only what is open; a `LogView` also keeps what was settled.

The events need not be complete. Given only the events of some steps (`Store.read_steps`), a view has exactly these
steps, as the whole log would show them. Values are payloads: large ones stay references to blobs.
"""

from typing import Literal, assert_never

from msgspec.structs import replace

from limpet.events import AnyBody, Event, Failure, Payload, Spent
from limpet.events import bodies as b
from limpet.events.parts import Part

__all__ = [
    "SETTLED",
    "AttemptStatus",
    "AttemptView",
    "CompensationView",
    "LogView",
    "RequestView",
    "StepStatus",
    "StepView",
    "WaitView",
    "step_of",
]

StepStatus = Literal["running", "retrying", "escalated", "unknown", "completed", "failed", "undone"]
AttemptStatus = Literal["running", "completed", "failed", "unknown", "interrupted"]
SETTLED: frozenset[StepStatus] = frozenset({"completed", "failed", "undone"})
# The step of events that concern all steps of a run.
ALL_STEPS = 0
# Keys of waits that have no name in the log.
WORKER, OPERATOR = "worker", "operator"


class AttemptView(Part, frozen=True, kw_only=True):
    """One attempt of a step."""

    number: int
    """Number of the attempt, from 1. It starts again if the run failed and was resumed."""
    seq: int
    """Sequence of the event that started it."""
    started: int
    ended: int | None = None
    status: AttemptStatus = "running"
    """`interrupted` if its worker died or lost the run, and repeating it was safe."""
    error: Failure | None = None
    reason: str = ""
    """Why the outcome is unknown: `died`, `timeout`, `cancelled`, `lost` or `error`."""
    retry_at: int | None = None
    """Time of the next attempt."""
    outcome: Literal["applied", "not_applied", "gave_up"] | None = None
    """The actual outcome, if it was unknown at first."""
    found_by: Literal["verify", "person", "declared", "late"] | None = None
    """How that was found out."""
    spent: Spent | None = None


class CompensationView(Part, frozen=True, kw_only=True):
    """The compensation of a step."""

    status: Literal["running", "failed", "completed", "skipped"]
    attempts: int
    started: int
    ended: int | None = None
    error: Failure | None = None
    """Failure of the last attempt, if no event followed it."""
    retry_at: int | None = None
    """When the next attempt after this failure is due; None if a person decides."""
    reason: str = ""
    """Why it was skipped."""


class StepView(Part, frozen=True, kw_only=True):
    """A step, with all its attempts."""

    number: int
    name: str
    """Identity in the log: scopes, name and occurrence."""
    tool: str
    kind: Literal["tool", "model", "read"]
    effect: Literal["none", "idempotent", "once", "transaction"]
    status: StepStatus
    args: Payload
    """The arguments as used; a person may have edited them."""
    result: Payload | None = None
    error: Failure | None = None
    """The last error, even if a later attempt succeeded."""
    attempts: tuple[AttemptView, ...]
    seq: int
    """Sequence of the event that started it."""
    end: int | None = None
    """Sequence of the event that settled it."""
    key: str = ""
    """The idempotency key, the same on every attempt."""
    item: int | None = None
    """Index of the plan's current item when the step started."""
    risk: str | None = None
    grant: str | None = None
    """The request or standing approval that the last attempt used."""
    granted_by: str = ""
    note: str = ""
    """The tool's last progress note."""
    fraction: float | None = None
    """The progress that the tool last reported, from 0 to 1."""
    partial: Payload | None = None
    """The last partial value that the tool reported."""
    stubbed: bool = False
    made_up: bool = False
    late: bool = False
    """Whether the result arrived after the worker had lost the run."""
    shared: bool = False
    """Whether a fork shares the step with its origin."""
    edited: bool = False
    """Whether a fork replaced the result."""
    compensation: CompensationView | None = None

    @property
    def started(self) -> int:
        """Time when the first attempt started."""
        return self.attempts[0].started

    @property
    def ended(self) -> int | None:
        """Time when the step was settled or undone; None while it is open."""
        if self.compensation is not None and self.compensation.status == "completed":
            return self.compensation.ended
        return self.attempts[-1].ended if self.status in SETTLED else None

    @property
    def spent(self) -> Spent:
        """Usage of all attempts."""
        used = [attempt.spent for attempt in self.attempts if attempt.spent is not None]
        fields = Spent.__struct_fields__
        return Spent(**{field: sum(getattr(each, field) for each in used) for field in fields})


class RequestView(Part, frozen=True, kw_only=True):
    """A request to a person, and its decision."""

    request: str
    name: str
    kind: str
    question: str
    to: tuple[str, ...]
    opened: int
    seq: int
    status: Literal["open", "answered", "approved", "rejected", "expired", "withdrawn"] = "open"
    step: int | None = None
    """The step that it is about."""
    tool: str | None = None
    args: Payload | None = None
    risk: str | None = None
    expires: int | None = None
    decided: int | None = None
    by: str = ""
    via: str = ""
    because: str = ""
    answer: Payload | None = None
    edited: Payload | None = None
    """Arguments that the person edited."""


class WaitView(Part, frozen=True, kw_only=True):
    """A time during which the run waited."""

    what: Literal["time", "signal", "person", "run", "worker", "operator"]
    key: str
    """The signal, request or run that it waited for; else the identity of the wait."""
    started: int
    seq: int
    wake: int | None = None
    ended: int | None = None


def step_of(body: AnyBody) -> int | None:
    """Return the number of the step whose view an event changes, 0 for an event that concerns all, None for others.

    Stores index events by this number.
    """
    if isinstance(body, _OF_ONE_STEP):
        return body.number
    return ALL_STEPS if isinstance(body, b.RunForked) else None


_OF_ONE_STEP = (
    b.StepStarted,
    b.StepCompleted,
    b.StepFailed,
    b.StepProgressed,
    b.StepUnknown,
    b.StepResolved,
    b.CompensationStarted,
    b.CompensationCompleted,
    b.CompensationFailed,
    b.CompensationSkipped,
    b.RequestOpened,
)


class LogView:
    """The steps, requests and waits of a log, built event by event."""

    def __init__(self) -> None:
        self.steps: dict[int, StepView] = {}
        """Steps by number, in the order in which they started."""
        self.requests: dict[str, RequestView] = {}
        self.waits: list[WaitView] = []
        """Waits in the order in which they started."""
        self.ended: int | None = None
        """When the run ended; None if it has not, or was resumed."""
        self._open_waits: dict[str, int] = {}
        """Indexes of the waits that have not ended, by key."""
        self._is_parked = False

    def add(self, event: Event, body: AnyBody) -> None:  # noqa: C901, PLR0912, PLR0915 - one match over all kinds
        """Add the next event."""
        match body:
            case b.StepStarted():
                self._step_started(event, body)
            case b.StepProgressed():
                self._progressed(body)
            case b.StepCompleted():
                self._attempt_ended(event, body.number, "completed", spent=body.spent, error=body.unavailable)
                self._change(body.number, status="completed", result=body.output, end=event.seq)
            case b.StepFailed():
                self._step_failed(event, body)
            case b.StepUnknown():
                self._attempt_ended(
                    event, body.number, "unknown", error=body.failure, reason=body.reason, spent=body.spent
                )
                self._change(body.number, status="unknown")
            case b.StepResolved():
                self._step_resolved(event, body)
            case b.CompensationStarted():
                self._compensation_started(event, body)
            case b.CompensationFailed():
                changes = {"attempts": body.attempt, "error": body.failure, "retry_at": body.retry_at}
                self._compensate(event, body.number, status="failed", **changes)
            case b.CompensationCompleted():
                self._compensate(event, body.number, status="completed", attempts=body.attempt)
                self._change(body.number, status="undone")
            case b.CompensationSkipped():
                self._compensate(event, body.number, status="skipped", reason=body.reason)
            case b.RunForked():
                self._forked(event, body)
            case b.RunCreated() | b.RunReleased() | b.ResumeRequested():
                self.ended = None
                self._wait(event, WORKER, "worker")
            case b.RunClaimed():
                self._is_parked = False
                self._end_wait(event, WORKER)
                self._end_wait(event, OPERATOR)
            case b.RunWaiting():
                self._is_parked = True
                if any(wait.what == OPERATOR for wait in body.waits):
                    self._wait(event, OPERATOR, "operator", wake=body.wake)
            case b.RunCompleted() | b.RunFailed() | b.RunCancelled():
                self._is_parked, self.ended = False, event.time
                for key in list(self._open_waits):
                    self._end_wait(event, key)
                for request in [each for each in self.requests.values() if each.status == "open"]:
                    self.requests[request.request] = replace(request, status="withdrawn", decided=event.time)
            case b.TimerSet():
                self._wait(event, body.name, "time", wake=body.wake)
            case b.WaitOpened():
                self._wait(event, body.name, "signal", key=body.signal, wake=body.expires)
            case b.RequestOpened():
                self._request_opened(event, body)
            case b.RequestAnswered():
                self._decide(
                    event,
                    body.request,
                    status=body.decision,
                    by=body.by,
                    via=body.via,
                    because=body.because,
                    answer=body.answer,
                    edited=body.args,
                )
            case b.RequestExpired():
                self._request_expired(event, body)
            case b.AgentCalled():
                if body.mode == "call":
                    self._wait(event, body.run, "run")
            case b.AgentReturned():
                self._end_wait(event, body.run)
            case b.WaitEnded():
                self._end_wait(event, body.name)
                if body.request is not None:
                    self._decide(event, body.request, status="withdrawn")
            case (
                b.StatePatched()
                | b.DecisionMade()
                | b.TurnStarted()
                | b.ValueRecorded()
                | b.VersionChosen()
                | b.ArtifactStored()
                | b.RiskFlagged()
                | b.GrantGiven()
                | b.GrantRevoked()
                | b.SignalReceived()
                | b.MessageSaid()
                | b.ExternalRead()
                | b.ExternalInvalidated()
                | b.BudgetReserved()
                | b.BudgetExtended()
                | b.DeadlineExtended()
                | b.PatchReceived()
                | b.CancelRequested()
                | b.PauseRequested()
                | b.RunMoved()
                | b.ScoreGiven()
                | b.ScoreWithdrawn()
                | b.ConversationCreated()
                | b.ConversationForked()
                | b.ConversationCompacted()
                | b.MessageAdded()
                | b.AuditStarted()
                | b.AuditRecorded()
                | b.RecordCreated()
                | b.RecordPatched()
            ):
                pass
            case _:
                assert_never(body)

    # Steps

    def _step_started(self, event: Event, body: b.StepStarted) -> None:
        before = self.steps.get(body.number)
        earlier = () if before is None else before.attempts
        if earlier and earlier[-1].status == "running":
            earlier = (*earlier[:-1], replace(earlier[-1], status="interrupted", ended=event.time))
        self.steps[body.number] = StepView(
            number=body.number,
            name=body.name,
            tool=body.tool,
            kind=body.kind,
            effect=body.effect,
            status="running",
            args=body.args,
            error=None if before is None else before.error,
            attempts=(*earlier, AttemptView(number=body.attempt, seq=event.seq, started=event.time)),
            seq=event.seq if before is None else before.seq,
            key=body.key,
            item=body.item if before is None else before.item,
            risk=body.risk,
            grant=body.grant,
            granted_by=body.granted_by,
            partial=None if before is None else before.partial,
            stubbed=body.stubbed,
            made_up=body.made_up,
        )

    def _step_failed(self, event: Event, body: b.StepFailed) -> None:
        status: StepStatus = "failed" if body.is_final else "escalated" if body.escalated else "retrying"
        self._attempt_ended(event, body.number, "failed", error=body.failure, retry_at=body.retry_at, spent=body.spent)
        self._change(body.number, status=status, end=event.seq if body.is_final else None)

    def _step_resolved(self, event: Event, body: b.StepResolved) -> None:
        step = self.steps.get(body.number)
        if step is None:
            return
        *before, last = step.attempts
        applied = body.outcome == "applied"
        resolved = replace(
            last,
            status="completed" if applied else "failed" if body.outcome == "not_applied" else "unknown",
            ended=event.time if last.ended is None or body.outcome != "not_applied" else last.ended,
            outcome=body.outcome,
            found_by=body.how,
            error=body.failure or last.error,
        )
        is_settled = body.outcome != "not_applied"
        self.steps[body.number] = replace(
            step,
            attempts=(*before, resolved),
            status="completed" if applied else "failed" if is_settled else "retrying",
            result=body.output or step.result,
            error=body.failure or step.error,
            end=event.seq if is_settled else None,
            late=body.how == "late",
        )

    def _progressed(self, body: b.StepProgressed) -> None:
        step = self.steps.get(body.number)
        if step is not None:
            fraction = step.fraction if body.fraction is None else body.fraction
            self._change(body.number, note=body.note, fraction=fraction, partial=body.partial or step.partial)

    def _attempt_ended(
        self, event: Event, number: int, status: AttemptStatus, *, error: Failure | None = None, **more: object
    ) -> None:
        step = self.steps.get(number)
        if step is not None:
            *before, last = step.attempts
            ended = replace(last, status=status, ended=event.time, error=error, **more)
            self.steps[number] = replace(step, attempts=(*before, ended), error=error or step.error)

    def _change(self, number: int, **changes: object) -> None:
        if number in self.steps:
            self.steps[number] = replace(self.steps[number], **changes)

    def _compensation_started(self, event: Event, body: b.CompensationStarted) -> None:
        step = self.steps.get(body.number)
        if step is not None:
            started = event.time if step.compensation is None else step.compensation.started
            self._change(
                body.number,
                compensation=CompensationView(status="running", attempts=body.attempt, started=started),
            )

    def _compensate(self, event: Event, number: int, **changes: object) -> None:
        step = self.steps.get(number)
        if step is not None:
            before = step.compensation or CompensationView(status="running", attempts=0, started=event.time)
            changes = {"error": None, "retry_at": None, **changes}
            self._change(number, compensation=replace(before, ended=event.time, **changes))

    def _forked(self, event: Event, body: b.RunForked) -> None:
        """Keep the steps that were settled; nothing else of the origin is shared."""
        self.steps = {
            number: replace(step, shared=True, compensation=None, status=_status_before_undoing(step))
            for number, step in self.steps.items()
            if step.status in SETTLED
        }
        for number, output in body.results.items():
            self._change(int(number), result=output, status="completed", edited=True)
        self.requests, self.waits, self._open_waits = {}, [], {}
        self._is_parked, self.ended = False, None
        self._wait(event, WORKER, "worker")

    # Requests and waits

    def _request_opened(self, event: Event, body: b.RequestOpened) -> None:
        self.requests[body.request] = RequestView(
            request=body.request,
            name=body.name,
            kind=body.kind,
            question=body.question,
            to=body.to,
            opened=event.time,
            seq=event.seq,
            step=body.number,
            tool=body.tool,
            args=body.args,
            risk=body.risk,
            expires=body.expires,
        )
        self._wait(event, body.request, "person", wake=body.expires)

    def _request_expired(self, event: Event, body: b.RequestExpired) -> None:
        request = self.requests.get(body.request)
        if body.outcome != "escalated":
            self._decide(event, body.request, status="expired")
        elif request is not None:
            self.requests[body.request] = replace(request, to=body.to, expires=body.expires)

    def _decide(self, event: Event, request: str, **decision: object) -> None:
        """Close a request. The first decision is final."""
        self._end_wait(event, request)
        found = self.requests.get(request)
        if found is not None and found.status == "open":
            self.requests[request] = replace(found, decided=event.time, **decision)

    def _wait(
        self,
        event: Event,
        name: str,
        what: Literal["time", "signal", "person", "run", "worker", "operator"],
        *,
        key: str | None = None,
        wake: int | None = None,
    ) -> None:
        if name not in self._open_waits:
            self._open_waits[name] = len(self.waits)
            self.waits.append(
                WaitView(what=what, key=name if key is None else key, started=event.time, seq=event.seq, wake=wake)
            )

    def _end_wait(self, event: Event, name: str) -> None:
        """End a wait. A run that no process drives then waits for a worker."""
        place = self._open_waits.pop(name, None)
        if place is not None:
            self.waits[place] = replace(self.waits[place], ended=event.time)
            if self._is_parked:
                self._wait(event, WORKER, "worker")


def _status_before_undoing(step: StepView) -> StepStatus:
    """Return the status without the compensation, which belongs to the origin."""
    return "completed" if step.attempts[-1].status == "completed" else "failed"
