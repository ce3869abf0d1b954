"""The state of a run, computed from its log.

It contains what is open, and counters; settled steps are read from the log. It therefore stays small however long a run
is. The last decisions are kept for display, up to a fixed number.
"""

from typing import Literal

from limpet.events import Failure, Limits, Lineage, Payload, Spent, StatePatch, Wait
from limpet.events.parts import Part
from limpet.state.agent import AgentState

__all__ = [
    "ENDED",
    "Child",
    "CommandKind",
    "Counters",
    "Decision",
    "FactAge",
    "ForkPoint",
    "Grant",
    "ItemStart",
    "LastCommand",
    "OpenRequest",
    "OpenStep",
    "Position",
    "ReceivedPatch",
    "RunState",
    "Signal",
    "Status",
    "TimedWait",
]

Status = Literal["pending", "running", "waiting", "completed", "failed", "cancelled"]
CommandKind = Literal["start", "fork", "pause", "resume", "cancel", "extend", "patch", "move"]
ENDED: frozenset[Status] = frozenset({"completed", "failed", "cancelled"})


class Position(Part, frozen=True, kw_only=True):
    """Position of a run: in its log, its steps and its plan."""

    seq: int
    step: int
    """Highest number of a step so far."""
    steps: int | None = None
    """Total number of steps, if the agent declares it."""
    item: int | None = None
    """Index of the plan's current or next item, from 0."""
    items: int = 0

    def __str__(self) -> str:
        total = self.steps or self.items
        if self.steps is None and self.items:
            return f"step {self.items if self.item is None else self.item + 1} of {total}"
        return f"step {self.step} of {total}" if total else f"step {self.step}"


class OpenStep(Part, frozen=True, kw_only=True):
    """A step that started and is not settled."""

    name: str
    tool: str
    number: int
    effect: Literal["none", "idempotent", "once", "transaction"]
    status: Literal["running", "retrying", "unknown"]
    attempt: int
    started: int
    """Time when its first attempt started."""
    retry_at: int | None = None
    errors: tuple[Failure, ...] = ()
    """Errors of the first failed attempt and of the last few. The log has all of them."""
    reserved: Spent | None = None
    partial: Payload | None = None
    note: str = ""


class OpenRequest(Part, frozen=True, kw_only=True):
    """A request without a decision."""

    request: str
    name: str
    kind: str
    question: str
    to: tuple[str, ...]
    expires: int | None
    seq: int
    digest: str = ""
    valid: int | None = None
    """How long an approval is valid, in microseconds."""


class Grant(Part, frozen=True, kw_only=True):
    """An approval that can still be used: once, or until it is revoked if it is standing."""

    grant: str
    by: str
    standing: bool
    tool: str | None = None
    risk: str | None = None
    digest: str = ""
    """Digest of what was approved."""
    expires: int | None = None


class Decision(Part, frozen=True, kw_only=True):
    """A decision that the agent recorded."""

    question: str
    chosen: Payload
    because: str
    seq: int
    confidence: float | None = None


class Signal(Part, frozen=True, kw_only=True):
    """A signal that was received and that no wait has taken yet."""

    signal: str
    seq: int


class TimedWait(Part, frozen=True, kw_only=True):
    """An open wait: for a timer or a signal."""

    name: str
    wake: int | None
    signal: str | None = None


class Child(Part, frozen=True, kw_only=True):
    """A called run, and the part of the budget that it got."""

    run: str
    name: str
    """The call that created it."""
    budget: Limits | None = None


class LastCommand(Part, frozen=True, kw_only=True):
    """The last command of one kind that the run received, and who sent it."""

    by: str
    via: str
    """The interface; "run" if another run sent it."""
    time: int
    seq: int
    reason: str = ""


class ReceivedPatch(Part, frozen=True, kw_only=True):
    """A patch from outside that waits for the run's next turn."""

    seq: int
    patch: StatePatch


class ForkPoint(Part, frozen=True, kw_only=True):
    """The run and event from which this run was forked."""

    run: str
    at: int


class FactAge(Part, frozen=True, kw_only=True):
    """When a fact was recorded, and until when it is valid, if it was read from an external source."""

    time: int
    until: int | None = None


class ItemStart(Part, frozen=True, kw_only=True):
    """A plan item, and the first of the successive steps that started while it was current."""

    item: int
    step: int


class Counters(Part, frozen=True, kw_only=True):
    """Number of events of each type."""

    events: int = 0
    attempts: int = 0
    steps_completed: int = 0
    steps_failed: int = 0
    steps_unknown: int = 0
    decisions: int = 0
    patches: int = 0
    requests: int = 0
    signals: int = 0
    children: int = 0
    turns: int = 0
    claims: int = 0
    compensations: int = 0


class RunState(Part, frozen=True, kw_only=True):
    """The state of a run at one point of its log."""

    run: str
    agent: str
    agent_version: str
    status: Status
    position: Position
    input: Payload
    created: int
    updated: int
    waits: tuple[Wait, ...] = ()
    wake: int | None = None
    deadline: int | None = None
    user: str | None = None
    session: str | None = None
    conversation: str | None = None
    labels: dict[str, str] = {}
    parent: Lineage | None = None
    fork: ForkPoint | None = None
    output: Payload | None = None
    error: Failure | None = None
    """Why the run failed; while it runs, the last error."""
    error_step: int | None = None
    cancel: str | None = None
    """Reason of a requested cancellation."""
    pausing: bool = False
    """Whether a pause was requested that the worker has not applied yet."""
    fence: int = 0
    worker: str | None = None
    deaths: int = 0
    """Consecutive worker deaths since a step or wait was settled."""
    alone: bool = False
    """Whether the run is the only suspect of the worker that holds it."""
    solo: int = 0
    """Number of those deaths while the run was its worker's only suspect."""
    quarantines: int = 0
    """Number of quarantines since a step or wait was settled."""
    working: AgentState
    steps: tuple[OpenStep, ...] = ()
    requests: tuple[OpenRequest, ...] = ()
    grants: tuple[Grant, ...] = ()
    open_waits: tuple[TimedWait, ...] = ()
    children: tuple[Child, ...] = ()
    """Runs that were called and have not returned."""
    signals: tuple[Signal, ...] = ()
    decisions: tuple[Decision, ...] = ()
    """The last decisions."""
    turns: dict[str, int] = {}
    """Current turn of each loop."""
    item_start: ItemStart | None = None
    """The plan item that was current in the last steps, and the first of these steps."""
    reads: dict[str, int] = {}
    """Time when the data of each external source becomes stale."""
    fact_ages: dict[str, FactAge] = {}
    """When each known fact was recorded, by key."""
    patches: tuple[ReceivedPatch, ...] = ()
    """Patches from outside that wait for the next turn."""
    last_read: tuple[int, int] | None = None
    """Step of the last external read and the time when it becomes stale, until its fact is recorded."""
    commands: dict[CommandKind, LastCommand] = {}
    """How the run was created, and the last command of each kind that controls it."""
    spent: Spent
    told: Spent = Spent()
    """Usage that was already reported to the caller, when the run failed before."""
    counters: Counters

    @property
    def since(self) -> int | None:
        """First step of the plan's current item; None without a plan, or before the item's first step."""
        return since(self.item_start, self.position.item)


def later(deadline: int | None, extended: int) -> int | None:
    """Return a deadline after an extension. It never moves forward, and a run without one gets none."""
    return None if deadline is None else max(deadline, extended)


def since(start: ItemStart | None, item: int | None) -> int | None:
    """Return the first step of a plan item, if the last steps belong to it."""
    return start.step if start is not None and start.item == item else None
