"""Public views of runs, events and requests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from limpet.context.brief import Brief
from limpet.state import Status

__all__ = ["EventView", "PositionInfo", "Request", "RunInfo", "RunInput", "Status", "WaitKind", "WaitsFor"]


@dataclass(frozen=True, kw_only=True)
class PositionInfo:
    """Position of a run: in its log, its steps and its plan."""

    seq: int
    """Sequence of the last event."""
    step: int
    """Highest number of a step so far."""
    steps: int | None
    """Total number of steps, if the agent declares it."""
    item: int | None
    """Index of the plan's current or next item, from 0."""
    items: int
    """Number of items in the plan."""
    text: str
    """The position for people, such as "step 6 of 9"."""

    def __str__(self) -> str:
        return self.text


WaitKind = Literal["person", "signal", "run", "time", "worker", "operator"]


@dataclass(frozen=True, kw_only=True)
class WaitsFor:
    """One condition that a run waits for."""

    what: WaitKind
    key: str
    """The request, signal, run, agent or reason; "" for a time."""
    text: str
    """Both for people, such as "operator:paused"."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """Summary of a run, as lists show it. Times are those of the store's clock."""

    id: str
    agent: str
    version: str
    status: Status
    waits_for: tuple[WaitsFor, ...]
    """The conditions that the run waits for; one of them is enough to continue."""
    position: PositionInfo
    goal: str = ""
    created: datetime
    updated: datetime
    ended: datetime | None = None
    deadline: datetime | None = None
    user: str | None = None
    session: str | None = None
    conversation: str = ""
    """The conversation that the run takes part in: the one it was started in, or else its own."""
    parent: str | None = None
    fork_of: str | None = None
    """The run that this one was forked from."""
    labels: Mapping[str, str] = field(default_factory=dict)
    output: Any = None
    """Output of a completed run, from `info` only: lists do not read it. A large one is `{"blob": …, "bytes": …}`."""
    error: str | None = None
    """Why the run failed, or why it was cancelled, from `info` only: lists do not read it."""

    @property
    def waits_text(self) -> str:
        """All conditions in one line; "" for none."""
        return ", ".join(wait.text for wait in self.waits_for)


@dataclass(frozen=True, kw_only=True)
class RunInput:
    """The whole input of a run."""

    run: str
    input: Any
    bytes: int
    """Size as JSON."""


@dataclass(frozen=True, kw_only=True)
class EventView:
    """One event of a run's log."""

    run: str
    seq: int
    kind: str
    time: datetime
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
    opened: datetime
    expires: datetime | None = None
    digest: str = ""
    context: Brief | None = None
    """Summary of the run for the person who decides."""
    self_approval: bool = False
    """Whether the person who started the run may approve it."""
