"""Compute a run's state from its log: one fold, with one match that is closed by `assert_never`.

`Fold` is a mutable builder with one short method per event that changes state, frozen at the end: pure from outside,
linear inside. A new kind of event does not type-check until it is handled here.
"""

from collections import deque
from collections.abc import Iterable
from typing import assert_never

from msgspec.structs import asdict, replace

from limpet.errors import InvalidPatch, Tampered
from limpet.events import AnyBody, Event, Failure, Spent, StatePatch, Wait, inline
from limpet.events import bodies as b
from limpet.state.agent import AgentState
from limpet.state.patch import Working
from limpet.state.run import (
    Child,
    CommandKind,
    Counters,
    Decision,
    FactAge,
    ForkPoint,
    Grant,
    ItemStart,
    LastCommand,
    OpenRequest,
    OpenStep,
    Position,
    ReceivedPatch,
    RunState,
    Signal,
    Status,
    TimedWait,
    later,
    since,
)

__all__ = ["PAUSED", "QUARANTINED", "Fold", "fold"]

KEPT_DECISIONS = 16
KEPT_ERRORS = 8
BUILT_IN = "builtin"
"""How people name the engine of a run that the workers of Limpet drive."""
PAUSED = Wait(what="operator", key="paused")
QUARANTINED = Wait(what="operator", key="quarantined")
_NOTHING = RunState(
    run="",
    agent="",
    agent_version="",
    status="pending",
    position=Position(seq=0, step=0),
    input=inline(None),
    created=0,
    updated=0,
    working=AgentState(),
    spent=Spent(),
    counters=Counters(),
)


def fold(events: Iterable[Event], state: RunState | None = None) -> RunState:
    """Return the state after the events, from the start of a log or from an earlier state of it."""
    building = Fold(state)
    for event in events:
        building.add(event, event.decode())
    return building.freeze()


