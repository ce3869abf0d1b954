"""What a command must find to be taken: pure guards over rows, judged inside the command's transaction."""

from limpet.errors import AlreadyAnswered, Expired, LimpetError, NotAllowed, NotFound, WrongState
from limpet.events import AnyBody
from limpet.events import bodies as b
from limpet.state import ENDED
from limpet.stores.rows import RequestRow, RunRow

__all__ = ["refusal"]


def refusal(
    body: AnyBody, row: RunRow, request: RequestRow | None, now: int, judged: tuple[str, ...] | None = None
) -> LimpetError | None:
    """Why the command cannot be taken, or nothing; `now` is the store's clock, `judged` whom a request was for."""
    if isinstance(body, b.RequestAnswered):
        refused = _unanswerable(body, row, request, now)
        if refused is None and request is not None and judged is not None and request.to != judged:
            return NotAllowed(request=request.id, by=body.by, to=request.to)
        return refused
    return None if _is_possible(body, row) else _wrong(row, _NOUNS[type(body)])


def _is_possible(body: AnyBody, row: RunRow) -> bool:
    match body:
        case b.ResumeRequested():
            return row.status in ("waiting", "running") or (row.status == "failed" and not row.undoing)
        case b.PauseRequested():
            return row.status not in ENDED and not row.cancelling
        case b.BudgetExtended() | b.AgentReturned():
            return row.status not in ("completed", "cancelled")  # a failed run may be resumed, and needs these then
        case _:
            return row.status not in ENDED


_NOUNS: dict[type[AnyBody], str] = {
    b.CancelRequested: "cancel",
    b.PauseRequested: "pause",
    b.ResumeRequested: "resume",
    b.SignalReceived: "a signal",
    b.AgentReturned: "a return",
    b.BudgetExtended: "extending the budget",
    b.GrantGiven: "a grant",
    b.GrantRevoked: "revoking a grant",
}


def _unanswerable(body: b.RequestAnswered, row: RunRow, request: RequestRow | None, now: int) -> LimpetError | None:
    if request is None or request.run != row.id:
        return NotFound(what="request", id=body.request)
    if request.status == "expired":
        return Expired(request=request.id, expired_at=request.expires or now)
    if request.status != "open":
        return AlreadyAnswered(request=request.id, status=request.status, by=request.by or "the run itself")
    if request.expires is not None and request.expires <= now:
        return Expired(request=request.id, expired_at=request.expires)
    if row.cancelling and request.kind != "compensation":
        return _wrong(row, f"an answer to {request.id}")
    if body.digest != request.digest:
        return WrongState(run=row.id, status="asking for something else now", wanted=f"this answer to {request.id}")
    return None


def _wrong(row: RunRow, wanted: str) -> WrongState:
    more = " and being undone" if row.undoing else " and being cancelled" if row.cancelling else ""
    return WrongState(run=row.id, status=row.status + more, wanted=wanted)
