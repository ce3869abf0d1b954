"""The state of a run: what its log folds to.

It holds what is open, and counters; what is settled is read from the log. So it stays small however long a run is. The
last decisions are kept for whoever looks, a fixed number of them.
"""

from typing import Literal

from limpet.events import Failure, Limits, Lineage, Payload, Spent, Wait
from limpet.events.parts import Part
from limpet.state.agent import AgentState

__all__ = [
    "ENDED",
    "Child",
    "Counters",
    "Decision",
    "ForkPoint",
    "Grant",
    "OpenRequest",
    "OpenStep",
    "Position",
    "RunState",
    "Signal",
    "Status",
    "TimedWait",
]

Status = Literal["pending", "running", "waiting", "completed", "failed", "cancelled"]
ENDED: frozenset[Status] = frozenset({"completed", "failed", "cancelled"})


class Position(Part, frozen=True, kw_only=True):
    """Where a run is: in its log, in its steps, and in its plan."""

    seq: int
    step: int
    """The highest number of a step so far."""
    steps: int | None = None
    """How many there are, where the agent says so."""
    item: int | None = None
    """The item of the plan that is being done or comes next, counted from 0."""
    items: int = 0

    def __str__(self) -> str:
        total = self.steps or self.items
        if self.steps is None and self.items:
            return f"step {self.items if self.item is None else self.item + 1} of {total}"
        return f"step {self.step} of {total}" if total else f"step {self.step}"


class OpenStep(Part, frozen=True, kw_only=True):
    """A step that was started and is not settled."""

    name: str
    tool: str
    number: int
    effect: Literal["none", "idempotent", "once", "transaction"]
    status: Literal["running", "retrying", "unknown"]
    attempt: int
    started: int
    """When its first attempt began."""
    retry_at: int | None = None
    errors: tuple[Failure, ...] = ()
    """Of the first attempt that went wrong, and of the last few; all are in the log."""
    reserved: Spent | None = None
    partial: Payload | None = None
    note: str = ""


class OpenRequest(Part, frozen=True, kw_only=True):
    """A request that nobody has decided."""

    request: str
    name: str
    kind: str
    question: str
    to: tuple[str, ...]
    expires: int | None
    seq: int
    digest: str = ""
    valid: int | None = None
    """How long an approval may be used, in microseconds."""


class Grant(Part, frozen=True, kw_only=True):
    """A permission that can still be used: an approval once, a standing one until it is revoked."""

    grant: str
    by: str
    standing: bool
    tool: str | None = None
    risk: str | None = None
    digest: str = ""
    """Of what was approved."""
    expires: int | None = None


class Decision(Part, frozen=True, kw_only=True):
    """A choice, as it was made."""

    question: str
    chosen: Payload
    because: str
    seq: int


class Signal(Part, frozen=True, kw_only=True):
    """A signal that came and that no code has taken yet."""

    signal: str
    seq: int


class TimedWait(Part, frozen=True, kw_only=True):
    """A wait in the code that is open: a timer, or for a signal."""

    name: str
    wake: int | None
    signal: str | None = None


class Child(Part, frozen=True, kw_only=True):
    """A run that was called, and what of the budget went along."""

    run: str
    name: str
    """The verb that called it."""
    budget: Limits | None = None


class ForkPoint(Part, frozen=True, kw_only=True):
    """The run and event that this one branched off."""

    run: str
    at: int


class Counters(Part, frozen=True, kw_only=True):
    """How often what happened."""

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
    """What is true of a run at one point of its log."""

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
    """Why it failed; or, while it goes on, what went wrong last."""
    error_step: int | None = None
    cancel: str | None = None
    """The reason of a cancel that was asked for."""
    pausing: bool = False
    """A pause was asked for that its worker has not followed yet."""
    fence: int = 0
    worker: str | None = None
    deaths: int = 0
    """How many workers have died in a row with nothing settled in between."""
    alone: bool = False
    """Whether it is the only suspect in the worker that has it."""
    solo: int = 0
    """How many of those deaths came while it was the only suspect in its worker."""
    quarantines: int = 0
    """How often it was quarantined since anything was settled."""
    working: AgentState
    steps: tuple[OpenStep, ...] = ()
    requests: tuple[OpenRequest, ...] = ()
    grants: tuple[Grant, ...] = ()
    open_waits: tuple[TimedWait, ...] = ()
    children: tuple[Child, ...] = ()
    """Runs that were called and have not returned."""
    signals: tuple[Signal, ...] = ()
    decisions: tuple[Decision, ...] = ()
    """The last ones."""
    turns: dict[str, int] = {}
    """The current turn of each loop."""
    reads: dict[str, int] = {}
    """When what was read of each source outside becomes stale."""
    spent: Spent
    told: Spent = Spent()
    """What it had used up when it failed before, which whoever called it was told."""
    counters: Counters
