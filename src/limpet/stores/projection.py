"""Project events to rows: one pure function, which every store calls in the event's transaction.

A delta has up to four parts: what every step changes (its number, and whether something was settled), a change of the
run's row, of a request's row, and of a score's row. `apply` and `apply_request` apply them to rows.
"""

from typing import NamedTuple, assert_never, get_args

from msgspec import Struct, UnsetType
from msgspec.structs import replace
from typing_extensions import TypeIs

from limpet.events import AnyBody, Event
from limpet.events import bodies as b
from limpet.state import ENDED, Status
from limpet.state.agent import current_item
from limpet.state.fold import BUILT_IN, PAUSED
from limpet.state.run import later
from limpet.stores.rows import RequestRow, RequestStatus, RunRow, ScoreRow

__all__ = [
    "NOTHING",
    "Delta",
    "RequestChange",
    "RowChange",
    "ScoreChange",
    "ScoreSaved",
    "apply",
    "apply_request",
    "claimed_row",
    "cost_of",
    "new_row",
    "project",
]


class Left(NamedTuple):
    """No worker holds the run now: it was released, parked or ended."""

    status: Status
    waits: tuple[str, ...] = ()
    wake: int | None = None
    died: bool = False


class GoalChanged(NamedTuple):
    """The goal or plan changed; None means unchanged."""

    goal: str | None = None
    items: int | None = None
    item: int | None = None


class Woken(NamedTuple):
    """Something happened that the run may wait for."""

    key: str
    cost: float = 0.0


class Paid(NamedTuple):
    """A step had a cost."""

    cost: float


class DeadlineMoved(NamedTuple):
    """The deadline was extended; an earlier one has no effect."""

    deadline: int


class Cancelling(NamedTuple):
    """A cancellation was requested: a worker must claim the run, whatever it waits for."""


class Paused(NamedTuple):
    """A pause was requested."""


class Resumed(NamedTuple):
    """A resume was requested."""


class Undoing(NamedTuple):
    """A compensation has started."""


class Moved(NamedTuple):
    """Another engine has the run driven from now on."""

    engine: str


RowChange = Left | GoalChanged | Woken | Paid | DeadlineMoved | Cancelling | Paused | Resumed | Undoing | Moved


class RequestInserted(NamedTuple):
    """A request was opened."""

    row: RequestRow


class RequestClosed(NamedTuple):
    """A request was closed."""

    request: str
    status: RequestStatus
    by: str | None = None


class ApprovalUsed(NamedTuple):
    """An approval was used by the step that it was given for."""

    request: str


class RequestEscalated(NamedTuple):
    """A request was escalated to other people."""

    request: str
    to: tuple[str, ...]
    expires: int | None


RequestChange = RequestInserted | RequestClosed | ApprovalUsed | RequestEscalated


class ScoreSaved(NamedTuple):
    """A score was given; it replaces an earlier one with the same key."""

    row: ScoreRow


class ScoreDropped(NamedTuple):
    """A score was withdrawn."""

    row: ScoreRow


ScoreChange = ScoreSaved | ScoreDropped


class Delta(Struct, frozen=True, gc=False):
    """The changes of an event to rows."""

    step: int = 0
    settled: bool = False
    row: RowChange | None = None
    request: RequestChange | None = None
    score: ScoreChange | None = None


# These change nothing in existing rows.
_Unprojected = (
    b.MessageAdded
    | b.DecisionMade
    | b.MessageSaid
    | b.ValueRecorded
    | b.TimerSet
    | b.WaitOpened
    | b.AgentCalled
    | b.ArtifactStored
    | b.StepProgressed
    | b.VersionChosen
    | b.RiskFlagged
    | b.GrantGiven
    | b.GrantRevoked
    | b.ConversationCompacted
    | b.AuditRecorded
    | b.RecordPatched
    | b.ExternalRead
    | b.ExternalInvalidated
    | b.PatchReceived
    | b.BudgetReserved
    | b.BudgetExtended
    # These create or claim a whole row.
    | b.RunClaimed
    | b.RunCreated
    | b.RunForked
    | b.ConversationCreated
    | b.ConversationForked
    | b.AuditStarted
    | b.RecordCreated
)
_UNPROJECTED = frozenset(get_args(_Unprojected))
NOTHING = Delta()
_SETTLED = Delta(settled=True)


