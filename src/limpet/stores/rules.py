"""What a command must find to be taken: pure guards over rows, judged inside the command's transaction."""

from limpet.errors import AlreadyAnswered, Expired, LimpetError, NotFound, WrongState
from limpet.events import AnyBody
from limpet.events import bodies as b
from limpet.state import ENDED
from limpet.stores.rows import RequestRow, RunRow

__all__ = ["refusal"]


def refusal(body: AnyBody, row: RunRow, request: RequestRow | None, now: int) -> LimpetError | None:
    """Why the command cannot be taken, or nothing; `now` is the store's clock."""
    match body:
        case b.RequestAnswered():
            return _unanswerable(body, row, request, now)
        case b.ResumeRequested():
            if row.status not in ("failed", "waiting") or row.undoing:
                return _wrong(row, "resume")
        case b.BudgetExtended():
            if row.status in ("completed", "cancelled"):
                return _wrong(row, "extending the budget")
        case _:
            if row.status in ENDED:
                return _wrong(row, _NOUNS.get(type(body), "a command"))
    return None


_NOUNS: dict[type[AnyBody], str] = {
    b.CancelRequested: "cancel",
    b.PauseRequested: "pause",
    b.SignalReceived: "a signal",
    b.AgentReturned: "a return",
    b.GrantGiven: "a grant",
    b.GrantRevoked: "revoking a grant",
}


def _unanswerable(body: b.RequestAnswered, row: RunRow, request: RequestRow | None, now: int) -> LimpetError | None:
    if request is None or request.run != row.id:
        return NotFound(what="request", id=body.request)
    if request.status == "expired":
        return Expired(request=request.id, expired_at=request.expires or now)
    if request.status != "open":
        return AlreadyAnswered(request=request.id, status=request.status, by=request.by or "")
    if request.expires is not None and request.expires <= now:
        return Expired(request=request.id, expired_at=request.expires)
    return None


def _wrong(row: RunRow, wanted: str) -> WrongState:
    status = f"{row.status} and being undone" if row.undoing else row.status
    return WrongState(run=row.id, status=status, wanted=wanted)