class Fold:
    """A run's state under construction."""

    def __init__(self, state: RunState | None = None) -> None:
        self._begun = state is not None
        self._base = state = state or _NOTHING
        self._working = Working(state.working)
        self._seq, self._step, self._time = state.position.seq, state.position.step, state.updated
        self._status: Status = state.status
        self._waits, self._wake = state.waits, state.wake
        self._output, self._error, self._error_step = state.output, state.error, state.error_step
        self.cancel: str | None = state.cancel
        """Reason of a requested cancellation, or None."""
        self.pausing = state.pausing
        """Whether a pause was requested."""
        self._fence, self._worker = state.fence, state.worker
        self._deaths, self._alone, self._solo = state.deaths, state.alone, state.solo
        self._quarantines = state.quarantines
        self._steps = {step.number: step for step in state.steps}
        self._requests = {request.request: request for request in state.requests}
        self._grants = {grant.grant: grant for grant in state.grants}
        self._open_waits = {wait.name: wait for wait in state.open_waits}
        self._children = {child.run: child for child in state.children}
        self._signals = {signal.seq: signal for signal in state.signals}
        self._decisions = deque(state.decisions, maxlen=KEPT_DECISIONS)
        self._turns, self._reads = dict(state.turns), dict(state.reads)
        self._item_start = state.item_start
        self._ages, self._last_read = dict(state.fact_ages), state.last_read
        self._received = {each.seq: each for each in state.patches}
        self._commands = dict(state.commands)
        self._spent = asdict(state.spent)
        self._told = state.told
        self._counters = asdict(state.counters)

    def freeze(self) -> RunState:
        """Return the current state. Raises Tampered if there was no event."""
        if not self._begun:
            raise Tampered(run="", seq=0, reason="the log is empty")
        working = self._working.freeze()
        return replace(
            self._base,
            status=self._status,
            position=self._position(working),
            updated=self._time,
            waits=self._waits,
            wake=self._wake,
            output=self._output,
            error=self._error,
            error_step=self._error_step,
            cancel=self.cancel,
            pausing=self.pausing,
            fence=self._fence,
            worker=self._worker,
            deaths=self._deaths,
            alone=self._alone,
            solo=self._solo,
            quarantines=self._quarantines,
            working=working,
            steps=tuple(self._steps.values()),
            requests=tuple(self._requests.values()),
            grants=tuple(self._grants.values()),
            open_waits=tuple(self._open_waits.values()),
            children=tuple(self._children.values()),
            signals=tuple(self._signals.values()),
            decisions=tuple(self._decisions),
            turns=dict(self._turns),
            reads=dict(self._reads),
            item_start=self._item_start,
            fact_ages=dict(self._ages),
            last_read=self._last_read,
            patches=tuple(self._received.values()),
            commands=dict(self._commands),
            spent=Spent(**self._spent),
            told=self._told,
            counters=Counters(**self._counters),
        )

    # Values that every step needs, available without freezing the whole state

    @property
    def status(self) -> Status:
        """Status of the run."""
        return self._status

    @property
    def working(self) -> Working:
        """The agent's working state, read-only."""
        return self._working

    @property
    def step(self) -> int:
        """Highest number of a step."""
        return self._step

    @property
    def since(self) -> int | None:
        """First step of the plan's current item; None without a plan, or before the item's first step."""
        return since(self._item_start, self._working.position)

    @property
    def time(self) -> int:
        """Time of the last event."""
        return self._time

    @property
    def deaths(self) -> int:
        """Consecutive worker deaths since a step or wait was settled."""
        return self._deaths

    @property
    def solo(self) -> int:
        """Number of workers that died while this run was their only suspect."""
        return self._solo

    @property
    def quarantines(self) -> int:
        """Number of quarantines since a step or wait was settled."""
        return self._quarantines

    @property
    def spent(self) -> Spent:
        """Usage so far."""
        return Spent(**self._spent)

    @property
    def owed(self) -> Spent:
        """Usage since the last report to the caller."""
        return Spent(**{field: number - getattr(self._told, field) for field, number in self._spent.items()})

    @property
    def grants(self) -> tuple[Grant, ...]:
        """Approvals that can still be used."""
        return tuple(self._grants.values())

    @property
    def reserved(self) -> dict[int, Spent]:
        """Budget reserved for running steps, by step number."""
        return {number: step.reserved for number, step in self._steps.items() if step.reserved is not None}

    def is_asking(self, request: str) -> bool:
        """Return whether a request is open."""
        return request in self._requests

    def is_waiting(self, name: str) -> bool:
        """Return whether a timer or a wait for a signal is open."""
        return name in self._open_waits

    @property
    def children(self) -> tuple[Child, ...]:
        """Runs that were called and have not returned."""
        return tuple(self._children.values())

    def add(self, event: Event, body: AnyBody) -> None:
        """Apply the next event of the log."""
        if event.seq != self._seq + 1:
            raise Tampered(run=event.run, seq=event.seq, reason=f"follows event {self._seq}")
        if not self._begun and not isinstance(body, b.RunCreated):
            raise Tampered(run=event.run, seq=event.seq, reason=f"a run's log cannot start with {event.kind}")
        if self._status == "running" and not isinstance(body, b.RunForked):
            self._spent["wall_us"] += event.time - self._time
        self._seq, self._time, self._fence = event.seq, event.time, event.fence
        self._counters["events"] += 1
        if type(body) is b.StepCompleted:  # checked first, because most events are about steps
            self._step_completed(body)
            return
        if type(body) is b.StepStarted:
            self._step_started(event, body)
            return
        try:
            self._apply(event, body)
        except InvalidPatch as error:
            raise Tampered(run=event.run, seq=event.seq, reason=str(error)) from error

    def add_step(self, started: Event, opened: b.StepStarted, completed: Event, settled: b.StepCompleted) -> None:
        """Apply the start and the end of a step that follow each other, like `add` for both."""
        is_whole = settled.number == opened.number and opened.number not in self._steps and opened.grant is None
        if not is_whole or self._status != "running" or not started.seq - 1 == self._seq == completed.seq - 2:
            self.add(started, opened)
            self.add(completed, settled)
            return
        spent, counters = self._spent, self._counters
        spent["wall_us"] += completed.time - self._time
        self._seq, self._time, self._fence = completed.seq, completed.time, completed.fence
        self._reach(opened.number)
        self._reach_item(opened)
        counters["events"] += 2
        counters["attempts"] += 1
        counters["steps_completed"] += 1
        if settled.spent is not None:
            self._spend(settled.spent)
        self._clear_suspicion()

    def _apply(self, event: Event, body: AnyBody) -> None:  # noqa: C901, PLR0912, PLR0915 - the one match over all kinds
        match body:
            # The most frequent kinds come first: each pattern before the right one takes time.
            case b.RunClaimed():
                self._run_claimed(body)
            case b.RunCompleted():
                self._output, self._error, self._error_step = body.output, None, None
                self._end("completed")
            case b.RunCreated():
                self._run_created(event, body)
            case b.TurnStarted():
                self._turn_started(body)
            case b.ValueRecorded() | b.VersionChosen() | b.MessageSaid() | b.ScoreGiven() | b.ScoreWithdrawn():
                pass
            case b.StatePatched():
                self._patch(event, body.patch)
                self._received.pop(body.event or 0, None)
                self._count("patches")
            case b.StepStarted():
                self._step_started(event, body)
            case b.StepProgressed():
                self._step_progressed(body)
            case b.StepCompleted():
                self._step_completed(body)
            case b.StepFailed():
                self._step_failed(body)
            case b.StepUnknown():
                self._step_unknown(body)
            case b.StepResolved():
                self._step_resolved(body)
            case b.PatchReceived():
                self._received[event.seq] = ReceivedPatch(seq=event.seq, patch=body.patch)
                self._note(event, "patch", body)
            case b.DecisionMade():
                self._decision_made(event, body)
            case b.RunForked():
                self._run_forked(event, body)
            case b.RunReleased():
                self._run_released(body)
            case b.RunWaiting():
                self._leave("waiting", body.waits, body.wake)
                self._quarantines += QUARANTINED in body.waits
                self.pausing = False
            case b.RunFailed():
                self._error, self._error_step = body.failure, body.number
                self._told = self.spent
                self._end("failed")
            case b.RunCancelled():
                self.cancel = body.reason
                self._end("cancelled")
            case b.ArtifactStored():
                self._working.put_stored(body)
            case b.RiskFlagged():
                self._working.flag(body.flag, body.detail)
            case b.RequestOpened():
                self._request_opened(event, body)
            case b.RequestAnswered():
                self._request_answered(event, body)
            case b.RequestExpired():
                self._request_expired(body)
            case b.GrantGiven():
                self._grants[body.grant] = Grant(
                    grant=body.grant, by=body.by, standing=True, tool=body.tool, risk=body.risk
                )
            case b.GrantRevoked():
                self._grants.pop(body.grant, None)
            case b.AgentCalled():
                self._agent_called(body)
            case b.AgentReturned():
                self._agent_returned(body)
            case b.SignalReceived():
                self._signals[event.seq] = Signal(signal=body.signal, seq=event.seq)
                self._count("signals")
            case b.TimerSet():
                self._open_waits[body.name] = TimedWait(name=body.name, wake=body.wake)
            case b.WaitOpened():
                self._open_waits[body.name] = TimedWait(name=body.name, wake=body.expires, signal=body.signal)
            case b.WaitEnded():
                self._wait_ended(body)
            case b.ExternalRead():
                self._reads[body.source] = body.stale_at
                self._last_read = (body.number, body.stale_at)
            case b.ExternalInvalidated():
                self._reads.pop(body.source, None)
                self._invalidate(event, body.source)
            case b.BudgetReserved():
                self._budget_reserved(body)
            case b.BudgetExtended():
                self._working.extend(body.limits)
                self._note(event, "extend", body, body.because)
            case b.DeadlineExtended():
                self._base = replace(self._base, deadline=later(self._base.deadline, body.deadline))
                self._note(event, "extend", body, body.because)
            case b.CancelRequested():
                self.cancel = body.reason
                self._note(event, "cancel", body, body.reason)
            case b.PauseRequested():
                self._pause_requested()
                self._note(event, "pause", body, body.reason)
            case b.ResumeRequested():
                self._resume_requested()
                self._note(event, "resume", body)
            case b.CompensationStarted():
                self._count("compensations")
            case b.RunMoved():
                self._note(event, "move", body, body.engine)
            case b.CompensationCompleted() | b.CompensationFailed():
                self._clear_suspicion()
            case b.CompensationSkipped():
                pass
            case (
                b.ConversationCreated()
                | b.ConversationForked()
                | b.ConversationCompacted()
                | b.MessageAdded()
                | b.AuditStarted()
                | b.AuditRecorded()
                | b.RecordCreated()
                | b.RecordPatched()
            ):
                raise Tampered(run=event.run, seq=event.seq, reason=f"{event.kind} does not belong in a run's log")
            case _:
                assert_never(body)

    # The run

    def _run_created(self, event: Event, body: b.RunCreated) -> None:
        if self._begun:
            raise Tampered(run=event.run, seq=event.seq, reason="the run was already created")
        self._begun = True
        self._wake = body.start_at
        self._note(event, "start", body)
        if body.initial is not None:
            self._patch(event, body.initial)
        self._base = RunState(
            run=event.run,
            agent=body.agent,
            agent_version=body.agent_version,
            status="pending",
            position=Position(seq=event.seq, step=0, steps=body.steps),
            input=body.input,
            created=event.time,
            updated=event.time,
            deadline=body.deadline,
            user=body.user,
            session=body.session,
            conversation=body.conversation,
            labels=body.labels,
            parent=body.parent,
            working=_NOTHING.working,
            spent=_NOTHING.spent,
            counters=_NOTHING.counters,
        )

    def _run_forked(self, event: Event, body: b.RunForked) -> None:
        """Start the fork's own part.

        Steps that were unsettled at the fork point are not shared, and neither is anything else that was open, except
        signals.
        """
        self._base = replace(
            self._base,
            run=event.run,
            fork=ForkPoint(run=body.run, at=body.at),
            agent_version=body.agent_version or self._base.agent_version,
            input=body.input or self._base.input,
            created=event.time,
            deadline=body.deadline,
            user=body.user or self._base.user,
            session=body.session or self._base.session,
            conversation=body.conversation or self._base.conversation,
            labels=body.labels or self._base.labels,
            parent=None,
        )
        for opened in (self._steps, self._requests, self._grants, self._open_waits, self._children):
            opened.clear()
        self._commands.clear()
        self._note(event, "fork", body)
        self._leave("pending")
        self._output = self._error = self._error_step = self.cancel = None
        self._spent["steps"] -= self._step - body.step
        self._step, self.pausing, self._told = body.step, False, Spent()
        self._clear_suspicion()
        if body.patch is not None:
            self._patch(event, body.patch)

    def _note(self, event: Event, kind: CommandKind, body: b.Attributed, reason: str = "") -> None:
        """Remember who created the run, or sent it a command."""
        self._commands[kind] = LastCommand(by=body.by, via=body.via, time=event.time, seq=event.seq, reason=reason)

    def _run_claimed(self, body: b.RunClaimed) -> None:
        self._status, self._worker, self._waits, self._wake = "running", body.worker, (), None
        if body.died:
            self._worker_died()
        self._alone = body.alone
        self._count("claims")

    def _run_released(self, body: b.RunReleased) -> None:
        if body.died:
            self._worker_died()
        self._leave("pending", wake=body.retry_at)

    def _worker_died(self) -> None:
        self._deaths += 1
        self._solo += self._alone

    def _clear_suspicion(self) -> None:
        """Forget all deaths: something was settled, or an operator resumed the run."""
        self._deaths = self._solo = self._quarantines = 0

    def _leave(self, status: Status, waits: tuple[Wait, ...] = (), wake: int | None = None) -> None:
        self._status, self._worker, self._waits, self._wake = status, None, waits, wake
        self._alone = False

    def _end(self, status: Status) -> None:
        self._leave(status)
        self._requests.clear()
        self._open_waits.clear()
        self.pausing = False

    def _turn_started(self, body: b.TurnStarted) -> None:
        self._turns = {loop: number for loop, number in self._turns.items() if not loop.startswith(f"{body.loop}/")}
        self._turns[body.loop] = body.number
        self._count("turns")
        self._clear_suspicion()

    def _pause_requested(self) -> None:
        if self._status == "running":
            self.pausing = True
        elif self._status in ("pending", "waiting"):
            self._leave("waiting", (PAUSED,))

    def _resume_requested(self) -> None:
        """Clear the error. The failed step stays in the log, but its failure no longer ends the run."""
        self.pausing = False
        if self._status == "failed":
            self._error = self._error_step = None
        if self._status in ("failed", "waiting"):
            self._clear_suspicion()
            self._leave("pending")

    # Working state

    def _patch(self, event: Event, patch: StatePatch) -> None:
        """Apply a patch, and note when its facts were recorded. The fact of a read directly follows the read."""
        self._working.apply(patch)
        for key in patch.retract:
            self._ages.pop(key, None)
        read, until = self._last_read or (None, None)
        for fact in patch.facts:
            is_read = fact.step is not None and fact.step == read
            self._ages[fact.key] = FactAge(time=event.time, until=until if is_read else None)
        self._last_read = None

    def _invalidate(self, event: Event, source: str) -> None:
        """Note that the facts of a source are no longer valid."""
        for fact in self._working.facts:
            age = self._ages.get(fact.key)
            if fact.source == source and age is not None and age.until is not None:
                self._ages[fact.key] = replace(age, until=min(age.until, event.time))

    # Steps

    def _step_started(self, event: Event, body: b.StepStarted) -> None:
        before = self._steps.get(body.number)
        self._reach(body.number)
        self._reach_item(body)
        if before is not None:
            self._spend(before.reserved)
        self._steps[body.number] = OpenStep(
            name=body.name,
            tool=body.tool,
            number=body.number,
            effect=body.effect,
            status="running",
            attempt=body.attempt,
            started=before.started if before else event.time,
            errors=before.errors if before else (),
        )
        if body.grant is not None and not self._is_standing(body.grant):
            self._grants.pop(body.grant, None)
        self._count("attempts")

    def _reach(self, number: int) -> None:
        """Count steps by number, since parallel steps need not start in order."""
        if number > self._step:
            self._spent["steps"] += number - self._step
            self._step = number

    def _reach_item(self, body: b.StepStarted) -> None:
        if body.item is None:
            self._item_start = None
        elif self._item_start is None or self._item_start.item != body.item:
            self._item_start = ItemStart(item=body.item, step=body.number)

    def _step_progressed(self, body: b.StepProgressed) -> None:
        step = self._steps.get(body.number)
        if step is not None:
            self._steps[body.number] = replace(step, note=body.note, partial=body.partial or step.partial)

    def _step_completed(self, body: b.StepCompleted) -> None:
        self._settle(body.number, "steps_completed", body.spent)

    def _step_failed(self, body: b.StepFailed) -> None:
        self._error, self._error_step = body.failure, body.number
        step = self._steps.get(body.number)
        if body.is_final or step is None:
            self._settle(body.number, "steps_failed", body.spent)
            return
        self._spend(body.spent)
        self._clear_suspicion()
        self._steps[body.number] = replace(
            step, status="retrying", retry_at=body.retry_at, errors=_kept(step.errors, body.failure), reserved=None
        )

    def _step_unknown(self, body: b.StepUnknown) -> None:
        self._count("steps_unknown")
        if body.failure is not None:
            self._error, self._error_step = body.failure, body.number
        step = self._steps.get(body.number)
        self._spend(step.reserved if step is not None and body.spent is None else body.spent)
        if step is not None:
            errors = step.errors if body.failure is None else _kept(step.errors, body.failure)
            self._steps[body.number] = replace(step, status="unknown", errors=errors, reserved=None)

    def _step_resolved(self, body: b.StepResolved) -> None:
        step = self._steps.get(body.number)
        if body.outcome == "not_applied" and step is not None:
            self._clear_suspicion()
            self._steps[body.number] = replace(step, status="retrying", retry_at=None)
        else:
            self._settle(body.number, "steps_completed" if body.outcome == "applied" else "steps_failed", None)

    def _settle(self, number: int, counter: str, spent: Spent | None) -> None:
        self._steps.pop(number, None)
        if spent is not None:
            self._spend(spent)
        self._counters[counter] += 1
        self._clear_suspicion()

    # Decisions, requests and other agents

    def _decision_made(self, event: Event, body: b.DecisionMade) -> None:
        self._decisions.append(
            Decision(
                question=body.question,
                chosen=body.chosen,
                because=body.because,
                seq=event.seq,
                confidence=body.confidence,
            )
        )
        self._count("decisions")

    def _request_opened(self, event: Event, body: b.RequestOpened) -> None:
        self._requests[body.request] = OpenRequest(
            request=body.request,
            name=body.name,
            kind=body.kind,
            question=body.question,
            to=body.to,
            expires=body.expires,
            seq=event.seq,
            digest=body.digest,
            valid=body.valid,
        )
        self._count("requests")

    def _request_answered(self, event: Event, body: b.RequestAnswered) -> None:
        request = self._requests.pop(body.request, None)
        if request is not None and request.kind == "approval" and body.decision == "approved":
            expires = None if request.valid is None else event.time + request.valid
            self._grants[body.request] = Grant(
                grant=body.request, by=body.by, standing=False, digest=request.digest, expires=expires
            )

    def _request_expired(self, body: b.RequestExpired) -> None:
        request = self._requests.pop(body.request, None)
        if request is not None and body.outcome == "escalated":
            self._requests[body.request] = replace(request, to=body.to, expires=body.expires)

    def _is_standing(self, grant: str) -> bool:
        return grant in self._grants and self._grants[grant].standing

    def _agent_called(self, body: b.AgentCalled) -> None:
        self._count("children")
        if body.mode in ("call", "handoff"):
            self._children[body.run] = Child(run=body.run, name=body.name, budget=body.budget)
        elif body.budget is not None:
            self._spend(body.budget.most())

    def _agent_returned(self, body: b.AgentReturned) -> None:
        self._children.pop(body.run, None)
        self._spend(body.spent)

    def _wait_ended(self, body: b.WaitEnded) -> None:
        self._open_waits.pop(body.name, None)
        if body.event is not None:
            self._signals.pop(body.event, None)
        if body.request is not None:
            self._requests.pop(body.request, None)
            self._grants.pop(body.request, None)
        self._clear_suspicion()

    # Budget and counters

    def _budget_reserved(self, body: b.BudgetReserved) -> None:
        step = self._steps.get(body.number)
        if step is not None:
            self._steps[body.number] = replace(step, reserved=Spent(tokens=body.tokens, cost=body.cost))

    def _spend(self, spent: Spent | None) -> None:
        if spent is not None:
            for field in spent.__struct_fields__:
                self._spent[field] += getattr(spent, field)

    def _count(self, counter: str) -> None:
        self._counters[counter] += 1

    def _position(self, working: AgentState) -> Position:
        return Position(
            seq=self._seq,
            step=self._step,
            steps=self._base.position.steps,
            item=working.position,
            items=len(working.plan),
        )


def _kept(errors: tuple[Failure, ...], error: Failure) -> tuple[Failure, ...]:
    """Keep the first error and the last few, since a step may be retried without limit."""
    return (*errors, error) if len(errors) < KEPT_ERRORS else (errors[0], *errors[2:], error)
