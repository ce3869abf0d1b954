"""Public views of runs, events and requests."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from limpet.context.brief import Brief
from limpet.state import Status
from limpet.view import View

__all__ = ["EventView", "PositionInfo", "Request", "RunInfo", "RunInput", "Status", "WaitKind", "WaitsFor"]


class PositionInfo(View, frozen=True, kw_only=True):
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


WaitKind = Literal["person", "signal", "run", "time", "worker", "slot", "operator"]


class WaitsFor(View, frozen=True, kw_only=True):
    """One condition that a run waits for."""

    what: WaitKind
    """Kind of the condition."""
    key: str
    """The request, signal, run, agent or reason; the run that holds a slot; "" for a time."""
    text: str
    """Both for people, such as "operator:paused"."""

    def __str__(self) -> str:
        return self.text


class RunInfo(View, frozen=True, kw_only=True):
    """Summary of a run, as lists show it. Times are those of the store's clock."""

    id: str
    """Run id."""
    agent: str
    """Name of the agent."""
    version: str
    """Version of the agent."""
    status: Status
    """Current status."""
    waits_for: tuple[WaitsFor, ...]
    """The conditions that the run waits for; one of them is enough to continue."""
    position: PositionInfo
    """Position in the log, the steps and the plan."""
    goal: str = ""
    """Goal of the run."""
    created: datetime
    """When it was created."""
    updated: datetime
    """Time of the last event."""
    ended: datetime | None = None
    """When it ended; null while it lasts."""
    deadline: datetime | None = None
    """When it fails if it has not ended."""
    cost: float = 0.0
    """Recorded cost so far, also of the runs that it called; for a fork, since it was forked."""
    engine: str = ""
    """The engine that has it driven, such as "temporal"; empty for the workers of Limpet."""
    user: str | None = None
    """User that it belongs to."""
    session: str | None = None
    """Session that it belongs to."""
    conversation: str = ""
    """The conversation that the run takes part in: the one it was started in, or else its own."""
    parent: str | None = None
    """The run that called or started this one."""
    fork_of: str | None = None
    """The run that this one was forked from."""
    labels: Mapping[str, str] = {}
    """Labels by name."""
    output: Any = None
    """Output of a completed run, from `info` only: lists do not read it. A large one is `{"blob": …, "bytes": …}`."""
    error: str | None = None
    """Why the run failed, or why it was cancelled, from `info` only: lists do not read it."""

    @property
    def waits_text(self) -> str:
        """All conditions in one line; "" for none."""
        return ", ".join(wait.text for wait in self.waits_for)


class RunInput(View, frozen=True, kw_only=True):
    """The whole input of a run."""

    run: str
    """Run id."""
    input: Any
    """The whole input."""
    bytes: int
    """Size as JSON."""


class EventView(View, frozen=True, kw_only=True):
    """One event of a run's log."""

    run: str
    """Run or conversation id."""
    seq: int
    """Number of the event in the log."""
    kind: str
    """Kind of the event."""
    time: datetime
    """When it was appended."""
    body: Mapping[str, Any]
    """Content of the event."""


class Request(View, frozen=True, kw_only=True):
    """A request that a person must decide."""

    id: str
    """Request id."""
    run: str
    """The run that asks."""
    kind: str
    """Purpose: ask, approval, unknown, budget, compensation or escalation."""
    question: str
    """The question."""
    to: tuple[str, ...]
    """People and groups that may decide."""
    tool: str | None = None
    """Tool that would be called."""
    args: Mapping[str, Any] = {}
    """Arguments of the tool."""
    options: tuple[Any, ...] = ()
    """Possible answers, if there are some."""
    schema: Mapping[str, Any] | None = None
    """JSON Schema of the answer, if it has a type."""
    risk: str | None = None
    """Risk of the tool."""
    opened: datetime
    """When it was opened."""
    expires: datetime | None = None
    """When it expires."""
    digest: str = ""
    """Digest of what the request shows."""
    context: Brief | None = None
    """Summary of the run for the person who decides."""
    self_approval: bool = False
    """Whether the person who started the run may approve it."""
