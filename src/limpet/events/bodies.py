"""What can happen to a run or a conversation: one struct per kind of event, in its newest version.

`name` is the identity of a verb of the agent's code (`look/fetch_order#1`), `number` the number of a step, `command`
the id under which a command from outside is deduplicated. Times are microseconds of the store's clock.
"""

from typing import Literal

from limpet.events.parts import Effects, Failure, Limits, Lineage, Outside, Part, Seen, Spent, StatePatch, Wait
from limpet.events.values import Payload, check_finite


class Body(Part, frozen=True, kw_only=True):
    """What an event says, apart from its envelope."""


class Command(Body, frozen=True, kw_only=True):
    """A body that may come from any process, sealed by the store."""

    command: str


# The run itself


class RunCreated(Body, frozen=True, kw_only=True):
    """A run exists."""

    agent: str
    agent_version: str
    input: Payload
    user: str | None = None
    session: str | None = None
    conversation: str | None = None
    labels: dict[str, str] = {}
    parent: Lineage | None = None
    initial: StatePatch | None = None
    """Goal, constraints, budget, facts and artifacts that it begins with."""
    steps: int | None = None
    """How many steps the agent says it has."""
    start_at: int | None = None
    deadline: int | None = None
    exclusive: str | None = None
    """The slot that only one run at a time may hold, such as `session:s-1`."""
    contract: str | None = None
    """Hash of the contract under which the input was checked."""
    artifacts: dict[str, Payload] = {}
    """What the artifacts hold that came along, by their ids."""
    effects: Effects = "live"
    """Whether what it does outside is done, asked for first, or made up: as in the fork that called it."""
    live: tuple[Outside, ...] = ()
    """What of the outside is used all the same where effects are made up."""


class RunForked(Body, frozen=True, kw_only=True):
    """A run exists that shares the beginning of another's log, and says anew what lists show of it."""

    run: str
    at: int
    """The last event of the parent that is shared."""
    step: int
    """The highest number of a step that is shared."""
    effects: Effects
    agent: str = ""
    agent_version: str | None = None
    input: Payload | None = None
    """Another input than the parent's."""
    patch: StatePatch | None = None
    """What it knows otherwise than the parent did there."""
    results: dict[str, Payload] = {}
    """Results that replace recorded ones, by step number."""
    deadline: int | None = None
    user: str | None = None
    session: str | None = None
    conversation: str | None = None
    exclusive: str | None = None
    labels: dict[str, str] = {}
    steps: int | None = None
    goal: str = ""
    item: int | None = None
    items: int = 0
    """Where in its plan it is, and how long that is."""
    live: tuple[Outside, ...] = ()
    """What of the outside is used all the same where effects are made up."""


class RunClaimed(Body, frozen=True, kw_only=True):
    """A worker has the run; the envelope's fence is the one it was given."""

    worker: str
    died: bool = False
    """It was taken from a worker that died while it had the run."""
    alone: bool = False
    """It was the only suspect in this worker: if the worker dies now, this run is likely the cause."""


class RunReleased(Body, frozen=True, kw_only=True):
    """A worker gave the run back before it could park or end; or it died, and its name is used anew."""

    reason: str
    died: bool = False
    retry_at: int | None = None
    """No worker claims it before this time."""
    fruitless: bool = False
    """The worker could not drive it; after too many of these without progress, the run waits for an operator."""


class RunWaiting(Body, frozen=True, kw_only=True):
    """The run is parked; no process holds it."""

    waits: tuple[Wait, ...]
    wake: int | None = None
    """The least of its timers, expiries and deadline."""


class RunCompleted(Body, frozen=True, kw_only=True):
    """The agent returned."""

    output: Payload


class RunFailed(Body, frozen=True, kw_only=True):
    """The agent raised; a resume voids the failure of this verb and nothing else. Every open wait ends with it."""

    failure: Failure
    name: str | None = None
    """The verb whose error ended the run: a step, a call, an ask."""
    number: int | None = None


