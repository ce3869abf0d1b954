"""The bodies of events: one struct per kind, in its newest version.

`name` identifies a call of `run` in the log (`look/fetch_order#1`), `number` is the number of a step, and `command` the
id by which commands from other processes are deduplicated. Times are microseconds of the store's clock. `by` and `via`
record the sender of a command: see `Attributed`.
"""

from typing import Literal

from limpet.events.parts import (
    Effects,
    Failure,
    Limits,
    Lineage,
    Outside,
    Part,
    RecordPatch,
    Seen,
    Spent,
    StatePatch,
    Wait,
)
from limpet.events.values import Payload, check_finite


class Body(Part, frozen=True, kw_only=True):
    """The content of an event, without its envelope."""


class Attributed(Body, frozen=True, kw_only=True):
    """A body that records who caused it."""

    by: str = ""
    """Name of the person or service; if `via` is "run", the id of the run. Empty if it is unknown."""
    via: str = ""
    """The interface: "python", "cli", "http" or "mcp"; "run" for another run; the name of an engine. Empty in logs of
    older versions.
    """


class Command(Attributed, frozen=True, kw_only=True):
    """A body that any process may write; the store seals it."""

    command: str


# The run itself


class RunCreated(Attributed, frozen=True, kw_only=True):
    """A run was created."""

    agent: str
    agent_version: str
    input: Payload
    user: str | None = None
    session: str | None = None
    conversation: str | None = None
    labels: dict[str, str] = {}
    parent: Lineage | None = None
    initial: StatePatch | None = None
    """Goal, constraints, budget, facts and artifacts that the run starts with."""
    steps: int | None = None
    """Number of steps that the agent declares."""
    start_at: int | None = None
    deadline: int | None = None
    exclusive: str | None = None
    """The slot that only one run may hold at a time, such as `session:s-1`."""
    contract: str | None = None
    """Hash of the contract that the input was checked against."""
    artifacts: dict[str, Payload] = {}
    """Content of the artifacts that the run starts with, by artifact id."""
    effects: Effects = "live"
    """How effects are handled: live, after an approval, or stubbed. A child run inherits this from its caller."""
    live: tuple[Outside, ...] = ()
    """External inputs that stay live where effects are stubbed."""
    asked: str = ""
    """Digest of the options that its creator chose, if they chose its id: a repeated start must have the same."""
    engine: str = ""
    """The engine that has the run driven, such as `temporal`; empty for the workers of Limpet."""


class RunForked(Attributed, frozen=True, kw_only=True):
    """A run was created as a fork, which shares the first events of another run's log.

    It repeats the fields that lists of runs show.
    """

    run: str
    at: int
    """Sequence of the last shared event of the parent."""
    step: int
    """Highest number of a shared step."""
    effects: Effects
    agent: str = ""
    agent_version: str | None = None
    input: Payload | None = None
    """An input that replaces the parent's."""
    patch: StatePatch | None = None
    """Changes to the parent's state at the fork."""
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
    """Position in the plan and its length."""
    live: tuple[Outside, ...] = ()
    """External inputs that stay live where effects are stubbed."""
    asked: str = ""
    """Digest of the options that its creator chose, if they chose its id: a repeated fork must have the same."""
    engine: str = ""
    """The engine that has the run driven; see `RunCreated`."""


class RunClaimed(Body, frozen=True, kw_only=True):
    """A worker claimed the run. The envelope's fence is the one that the worker got."""

    worker: str
    died: bool = False
    """The run was taken from a worker that died while it held the run."""
    alone: bool = False
    """The run was this worker's only suspect: if the worker dies now, this run is the likely cause."""


class RunReleased(Body, frozen=True, kw_only=True):
    """A worker released the run before it could park or end; or the worker died, and its id is used again."""

    reason: str
    died: bool = False
    retry_at: int | None = None
    """No worker claims the run before this time."""
    fruitless: bool = False
    """The worker could not drive the run. After too many of these without progress, the run waits for an operator."""


class RunWaiting(Body, frozen=True, kw_only=True):
    """The run is parked; no process holds it."""

    waits: tuple[Wait, ...]
    wake: int | None = None
    """Earliest of its timers, expiries and deadline."""


class RunCompleted(Body, frozen=True, kw_only=True):
    """The agent returned."""

    output: Payload


class RunFailed(Body, frozen=True, kw_only=True):
    """The agent raised. A resume makes the calls in `voids` again, and no others. Every open wait ends with the run."""

    failure: Failure
    name: str | None = None
    """The call whose error ended the run: a step, an agent call, an ask."""
    number: int | None = None
    voids: tuple[str, ...] = ()
    """The calls that a resume makes again: those that failed, and those that the code cancelled then."""


