"""The items of streams: changes of runs, requests and shared records, and pieces of model replies."""

from dataclasses import dataclass

from limpet.engine.execution.views import Request, RunInfo

__all__ = ["RecordEvent", "ReplyPiece", "RequestChange", "RunChange"]


@dataclass(frozen=True, kw_only=True)
class RunChange:
    """A run that has changed."""

    cursor: str
    """Pass it as `after` to go on from here."""
    run: RunInfo
    """The run as it is now."""


@dataclass(frozen=True, kw_only=True)
class RequestChange:
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


@dataclass(frozen=True, kw_only=True)
class ReplyPiece:
    """New text of a model's reply."""

    cursor: str
    """Pass it as `after` to go on from here."""
    step: int
    """Number of the step that called the model."""
    text: str
    """The new text."""


@dataclass(frozen=True, kw_only=True)
class RecordEvent:
    """A shared record that was patched."""

    cursor: str
    """Pass it as `after` to go on from here."""
    record: str
    """Name of the record."""
    version: int
    """Version of the record after the patch."""
