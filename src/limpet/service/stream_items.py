"""The items of streams: changes of runs, requests and shared records, and pieces of model replies."""

from limpet.engine.execution.views import Request, RunInfo
from limpet.view import View

__all__ = ["RecordEvent", "ReplyPiece", "RequestChange", "RunChange"]


class RunChange(View, frozen=True, kw_only=True):
    """A run that has changed."""

    cursor: str
    """Pass it as `after` to go on from here."""
    run: RunInfo
    """The run as it is now."""


class RequestChange(View, frozen=True, kw_only=True):
    """A request that was opened, escalated or closed."""

    cursor: str
    """Pass it as `after` to go on from here."""
    id: str
    """Request id."""
    run: str
    """The run that asks."""
    status: str
    """Status of the request as it is now, such as `open` or `approved`."""
    request: Request | None
    """The whole request while it is open."""


class ReplyPiece(View, frozen=True, kw_only=True):
    """New text of a model's reply."""

    cursor: str
    """Pass it as `after` to go on from here."""
    step: int
    """Number of the step that called the model."""
    text: str
    """The new text."""


class RecordEvent(View, frozen=True, kw_only=True):
    """A shared record that was patched."""

    cursor: str
    """Pass it as `after` to go on from here."""
    record: str
    """Name of the record."""
    version: int
    """Version of the record after the patch."""