class RunCancelled(Attributed, frozen=True, kw_only=True):
    """The run was stopped on request. `by` and `via` are those of the request."""

    reason: str


class TurnStarted(Body, frozen=True, kw_only=True):
    """A turn of a loop started. A resumed run continues here; loops inside the previous turn have ended."""

    loop: str
    """Identity of the loop. That of an inner loop starts with the outer one and a slash."""
    number: int


# Steps


class StepStarted(Body, frozen=True, kw_only=True):
    """An attempt started. This event is durable before any effect leaves the process."""

    name: str
    tool: str
    number: int
    attempt: int
    asked: str
    """Digest of the arguments as passed by the code, without those that equal their defaults."""
    args: Payload
    """The arguments as used; a person may have edited them."""
    effect: Literal["none", "idempotent", "once", "transaction"]
    key: str = ""
    """The idempotency key, the same on every attempt."""
    risk: str | None = None
    grant: str | None = None
    """The request whose approval this attempt uses."""
    timeout_at: int | None = None
    kind: Literal["tool", "model", "read"] = "tool"
    stubbed: bool = False
    """The step is stubbed, in a fork: its result is that of the forked run, or generated."""
    made_up: bool = False
    """The result is a sample of its type, because the forked run has none."""
    granted_by: str = ""
    """The person who gave the approval."""
    item: int | None = None
    """Index of the plan's current item."""


class StepProgressed(Body, frozen=True, kw_only=True):
    """A long attempt reported progress."""

    number: int
    attempt: int
    note: str = ""
    fraction: float | None = None
    partial: Payload | None = None

    def __post_init__(self) -> None:
        check_finite("fraction", self.fraction)


class StepCompleted(Body, frozen=True, kw_only=True):
    """An attempt returned a result, which is stored verbatim; or it was applied and its output cannot be stored.

    In a transaction, `step.started` is part of the same append.
    """

    name: str
    number: int
    attempt: int
    output: Payload | None = None
    unavailable: Failure | None = None
    """Why the output is missing although the effect was applied. The step is never run again."""
    spent: Spent | None = None


class StepFailed(Body, frozen=True, kw_only=True):
    """An attempt raised; nothing was applied, or repeating it is safe."""

    name: str
    number: int
    attempt: int
    failure: Failure
    retry_at: int | None = None
    """Time of the next attempt."""
    escalated: bool = False
    """A person is asked what to do."""
    spent: Spent | None = None

    @property
    def is_final(self) -> bool:
        """Whether the step has failed, not only this attempt."""
        return self.retry_at is None and not self.escalated


class StepUnknown(Body, frozen=True, kw_only=True):
    """An attempt started and its outcome is unknown."""

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


# State and decisions


class DecisionMade(Body, frozen=True, kw_only=True):
    """The agent decided at a branch; recorded with the options and the reason."""

    name: str
    question: str
    chosen: Payload
    options: Payload
    because: str
    confidence: float | None = None
    number: int | None = None
    """The model call that decided, if a model did."""

    def __post_init__(self) -> None:
        check_finite("confidence", self.confidence)


class StatePatched(Body, frozen=True, kw_only=True):
    """The agent's working state changed."""

    name: str
    patch: StatePatch
    number: int | None = None
    item: int | None = None
    """Index of the plan's current or next item after the patch; None if all are done."""
    items: int | None = None
    """Number of items in the plan after the patch; None if the patch does not concern the plan."""
    event: int | None = None
    """Sequence of the event with which the patch arrived, if it came from outside."""


class ArtifactStored(Body, frozen=True, kw_only=True):
    """A large value was stored as an artifact."""

    name: str
    artifact_id: str
    type: str
    summary: str
    bytes: int
    content: Payload
    number: int | None = None
    """The last step that the code had called before, in the same scope if there is one."""


class ValueRecorded(Body, frozen=True, kw_only=True):
    """A time, random number or id was given to the code. A replay returns the same value."""

    name: str
    value: Payload


class VersionChosen(Body, frozen=True, kw_only=True):
    """The run chose between old and new code at a version check."""

    name: str
    change: str
    chosen: bool


class RiskFlagged(Body, frozen=True, kw_only=True):
    """A policy noticed something that people should see, such as budget pressure."""

    flag: str
    detail: str = ""


# People


class RequestOpened(Body, frozen=True, kw_only=True):
    """The run needs a person: to answer, to approve, or to settle what the run cannot."""

    request: str
    name: str
    kind: Literal["ask", "approval", "unknown", "budget", "compensation", "escalation"]
    question: str
    to: tuple[str, ...] = ()
    digest: str = ""
    """Digest of tool, arguments, schema and policy as shown. Checked again when the effect starts."""
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
    """Source data that the tool relies on. It must still be valid when the approved step starts."""
    valid: int | None = None
    """How long an approval is valid, in microseconds after the answer."""
    self_approval: bool = False
    """Whether the person who started the run may approve it."""
    instead_of: str | None = None
    """An earlier request for the same step, which was approved and could not be used."""
    again: Literal["changed", "late"] | None = None
    """Why the earlier approval could not be used: the data shown has changed, or the approval expired."""
    key: str = ""
    """Idempotency key of the call, if it is approved as shown. Empty for a read."""
    undo: Literal["compensated", "never"] | None = None
    """Whether a compensation undoes the call if the run is cancelled later, or nothing does; None: not declared."""