class RunCancelled(Body, frozen=True, kw_only=True):
    """The run was stopped on request."""

    reason: str
    by: str = ""


class TurnStarted(Body, frozen=True, kw_only=True):
    """A turn of a loop begins; a resumed run enters here, and loops inside the turn before are over."""

    loop: str
    """Its identity; that of a loop inside begins with it and a slash."""
    number: int


# Steps


class StepStarted(Body, frozen=True, kw_only=True):
    """An attempt begins; durable before any effect leaves the process."""

    name: str
    tool: str
    number: int
    attempt: int
    asked: str
    """Digest of the arguments as the code gave them, less those equal to their defaults."""
    args: Payload
    """The arguments as used; a person may have edited them."""
    effect: Literal["none", "idempotent", "once", "transaction"]
    key: str = ""
    """The idempotency key, the same on every attempt."""
    risk: str | None = None
    grant: str | None = None
    """The request whose approval this attempt consumes."""
    timeout_at: int | None = None
    kind: Literal["tool", "model", "read"] = "tool"
    stubbed: bool = False
    """It is not done, in a fork that only tries: its result is that of the run that was forked, or made up."""
    made_up: bool = False
    """Its result is a sample of its type: the run that was forked has none."""


class StepProgressed(Body, frozen=True, kw_only=True):
    """A sign of life of a long attempt."""

    number: int
    attempt: int
    note: str = ""
    fraction: float | None = None
    partial: Payload | None = None

    def __post_init__(self) -> None:
        check_finite("fraction", self.fraction)


class StepCompleted(Body, frozen=True, kw_only=True):
    """An attempt gave a result, kept verbatim; or it was applied, and its output cannot be stored.

    A transaction's `step.started` rides in the same append.
    """

    name: str
    number: int
    attempt: int
    output: Payload | None = None
    unavailable: Failure | None = None
    """Why there is no output, though the effect was applied: it is never run again."""
    spent: Spent | None = None


class StepFailed(Body, frozen=True, kw_only=True):
    """An attempt raised, and nothing was applied or repeating it is safe."""

    name: str
    number: int
    attempt: int
    failure: Failure
    retry_at: int | None = None
    """When the next attempt is due."""
    escalated: bool = False
    """A person is asked what now."""
    spent: Spent | None = None

    @property
    def is_final(self) -> bool:
        """Whether the step has failed, and not just an attempt."""
        return self.retry_at is None and not self.escalated


class StepUnknown(Body, frozen=True, kw_only=True):
    """An attempt started and nobody knows what came of it."""

    name: str
    number: int
    attempt: int
    reason: Literal["died", "timeout", "cancelled", "lost", "error"]
    failure: Failure | None = None
    spent: Spent | None = None


class StepResolved(Body, frozen=True, kw_only=True):
    """An unknown attempt was settled: it was applied, or it was not."""

    name: str
    number: int
    attempt: int
    how: Literal["verify", "person", "declared", "late"]
    outcome: Literal["applied", "not_applied", "gave_up"]
    output: Payload | None = None
    failure: Failure | None = None
    request: str | None = None


# What the agent knows and chooses


class DecisionMade(Body, frozen=True, kw_only=True):
    """What the agent chose at a branch, from which options, and why."""

    name: str
    question: str
    chosen: Payload
    options: Payload
    because: str
    confidence: float | None = None
    number: int | None = None
    """The model call that chose, where it was one."""

    def __post_init__(self) -> None:
        check_finite("confidence", self.confidence)


class StatePatched(Body, frozen=True, kw_only=True):
    """The agent's working state changed."""

    name: str
    patch: StatePatch
    number: int | None = None


class ArtifactStored(Body, frozen=True, kw_only=True):
    """Something big was put away."""

    name: str
    artifact_id: str
    type: str
    summary: str
    bytes: int
    content: Payload
    number: int | None = None