def project(event: Event, body: AnyBody) -> Delta:  # noqa: C901, PLR0912 - one match over all kinds
    """Return what an event changes in rows."""
    if type(body) is b.StepCompleted and not cost_of(body):  # checked first, because most events are about steps
        return _SETTLED
    if _is_unprojected(body):  # a match with as many patterns would take 7 µs
        return NOTHING
    match body:
        case b.StepStarted():
            return Delta(body.number, request=None if body.grant is None else ApprovalUsed(body.grant))
        case b.StepCompleted() | b.StepFailed():
            return _SETTLED if not cost_of(body) else Delta(settled=True, row=Paid(cost_of(body)))
        case b.StepUnknown():
            return NOTHING if not cost_of(body) else Delta(row=Paid(cost_of(body)))
        case b.StepResolved() | b.TurnStarted() | b.CompensationCompleted() | b.CompensationFailed():
            return _SETTLED
        case b.StatePatched():
            return _described(body)
        case b.WaitEnded():
            return _wait_ended(body)
        case b.RunReleased():
            return Delta(row=Left("pending", wake=body.retry_at, died=body.died))
        case b.RunWaiting():
            return Delta(row=Left("waiting", tuple(str(wait) for wait in body.waits), body.wake))
        case b.RunCompleted():
            return Delta(row=Left("completed"))
        case b.RunFailed():
            return Delta(row=Left("failed"))
        case b.RunCancelled():
            return Delta(row=Left("cancelled"))
        case b.RequestOpened():
            return _request_opened(event, body)
        case b.RequestAnswered():
            return Delta(
                row=Woken(f"person:{body.request}"), request=RequestClosed(body.request, body.decision, body.by)
            )
        case b.RequestExpired():
            return _request_expired(body)
        case b.AgentReturned():
            return Delta(row=Woken(f"run:{body.run}", cost_of(body)))
        case b.SignalReceived():
            return Delta(row=Woken(f"signal:{body.signal}"))
        case b.DeadlineExtended():
            return Delta(row=DeadlineMoved(body.deadline))
        case b.CancelRequested():
            return Delta(row=Cancelling())
        case b.PauseRequested():
            return Delta(row=Paused())
        case b.ResumeRequested():
            return Delta(row=Resumed())
        case b.CompensationStarted() | b.CompensationSkipped():
            return Delta(row=Undoing())
        case b.RunMoved():
            return Delta(row=Moved("" if body.engine == BUILT_IN else body.engine))
        case b.ScoreGiven():
            return Delta(score=ScoreSaved(_score(event, body)))
        case b.ScoreWithdrawn():
            return Delta(score=ScoreDropped(_score(event, body)))
        case _:
            assert_never(body)


def _is_unprojected(body: AnyBody) -> TypeIs[_Unprojected]:
    return type(body) in _UNPROJECTED


def cost_of(body: b.StepCompleted | b.StepFailed | b.StepUnknown | b.AgentReturned) -> float:
    """Return the cost that an event records."""
    return 0.0 if body.spent is None else body.spent.cost


def new_row(event: Event, body: AnyBody) -> RunRow:
    """Return the row of a stream that starts with this event. Its number is not known yet."""
    row = RunRow(number=0, id=event.run, created=event.time, ready_at=event.time, fence=event.fence)
    match body:
        case b.RunCreated():
            goal = body.initial.goal if body.initial else ""
            plan = body.initial.plan if body.initial else ()
            return replace(
                row,
                agent=body.agent,
                agent_version=body.agent_version,
                ready_at=event.time if body.start_at is None else body.start_at,
                start_at=body.start_at,
                user=body.user,
                session=body.session,
                conversation=body.conversation,
                parent=body.parent.run if body.parent else None,
                exclusive=body.exclusive,
                steps=body.steps,
                labels=body.labels,
                goal="" if isinstance(goal, UnsetType) else goal,
                item=None if isinstance(plan, UnsetType) else current_item([item.status for item in plan]),
                items=0 if isinstance(plan, UnsetType) else len(plan),
                deadline=body.deadline,
                engine=body.engine,
            )
        case b.RunForked():
            return replace(
                row,
                agent=body.agent,
                agent_version=body.agent_version or "",
                user=body.user,
                session=body.session,
                conversation=body.conversation,
                exclusive=body.exclusive,
                goal=body.goal,
                step=body.step,
                steps=body.steps,
                item=body.item,
                items=body.items,
                origin=body.run,
                origin_at=body.at,
                deadline=body.deadline,
                engine=body.engine,
                labels=body.labels,
            )
        case b.ConversationCreated() | b.ConversationForked():
            conversation = replace(
                row,
                type="conversation",
                status="open",
                ready_at=None,
                session=body.session,
                user=body.user,
                labels=body.labels,
            )
            if isinstance(body, b.ConversationCreated):
                return conversation
            return replace(conversation, origin=body.conversation, origin_at=body.at)
        case b.AuditStarted():
            return replace(row, type="audit", status="open", ready_at=None)
        case b.RecordCreated():
            return replace(row, type="record", status="open", ready_at=None)
        case _:
            raise ValueError(f"{event.kind} cannot start a stream")


def claimed_row(row: RunRow, event: Event, body: b.RunClaimed) -> RunRow:
    """Return the row of a run that was claimed by this event."""
    return replace(
        row,
        seq=event.seq,
        hash=event.hash,
        time=event.time,
        status="running",
        waits=(),
        ready_at=None,
        worker=body.worker,
        fence=event.fence,
        deaths=row.deaths + body.died,
        alone=body.alone,
    )