class RequestAnswered(Command, frozen=True, kw_only=True):
    """A person decided. The first decision in the log is final."""

    request: str
    decision: Literal["answered", "approved", "rejected"]
    by: str
    digest: str = ""
    """Digest of what the person was shown; it must equal the request's."""
    answer: Payload | None = None
    args: Payload | None = None
    """Arguments that the person edited."""
    because: str = ""


class RequestExpired(Body, frozen=True, kw_only=True):
    """No decision arrived in time."""

    request: str
    outcome: Literal["default", "escalated", "raised"]
    to: tuple[str, ...] = ()
    expires: int | None = None


class GrantGiven(Command, frozen=True, kw_only=True):
    """A person granted a standing approval for a tool or a risk, for the rest of the run."""

    grant: str
    by: str
    tool: str | None = None
    risk: str | None = None
    request: str | None = None


class GrantRevoked(Command, frozen=True, kw_only=True):
    """A standing approval was revoked."""

    grant: str
    by: str
    because: str = ""


# Other agents


class AgentCalled(Body, frozen=True, kw_only=True):
    """The agent called another agent, whose run is created in the same append."""

    name: str
    run: str
    agent: str
    mode: Literal["call", "start", "handoff", "notify"]
    asked: str
    agent_version: str | None = None
    contract: str | None = None
    budget: Limits | None = None
    """The part of the budget that was passed on. The unused rest is returned."""
    deadline: int | None = None
    facts: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()
    versions: dict[str, int] = {}
    """Versions of the types in the input, where they are not the first."""


class AgentReturned(Command, frozen=True, kw_only=True):
    """The other agent's run ended, in the same append."""

    run: str
    outcome: Literal["completed", "failed", "cancelled", "rejected", "expired"]
    output: Payload | None = None
    failure: Failure | None = None
    spent: Spent | None = None
    contract: str | None = None
    number: int | None = None
    """The step whose error ended the run."""


# Waiting


class SignalReceived(Command, frozen=True, kw_only=True):
    """A signal was sent to the run."""

    signal: str
    value: Payload


class PatchReceived(Command, frozen=True, kw_only=True):
    """A patch of the working state was sent to the run, which applies it at its next turn."""

    patch: StatePatch


class TimerSet(Body, frozen=True, kw_only=True):
    """The run set a timer."""

    name: str
    wake: int


class WaitOpened(Body, frozen=True, kw_only=True):
    """The run started to wait for a signal."""

    name: str
    signal: str
    expires: int | None = None


class WaitEnded(Body, frozen=True, kw_only=True):
    """A wait ended: how, and by which event."""

    name: str
    how: Literal["fired", "answered", "received", "returned", "timeout", "withdrawn"]
    event: int | None = None
    """Sequence of the event that ended the wait."""
    request: str | None = None
    """The request that this removes from the inbox."""


# Conversations and external sources


class ConversationCreated(Body, frozen=True, kw_only=True):
    """A conversation was created."""

    session: str | None = None
    user: str | None = None
    labels: dict[str, str] = {}


class ConversationForked(Body, frozen=True, kw_only=True):
    """A conversation was created as a fork, which shares the first messages of another."""

    conversation: str
    at: int
    session: str | None = None
    user: str | None = None
    labels: dict[str, str] = {}


class MessageAdded(Attributed, frozen=True, kw_only=True):
    """A message was added to a conversation."""

    message: str
    role: Literal["user", "assistant", "system", "tool"]
    content: Payload
    run: str | None = None
    number: int | None = None
    call: str | None = None
    """The tool call that this result belongs to."""
    pinned: bool = False
    repaired: bool = False
    """Inserted by Limpet for a tool call that never got a result."""
    reply: Payload | None = None
    """The model's reply as its step recorded it, if it has more than the content: what led to its tool calls."""


class ConversationCompacted(Attributed, frozen=True, kw_only=True):
    """A summary replaces a range of messages in prompts, or no longer does. The messages stay in the log."""

    first: int
    last: int
    summary: Payload | None
    level: int = 1
    run: str | None = None
    number: int | None = None
    pinned: tuple[int, ...] = ()
    """Messages of the range that are still shown."""
    previous: int | None = None
    """The event with the summary of what precedes the range, if there is one."""
    command: str = ""
    """Id of the command that sent the summary; "" if a run made it."""


