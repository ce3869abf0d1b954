"""Guards of commands: pure functions over rows, called inside the command's transaction."""

from limpet.clock import earliest
from limpet.errors import AlreadyAnswered, Expired, LimpetError, NotAllowed, NotFound, WrongState
from limpet.events import AnyBody
from limpet.events import bodies as b
from limpet.state import ENDED
from limpet.stores.rows import RequestRow, RunRow

__all__ = ["refusal"]


def refusal(
    body: AnyBody, row: RunRow, request: RequestRow | None, now: int, judged: tuple[str, ...] | None = None
) -> LimpetError | None:
    """Return why a command is refused, or None.

    `now` is the store's time; `judged` is whom the request was for when the answer was checked.
    """
    if isinstance(body, b.RequestAnswered):
        refused = _unanswerable(body, row, request, now)
        if refused is None and request is not None and judged is not None and request.to != judged:
            return NotAllowed(request=request.id, by=body.by, to=request.to)
        return refused
    if isinstance(body, b.ScoreGiven | b.ScoreWithdrawn):  # allowed in every status
        return None if (body.number or 0) <= row.step else _no_step(row, body.number)
    return None if _is_possible(body, row) else _wrong_state(row, _NOUNS[type(body)])


def _is_possible(body: AnyBody, row: RunRow) -> bool:
    match body:
        case b.ResumeRequested():
            return row.status in ("waiting", "running") or (row.status == "failed" and not row.undoing)
        case b.PauseRequested():
            return row.status not in ENDED and not row.cancelling
        case b.RunMoved():
            is_resumable = row.status == "failed" and not row.undoing
            return row.worker is None and (is_resumable or row.status not in ENDED)
        case b.AgentReturned():
            return row.status not in ("completed", "cancelled")  # A failed run may be resumed, and then needs this.
        case b.BudgetExtended() | b.DeadlineExtended():
            is_resumable = row.status == "failed" and not row.undoing
            return is_resumable or (row.status not in ENDED and not row.cancelling)
        case _:
            return row.status not in ENDED


_NOUNS: dict[type[AnyBody], str] = {
    b.CancelRequested: "cancelling",
    b.PauseRequested: "pausing",
    b.ResumeRequested: "resuming",
    b.RunMoved: "moving",
    b.SignalReceived: "a signal",
    b.PatchReceived: "a patch",
    b.AgentReturned: "a called agent's return",
    b.BudgetExtended: "extending the budget",
    b.DeadlineExtended: "extending the deadline",
    b.GrantGiven: "a standing approval",
    b.GrantRevoked: "revoking an approval",
}


def _unanswerable(body: b.RequestAnswered, row: RunRow, request: RequestRow | None, now: int) -> LimpetError | None:
    if request is None or request.run != row.id:
        return NotFound(what="request", id=body.request)
    if request.status == "expired":
        return Expired(request=request.id, expired_at=request.expires or now)
    if request.status != "open":
        return AlreadyAnswered(request=request.id, status=request.status, by=request.by or "the run itself")
    expires = earliest(request.expires, row.deadline)
    if expires is not None and expires <= now:
        return Expired(request=request.id, expired_at=expires)
    if row.cancelling and request.kind != "compensation":
        return _wrong_state(row, f"an answer to {request.id}")
    if body.digest != request.digest:
        status = f"asking request {request.id} with other arguments than those you saw"
        fix = "Run `limpet inbox` to see the new arguments, and decide again."
        return WrongState(run=row.id, status=status, wanted="this answer", fix=fix)
    return None


def _no_step(row: RunRow, step: int | None) -> NotFound:
    fix = f"Pass a step from 1 to {row.step}." if row.step else "The run has no step so far: score the run itself."
    return NotFound(what="step", id=f"{step} of {row.id}", fix=fix)


def _wrong_state(row: RunRow, wanted: str) -> WrongState:
    more = " and being compensated" if row.undoing else " and being cancelled" if row.cancelling else ""
    return WrongState(run=row.id, status=row.status + more, wanted=wanted)
