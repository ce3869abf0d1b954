"""Public views of runs, events and requests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from limpet.context.brief import Brief
from limpet.state import Status

__all__ = ["EventView", "Request", "RunInfo", "Status"]


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """Summary of a run, as lists show it. Times are in microseconds since the epoch, by the store's clock."""

    id: str
    agent: str
    version: str
    status: Status
    waits_for: str | None
    """The condition that a waiting run waits for, such as "person:…" or "operator:paused"."""
    position: str
    """Current position, such as "step 6 of 9"."""
    goal: str = ""
    created: int = 0
    updated: int = 0
    ended: int | None = None
    user: str | None = None
    session: str | None = None
    parent: str | None = None
    fork_of: str | None = None
    """The run that this one was forked from."""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class EventView:
    """One event of a run's log."""

    run: str
    seq: int
    kind: str
    time: int
    body: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request that a person must decide."""

    id: str
    run: str
    kind: str
    question: str
    to: tuple[str, ...]
    tool: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    options: tuple[Any, ...] = ()
    schema: Mapping[str, Any] | None = None
    risk: str | None = None
    opened: int = 0
    expires: int | None = None
    digest: str = ""
    context: Brief | None = None
    """Summary of the run for the person who decides."""