class AuditStarted(Body, frozen=True, kw_only=True):
    """An audit log was created, for one month."""

    month: str
    """Year and month, such as "2026-11"."""


class AuditRecorded(Command, frozen=True, kw_only=True):
    """A caller did something, or was refused: who, what, from where, and how it ended. It has no payload."""

    action: str
    """Name of the operation, or of what happened, such as `login`, `refusal` or `token.created`."""
    kind: str = ""
    """Kind of the caller: `person`, `service` or `agent`; empty if the caller is unknown."""
    tenant: str = ""
    subject: str = ""
    """Id of the run, request, conversation or token that it was done to."""
    outcome: str = "done"
    """`done`, or the code of the error."""
    address: str = ""
    """Network address of the caller."""
    request: str = ""
    """Id of the caller's request, by which repeated requests are recognised."""
    count: int = 1
    """Number of equal events that this one stands for."""


class RecordCreated(Body, frozen=True, kw_only=True):
    """A shared record was created, by its first patch."""

    record: str
    """Name of the record."""


class RecordPatched(Command, frozen=True, kw_only=True):
    """A person, a service or a run changed a shared record."""

    read: int
    """Version of the record that its writer had read; 0 if there was none."""
    patch: RecordPatch
    number: int | None = None
    """The step that changed it, if a run did: the one that `by` names."""


class MessageSaid(Body, frozen=True, kw_only=True):
    """The agent added a message to a conversation, in the same append."""

    name: str
    conversation: str
    message: int
    """Sequence of the message in the conversation."""
    count: int = 1
    """Number of messages, starting there."""


class ExternalRead(Body, frozen=True, kw_only=True):
    """The run read an external source. The data may be used until it is stale."""

    source: str
    key: str
    """Digest of the arguments."""
    number: int
    stale_at: int


class ExternalInvalidated(Body, frozen=True, kw_only=True):
    """Data read from a source is no longer valid."""

    source: str
    number: int | None = None


# Limits and control


class BudgetReserved(Body, frozen=True, kw_only=True):
    """Budget was reserved before a call; it is settled after the call."""

    number: int
    tokens: int = 0
    cost: float = 0.0

    def __post_init__(self) -> None:
        check_finite("cost", self.cost)


class BudgetExtended(Command, frozen=True, kw_only=True):
    """A person or client extended the budget. Lower limits, or limits that the run does not have, have no effect."""

    by: str
    limits: Limits
    because: str = ""


class DeadlineExtended(Command, frozen=True, kw_only=True):
    """A person or client extended the deadline. An earlier one, or one for a run without a deadline, has no effect."""

    deadline: int
    because: str = ""


class CancelRequested(Command, frozen=True, kw_only=True):
    """A person or client asked to cancel the run."""

    reason: str


class PauseRequested(Command, frozen=True, kw_only=True):
    """A person or client asked to pause the run."""

    reason: str = ""


class ResumeRequested(Command, frozen=True, kw_only=True):
    """A person or client asked to resume a paused, quarantined, diverged or failed run."""


class RunMoved(Command, frozen=True, kw_only=True):
    """A person or client moved a run that no worker holds to another engine."""

    engine: str
    """The engine from now on; `builtin` for the workers of Limpet."""


class ScoreGiven(Command, frozen=True, kw_only=True):
    """A person or service said how good the run was, or one of its steps. It has a value, a comment, or both.

    A later score of the same name, sender and step replaces it. The agent does not see scores, and forks have none.
    """

    score: str
    """Name of the score, such as `quality`."""
    number: int | None = None
    """The step that it is about; None for the run."""
    value: bool | int | float | str | None = None
    """A number, true or false, or a category."""
    comment: str = ""

    def __post_init__(self) -> None:
        check_finite("value", self.value if isinstance(self.value, float) else None)


class ScoreWithdrawn(Command, frozen=True, kw_only=True):
    """A person or service withdrew their score of the run, or of a step."""

    score: str
    number: int | None = None


class CompensationStarted(Body, frozen=True, kw_only=True):
    """The compensation of a step started."""

    number: int
    attempt: int
    key: str
    because: Failure | None = None
    """The failure that ended the run; only in the first such event."""


class CompensationCompleted(Body, frozen=True, kw_only=True):
    """A step was compensated."""

    number: int
    attempt: int


class CompensationFailed(Body, frozen=True, kw_only=True):
    """The compensation of a step failed."""

    number: int
    attempt: int
    failure: Failure
    retry_at: int | None = None


class CompensationSkipped(Body, frozen=True, kw_only=True):
    """A step has no compensation, or a person decided to skip it."""

    number: int
    reason: str
    because: Failure | None = None
    """The failure that ended the run; only in the first such event."""