class ValueRecorded(Body, frozen=True, kw_only=True):
    """A time, a random number or an id that the code was given, so that it is given the same again."""

    name: str
    value: Payload


class VersionChosen(Body, frozen=True, kw_only=True):
    """Which side of a change of code this run is on."""

    name: str
    change: str
    chosen: bool


class RiskFlagged(Body, frozen=True, kw_only=True):
    """A policy saw something that people should see, such as budget pressure."""

    flag: str
    detail: str = ""


# People


class RequestOpened(Body, frozen=True, kw_only=True):
    """The run needs a person: for an answer, an approval, or to settle what it cannot."""

    request: str
    name: str
    kind: Literal["ask", "approval", "unknown", "budget", "compensation", "escalation"]
    question: str
    to: tuple[str, ...] = ()
    digest: str = ""
    """Of tool, arguments, schema and policy, as shown; checked again when the effect starts."""
    schema: Payload | None = None
    options: Payload | None = None
    default: Payload | None = None
    expires: int | None = None
    escalate: tuple[str, ...] = ()
    number: int | None = None
    tool: str | None = None
    args: Payload | None = None
    risk: str | None = None
    context: Payload | None = None
    seen: tuple[Seen, ...] = ()
    """What the sources had said that the tool goes by: it must still hold when the approved step starts."""
    valid: int | None = None
    """How long an approval may be used, in microseconds from the answer."""
    instead_of: str | None = None
    """An earlier request for the same step, which was approved and could not be used."""
    again: Literal["changed", "late"] | None = None
    """Why not: what the person had seen has changed, or the approval was not used in its time."""


class RequestAnswered(Command, frozen=True, kw_only=True):
    """A person decided; the first decision in the log counts."""

    request: str
    decision: Literal["answered", "approved", "rejected"]
    by: str
    digest: str = ""
    """Of what the person saw; it must be that of the request."""
    answer: Payload | None = None
    args: Payload | None = None
    """Arguments that the person edited."""
    because: str = ""
    via: str = ""
    """The door it came through."""


class RequestExpired(Body, frozen=True, kw_only=True):
    """Nobody decided in time."""

    request: str
    outcome: Literal["default", "escalated", "raised"]
    to: tuple[str, ...] = ()
    expires: int | None = None


class GrantGiven(Command, frozen=True, kw_only=True):
    """A standing permission: this tool or risk, for the rest of the run."""

    grant: str
    by: str
    tool: str | None = None
    risk: str | None = None
    request: str | None = None


class GrantRevoked(Command, frozen=True, kw_only=True):
    """A standing permission ends."""

    grant: str
    by: str
    because: str = ""


# Other agents


class AgentCalled(Body, frozen=True, kw_only=True):
    """Work was given to another agent; its run is created in the same append."""

    name: str
    run: str
    agent: str
    mode: Literal["call", "start", "handoff", "notify"]
    asked: str
    agent_version: str | None = None
    contract: str | None = None
    budget: Limits | None = None
    """The slice of the budget that went along; what is left comes back."""
    deadline: int | None = None
    facts: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()
    versions: dict[str, int] = {}
    """Those of the types of what it was given, where they are not the first."""


class AgentReturned(Command, frozen=True, kw_only=True):
    """The other agent's run has ended, in the same append."""

    run: str
    outcome: Literal["completed", "failed", "cancelled", "rejected", "expired"]
    output: Payload | None = None
    failure: Failure | None = None
    spent: Spent | None = None
    contract: str | None = None
    number: int | None = None
    """The step whose error ended it."""


# Waiting


class SignalReceived(Command, frozen=True, kw_only=True):
    """Something was sent to the run."""

    signal: str
    value: Payload
    by: str = ""


class TimerSet(Body, frozen=True, kw_only=True):
    """A time the run waits for."""

    name: str
    wake: int


class WaitOpened(Body, frozen=True, kw_only=True):
    """The run wants a signal."""

    name: str
    signal: str
    expires: int | None = None