def apply(row: RunRow, change: RowChange, now: int) -> RunRow:  # noqa: C901, PLR0912 - one match over all changes
    """Return the row after a change. `now` is the store's time, since no decision depends on an event's own time."""
    match change:
        case Left():
            return _left(row, change, now)
        case GoalChanged():
            return replace(
                row,
                goal=row.goal if change.goal is None else change.goal,
                items=row.items if change.items is None else change.items,
                item=row.item if change.item is None and change.items is None else change.item,
            )
        case Woken():
            paid = replace(row, cost=row.cost + change.cost) if change.cost else row
            return _ready(paid, now) if row.status == "waiting" and change.key in row.waits else paid
        case Paid():
            return replace(row, cost=row.cost + change.cost)
        case DeadlineMoved():
            return replace(row, deadline=later(row.deadline, change.deadline))
        case Cancelling():
            asked = replace(row, cancelling=True)
            return _ready(asked, now) if row.status in ("pending", "waiting") else asked
        case Paused():
            held = row.status in ("pending", "waiting")
            return replace(row, status="waiting", waits=(str(PAUSED),), ready_at=None) if held else row
        case Resumed():
            return _resumed(row, now) if row.status in ("failed", "waiting") else row
        case Undoing():
            return replace(row, undoing=True)
        case Moved():
            return replace(row, engine=change.engine)
        case _:
            assert_never(change)


def apply_request(row: RequestRow | None, change: RequestChange) -> RequestRow | None:
    """Return the request's row after a change. The first decision is final."""
    match change:
        case RequestInserted():
            return change.row
        case RequestClosed():
            if row is None or row.status != "open":
                return row
            return replace(row, status=change.status, by=change.by)
        case ApprovalUsed():
            return None if row is None else replace(row, status="used")
        case RequestEscalated():
            if row is None or row.status != "open":
                return row
            return replace(row, to=change.to, expires=change.expires)
        case _:
            assert_never(change)


def _left(row: RunRow, change: Left, now: int) -> RunRow:
    return replace(
        row,
        status=change.status,
        waits=change.waits,
        ready_at=now if change.status == "pending" and change.wake is None else change.wake,
        ended=now if change.status in ENDED else None,
        worker=None,
        deaths=row.deaths + change.died,
        alone=False,
    )


def _resumed(row: RunRow, now: int) -> RunRow:
    """Make a run claimable from now on, or from its start time if it has never run."""
    waits_for_start = row.fence == 0 and row.start_at is not None and not row.cancelling
    ready_at = max(now, row.start_at or now) if waits_for_start else now
    return replace(row, status="pending", waits=(), ready_at=ready_at, ended=None, deaths=0)


def _ready(row: RunRow, now: int) -> RunRow:
    """Make a run claimable from now on; one that was ready before keeps its place in the queue."""
    return replace(row, ready_at=now if row.ready_at is None else min(row.ready_at, now))


def _described(body: b.StatePatched) -> Delta:
    patch = body.patch
    goal = None if isinstance(patch.goal, UnsetType) else patch.goal
    if body.items is not None:
        return Delta(row=GoalChanged(goal, body.items, body.item))
    if not isinstance(patch.plan, UnsetType):  # Version 1 did not record the position.
        return Delta(row=GoalChanged(goal, len(patch.plan), current_item([item.status for item in patch.plan])))
    doing = [revision.index for revision in patch.revise if revision.status == "doing"]
    return Delta(row=GoalChanged(goal, None, doing[-1] if doing else None)) if goal is not None or doing else NOTHING


def _wait_ended(body: b.WaitEnded) -> Delta:
    if body.request is None:
        return _SETTLED
    return Delta(settled=True, request=RequestClosed(body.request, "withdrawn"))


def _request_opened(event: Event, body: b.RequestOpened) -> Delta:
    row = RequestRow(
        id=body.request,
        run=event.run,
        seq=event.seq,
        kind=body.kind,
        to=body.to,
        risk=body.risk,
        tool=body.tool,
        opened=event.time,
        expires=body.expires,
        digest=body.digest,
    )
    return Delta(request=RequestInserted(row))


def _request_expired(body: b.RequestExpired) -> Delta:
    if body.outcome == "escalated":
        return Delta(request=RequestEscalated(body.request, body.to, body.expires))
    return Delta(request=RequestClosed(body.request, "expired"))


def _score(event: Event, body: b.ScoreGiven | b.ScoreWithdrawn) -> ScoreRow:
    row = ScoreRow(run=event.run, name=body.score, by=body.by, step=body.number or 0, seq=event.seq, time=event.time)
    value = body.value if isinstance(body, b.ScoreGiven) else None
    if isinstance(value, str):
        return replace(row, text=value)
    return row if value is None else replace(row, number=float(value))