class WaitEnded(Body, frozen=True, kw_only=True):
    """A wait is over: which of its possible ends it was, and by what."""

    name: str
    how: Literal["fired", "answered", "received", "returned", "timeout", "withdrawn"]
    event: int | None = None
    """The number of the event that ended it."""
    request: str | None = None
    """The request that leaves the inbox with it."""


# Conversations and the outside world


class ConversationCreated(Body, frozen=True, kw_only=True):
    """A conversation exists."""

    session: str | None = None
    user: str | None = None
    labels: dict[str, str] = {}


class ConversationForked(Body, frozen=True, kw_only=True):
    """A conversation exists that shares the beginning of another's messages."""

    conversation: str
    at: int
    session: str | None = None
    user: str | None = None
    labels: dict[str, str] = {}


class MessageAdded(Body, frozen=True, kw_only=True):
    """A message of a conversation, stored once."""

    message: str
    role: Literal["user", "assistant", "system", "tool"]
    content: Payload
    run: str | None = None
    number: int | None = None
    call: str | None = None
    """The tool call that a result belongs to."""
    pinned: bool = False
    repaired: bool = False
    """Put in by us, for a call that never got its result."""
    reply: Payload | None = None
    """What a model said, as its step recorded it, where it holds more than the content: what led to its calls."""


class ConversationCompacted(Body, frozen=True, kw_only=True):
    """A summary stands for a range of messages, which stay; or no longer does."""

    first: int
    last: int
    summary: Payload | None
    level: int = 1
    run: str | None = None
    number: int | None = None
    pinned: tuple[int, ...] = ()
    """Messages of the range that are shown all the same."""
    previous: int | None = None
    """The event with the summary of what came before the range, if there is one."""


class MessageSaid(Body, frozen=True, kw_only=True):
    """The agent put a message into a conversation, in the same append."""

    name: str
    conversation: str
    message: int
    """Its sequence in the conversation."""
    count: int = 1
    """How many there are from there on."""


class ExternalRead(Body, frozen=True, kw_only=True):
    """A source outside was read; it may be used until it is stale."""

    source: str
    key: str
    """Digest of the arguments."""
    number: int
    stale_at: int


class ExternalInvalidated(Body, frozen=True, kw_only=True):
    """What was read of a source no longer holds."""

    source: str
    number: int | None = None


# Limits and control


class BudgetReserved(Body, frozen=True, kw_only=True):
    """Put aside before a call, settled after it."""

    number: int
    tokens: int = 0
    cost: float = 0.0

    def __post_init__(self) -> None:
        check_finite("cost", self.cost)


class BudgetExtended(Command, frozen=True, kw_only=True):
    """Somebody allowed more."""

    by: str
    limits: Limits
    because: str = ""


class CancelRequested(Command, frozen=True, kw_only=True):
    """Somebody wants the run to stop."""

    reason: str
    by: str = ""


class PauseRequested(Command, frozen=True, kw_only=True):
    """Somebody wants the run to wait."""

    by: str = ""
    reason: str = ""


class ResumeRequested(Command, frozen=True, kw_only=True):
    """Somebody wants a paused, quarantined, diverged or failed run to go on."""

    by: str = ""


class CompensationStarted(Body, frozen=True, kw_only=True):
    """The undoing of a step begins."""

    number: int
    attempt: int
    key: str
    because: Failure | None = None
    """What the run failed with, in the first such event."""


class CompensationCompleted(Body, frozen=True, kw_only=True):
    """A step is undone."""

    number: int
    attempt: int


class CompensationFailed(Body, frozen=True, kw_only=True):
    """Undoing a step did not work."""

    number: int
    attempt: int
    failure: Failure
    retry_at: int | None = None


class CompensationSkipped(Body, frozen=True, kw_only=True):
    """A step cannot be undone, or a person said to leave it."""

    number: int
    reason: str
    because: Failure | None = None
    """What the run failed with, in the first such event."""
