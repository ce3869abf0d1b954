"""The write operations of a store. An `Append` is all or nothing; its legs may touch several runs.

Events come in two ways. Owner events are sealed by their appender, under the fence of its claim (`Extend`). Commands
come as bodies from any process, and the store seals them (`SendCommands`).
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from msgspec import Struct

from limpet.errors import InvalidAppend, InvalidValue
from limpet.events import VOCABULARY, AnyBody, Event, Head, Packed, Sealed, WrittenBy, canonical
from limpet.events.bodies import (
    AuditStarted,
    Command,
    ConversationCreated,
    ConversationForked,
    RecordCreated,
    RecordPatched,
    RequestAnswered,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunFailed,
    RunForked,
    RunWaiting,
    ScoreGiven,
    ScoreWithdrawn,
)
from limpet.ids import check_id
from limpet.state import AgentState, apply
from limpet.stores.blobs import Blob
from limpet.stores.rows import ContractRow, KeyRow, ReadyRun, RunRow, TokenRow, WorkerRow

__all__ = [
    "AUDIT",
    "DERIVED",
    "ENCRYPTED",
    "IDENTITY",
    "RECORD",
    "YES",
    "AddToken",
    "Append",
    "Appended",
    "Claim",
    "ClaimRun",
    "Claimed",
    "Collect",
    "Create",
    "DropSessions",
    "DropSnapshots",
    "DutyTurn",
    "EndDuty",
    "EndUpload",
    "Extend",
    "Extension",
    "Identify",
    "KeepDuty",
    "KeepLate",
    "Leg",
    "Load",
    "MarkIndexed",
    "Missed",
    "NotClaimed",
    "Op",
    "Prune",
    "PutChunk",
    "Raised",
    "Rebuild",
    "Recount",
    "Register",
    "Release",
    "Renew",
    "Renewal",
    "Retire",
    "RevokeToken",
    "SaveContracts",
    "SaveKeys",
    "SaveSnapshot",
    "SendCommands",
    "Settle",
    "TakeDuty",
    "Taken",
    "Transact",
    "Transacted",
    "UseToken",
    "Work",
    "check_contract",
    "check_leg",
]

R_co = TypeVar("R_co", covariant=True)
# The settings that record whether a store is encrypted, whether all its events are indexed by step, and its id.
ENCRYPTED, DERIVED, IDENTITY, YES = "encrypted", "derived_with_undone", "identity", "yes"
# Events with which the owner gives up the run.
LEAVING = (RunWaiting, RunCompleted, RunFailed, RunCancelled)


class Create(Struct, frozen=True, kw_only=True, gc=False):
    """Creates a stream with its first events. The store seals them, with its own time."""

    run: str
    bodies: tuple[AnyBody, ...]
    actor: str
    worker: str | None = None
    """The worker that claims the new run in the same transaction, if the run can start now and needs no slot."""


class Extend(Struct, frozen=True, kw_only=True, gc=False):
    """Adds sealed events after a head: to a run under a fence, to a conversation without one."""

    run: str
    after: Head
    fence: int | None
    events: tuple[Sealed, ...]


class SendCommands(Struct, frozen=True, kw_only=True, gc=False):
    """Sends commands to a run, deduplicated by the id of the first."""

    run: str
    bodies: tuple[AnyBody, ...]
    actor: str
    optional: bool = False
    """If this leg is refused, the append continues without it."""
    judged: tuple[str, ...] | None = None
    """The people whom a request was for when this person's right to decide was checked."""
    seq: int | None = None
    """Last event of the run when the commands were checked. If others wrote since, nothing is written."""


class Release(Struct, frozen=True, kw_only=True, gc=False):
    """Releases a run that a worker holds."""

    run: str
    fence: int
    actor: str
    reason: str
    retry_at: int | None = None
    """No worker claims the run before this time."""
    fruitless: bool = False
    """The worker could not drive the run."""


Leg = Create | Extend | SendCommands | Release


class Appended(NamedTuple):
    """The append is durable. Has the new head of each leg, in order; None for an optional leg that was refused."""

    heads: tuple[Head | None, ...]
    created: RunRow | None = None
    """The new row as it was created, if the append was a single creation."""
    claimed: "Claimed | None" = None
    """The claim, if a new run was also claimed; at most one leg may do that."""
    ready: tuple[ReadyRun, ...] = ()
    """Runs of other engines that can continue because of this append; the engines are to be told."""


class Missed(NamedTuple):
    """Nothing was written: others wrote first. Fold these events, seal again, and retry."""

    run: str
    events: tuple[Sealed, ...]


class Taken(NamedTuple):
    """Nothing was written: a stream with this id exists, and this is its first body."""

    row: RunRow
    first: AnyBody


class Claimed(NamedTuple):
    """A run that a worker now holds, under a fence."""

    row: RunRow
    died: bool
    """The run was taken from a dead worker."""
    log: tuple[Sealed, ...] = ()
    """The whole log, with the claim, if it is short; otherwise empty."""


class NotClaimed(NamedTuple):
    """A run that a worker asked for and did not get."""

    why: Literal["held", "not_before", "waiting", "ended", "no_slot", "not_served", "moved"]
    """Another worker holds it, it is not due yet, it waits for something, it has ended, its slots are taken or it is
    suspected of killing workers, the worker does not serve it, or another engine has it driven.
    """
    until: int | None = None
    """When to ask again, by the store's clock; None if no time helps."""


class Renewal(NamedTuple):
    """The reply to a worker that renews its lease."""

    now: int
    """The store's time."""
    held: dict[str, int]
    """The runs that the worker still holds, each with its fence."""


class Op(Struct, Generic[R_co], frozen=True, gc=False):
    """A write operation; the type parameter is its result."""


AppendOutcome = Appended | Missed | Taken


class Append(Op[AppendOutcome], frozen=True):
    """Legs that are written together or not at all, with the blobs that they refer to."""

    legs: tuple[Leg, ...]
    blobs: tuple[Blob, ...] = ()


class Extension(Op[bool], frozen=True):
    """Events to add after a head, if that is still the head and the fence is valid; the result says whether it was.

    This is all that most appends need: they change no request and, of their run, only the head, the step number and the
    death count. If the result is False, an `Append` of the same events finds out why.
    """

    run: str
    after: Head
    fence: int | None
    """None for a conversation, which has no owner."""
    events: Sequence[Event]
    step: int
    """Highest step number in the events."""
    settled: bool
    """Whether the events settle something, which resets the run's death count."""
    steps: Sequence[int | None]
    """For each event, the step by which it is found; see `state.step_of`."""


Work = Callable[[Any], tuple[Sequence[AnyBody], Sequence[Blob]]]
"""A caller's own writes on the given connection; returns the bodies and blobs to append with them."""


class Transacted(NamedTuple):
    """A caller's own writes and these events were committed together."""

    missed: tuple[Sealed, ...]
    """Events that others wrote after the head that the caller knew; the caller's events follow them."""
    events: tuple[Sealed, ...]


class Raised(NamedTuple):
    """The caller's own code raised this; nothing was written."""

    error: BaseException


class Transact(Op[Transacted | Raised], frozen=True, kw_only=True):
    """A caller's own writes and an append, committed together or not at all."""

    run: str
    after: Head
    fence: int
    actor: str
    work: Work
    is_current: bool = False
    """Refuse if others wrote after that head."""


class Register(Op[Renewal], frozen=True, kw_only=True):
    """Registers a worker, or registers it again after its lease expired."""

    worker: WorkerRow
    lease: int


class Renew(Op[Renewal], frozen=True, kw_only=True):
    """Renews a worker's lease."""

    worker: str
    lease: int


class Retire(Op[None], frozen=True, kw_only=True):
    """Removes a worker and releases its runs."""

    worker: str


class Claim(Op[tuple[Claimed, ...]], frozen=True, kw_only=True):
    """Claims runs of the agents that a worker serves."""

    worker: str
    limit: int
    concurrency: dict[str, int] = {}
    """Maximum number of concurrently driven runs per agent, over all workers."""
    skip: tuple[str, ...] = ()
    """Agents that the worker serves, but wants no runs of now."""
    cleared: int = 0
    """Number of suspects that made progress in this worker; it may hold this many more at a time."""


class ClaimRun(Op[Claimed | NotClaimed], frozen=True, kw_only=True):
    """Claims one run for a worker that serves its agent."""

    worker: str
    run: str
    concurrency: dict[str, int] = {}
    cleared: int = 0


class DutyTurn(NamedTuple):
    """The reply to a worker that wants to take a duty."""

    taken: bool
    wait: int
    """How long to wait before the next attempt, in microseconds."""


class TakeDuty(Op[DutyTurn], frozen=True, kw_only=True):
    """Takes a duty for a worker, if it is due and no other worker's lease on it is valid."""

    duty: str
    worker: str
    lease: int
    every: int


class KeepDuty(Op[bool], frozen=True, kw_only=True):
    """Renews a worker's lease on a duty; the result says whether the worker still holds it."""

    duty: str
    worker: str
    lease: int


class EndDuty(Op[bool], frozen=True, kw_only=True):
    """Releases a duty, as done or not; the result says whether the worker still held it."""

    duty: str
    worker: str
    is_done: bool
    error: str = ""
    """Why it failed; "" if the worker only stopped."""


class AddToken(Op[TokenRow], frozen=True, kw_only=True):
    """Stores a new token; the result is its row."""

    row: TokenRow


class RevokeToken(Op[bool], frozen=True, kw_only=True):
    """Revokes a token; the result says whether it was valid until now."""

    token: str
    by: str


class UseToken(Op[bool], frozen=True, kw_only=True):
    """Records that a token is used, if the last record is older than `every`; the result says whether it was."""

    token: str
    every: int


class DropSessions(Op[None], frozen=True, kw_only=True):
    """Deletes sessions and login codes that expired before a time."""

    before: int


class SaveContracts(Op[None], frozen=True, kw_only=True):
    """Contracts to save. The last one wins for the same agent and version."""

    rows: tuple[ContractRow, ...]
    again: frozenset[tuple[str, str]] = frozenset()
    """Agents and versions to write even if their hash is unchanged."""


class SaveSnapshot(Op[None], frozen=True, kw_only=True):
    """Saves a snapshot of a run's state."""

    run: str
    seq: int
    hash: bytes
    data: bytes


class DropSnapshots(Op[None], frozen=True, kw_only=True):
    """Deletes snapshots that are no longer needed."""

    run: str
    seqs: tuple[int, ...]


class KeepLate(Op[None], frozen=True, kw_only=True):
    """Stores late events of a superseded worker, with the blobs that they refer to."""

    events: tuple[Sealed, ...]
    blobs: tuple[Blob, ...] = ()


class PutChunk(Op[None], frozen=True, kw_only=True):
    """Stores one chunk of an upload; the first chunk starts it."""

    upload: str
    place: int
    chunk: Packed


class EndUpload(Op[None], frozen=True, kw_only=True):
    """Names an upload after its last chunk."""

    upload: str
    blob: str
    size: int
    chunks: int


class Collect(Op[int], frozen=True, kw_only=True):
    """Deletes up to `limit` blobs that have had no references for `grace`; the result is their number."""

    grace: int
    limit: int


class Load(Op[RunRow], frozen=True, kw_only=True):
    """Loads a whole log from another store, verbatim. A run that has not ended is paused until it is resumed."""

    events: tuple[Event, ...]
    actor: str


class Prune(Op[bool], frozen=True, kw_only=True):
    """Deletes ended runs, together or not at all; the result says whether they were deleted."""

    runs: tuple[tuple[str, Head], ...]
    """Each run with its last known head. If one has continued since, or is another run now, none is deleted."""


class Rebuild(Op[None], frozen=True, kw_only=True):
    """Rebuilds the rows of a stream from its log."""

    run: str


class Recount(Op[None], frozen=True):
    """Recomputes the counters."""


class Settle(Op[bool], frozen=True, kw_only=True):
    """Returns whether the store is encrypted, which is decided once, when it is created."""

    encrypted: bool


class Identify(Op[str], frozen=True, kw_only=True):
    """Gives the store an identity, unless it has one; the result is its identity."""

    id: str


class MarkIndexed(Op[None], frozen=True, kw_only=True):
    """Records that all events of the store are indexed by step."""


class SaveKeys(Op[bool], frozen=True, kw_only=True):
    """Replaces the wrapped keys if they are still `before`; the result says whether they were."""

    before: tuple[KeyRow, ...]
    after: tuple[KeyRow, ...]


AUDIT = "limpet.audit."
"""Start of the ids of audit logs. No other stream may have such an id, or it could take the place of one."""
RECORD = "limpet.record."
"""Start of the ids of shared records; their names follow."""


def check_leg(leg: Leg) -> None:
    """Raise InvalidAppend for a leg that no correct writer would send, before anything is touched."""
    check_id(leg.run)
    match leg:
        case Create():
            _check_creation(leg)
        case Extend():
            _check_extension(leg)
        case SendCommands():
            _check_commands(leg)
        case Release():
            if leg.fence < 1:
                raise InvalidAppend(run=leg.run, reason="a fence must be at least 1")


def check_contract(row: ContractRow) -> None:
    """Raise InvalidValue for a contract with names that not every store can store and index."""
    words = {"agent": row.agent, "version": row.version, "hash": row.hash}
    canonical(words)
    for name, word in words.items():
        if _is_long(word):
            raise InvalidValue(path=f"$.{name}", reason=_too_long(word))


def _check_creation(leg: Create) -> None:
    _check_bodies(leg.run, leg.bodies[:1], WrittenBy.CREATOR)
    for start, kind, what in ((AUDIT, AuditStarted, "audit logs"), (RECORD, RecordCreated, "shared records")):
        if leg.run.startswith(start) != isinstance(leg.bodies[0], kind):
            reason = f"ids of {what}, and only these, start with {start}"
            raise InvalidAppend(run=leg.run, reason=reason, fix="Use another id.")
    if isinstance(leg.bodies[0], RunForked | ConversationForked) and leg.bodies[0].at < 1:
        raise InvalidAppend(run=leg.run, reason="a fork must share at least the first event")
    if isinstance(leg.bodies[0], RunCreated | RunForked | ConversationCreated | ConversationForked):
        _check_words(leg.run, leg.bodies[0])
    if VOCABULARY.kind_of(leg.bodies[0]).name.startswith("conversation."):
        _check_bodies(leg.run, leg.bodies[1:], WrittenBy.SPEAKER, at_least=0)
    elif len(leg.bodies) > 1:
        raise InvalidAppend(run=leg.run, reason="a run, an audit log or a record must be created with one event")
    elif isinstance(leg.bodies[0], RunCreated) and leg.bodies[0].initial is not None:
        apply(AgentState(), leg.bodies[0].initial)


def _check_extension(leg: Extend) -> None:
    fence = leg.fence or 0
    writer = WrittenBy.SPEAKER if leg.fence is None else WrittenBy.OWNER
    if not leg.events or (leg.fence is not None and leg.fence < 1):
        raise InvalidAppend(run=leg.run, reason="needs an event and a fence of at least 1")
    seq = leg.after.seq
    for sealed in leg.events:
        seq += 1
        event = sealed.event
        if event.run != leg.run or event.seq != seq or event.fence != fence:
            raise InvalidAppend(run=leg.run, reason=f"event {event.seq} was sealed for another run, sequence or fence")
        _check_writer(leg.run, sealed.body, writer)
        if writer is WrittenBy.SPEAKER:  # An owner's journal has checked its own events.
            VOCABULARY.check(sealed.body)
    for sealed in leg.events[:-1]:
        if isinstance(sealed.body, LEAVING):
            raise InvalidAppend(run=leg.run, reason=f"no event may follow {sealed.event.kind} under the same fence")


def _check_commands(leg: SendCommands) -> None:
    _check_bodies(leg.run, leg.bodies, WrittenBy.COMMAND)
    ids = [check_id(body.command) for body in leg.bodies if isinstance(body, Command)]
    if len(set(ids)) != len(ids):
        raise InvalidAppend(run=leg.run, reason="two commands have the same id")
    for body in leg.bodies:
        if isinstance(body, ScoreGiven | ScoreWithdrawn):
            _check_score(leg.run, body)
    patches = [body for body in leg.bodies if isinstance(body, RecordPatched)]
    if len(patches) != (len(leg.bodies) if leg.run.startswith(RECORD) else 0) or len(patches) > 1:
        raise InvalidAppend(run=leg.run, reason="a shared record takes record.patched, one at a time, and nothing else")
    decided = [body.request for body in leg.bodies if isinstance(body, RequestAnswered)]
    if len(set(decided)) != len(decided):
        raise InvalidAppend(run=leg.run, reason="a request can only be decided once")


def _check_score(run: str, body: ScoreGiven | ScoreWithdrawn) -> None:
    if not body.score or (body.number is not None and body.number < 1):
        raise InvalidAppend(run=run, reason="a score needs a name, and a step of at least 1 or none")
    value = body.value if isinstance(body, ScoreGiven) else None
    if isinstance(body, ScoreGiven) and value is None and not body.comment:
        raise InvalidAppend(run=run, reason="a score needs a value, a comment, or both")
    if isinstance(value, int) and abs(value) > MAX_EXACT:
        raise InvalidAppend(run=run, reason="the value of a score must be exact as a 64-bit float")
    for word in (body.score, body.by, value):
        if isinstance(word, str) and _is_long(word):
            fix = "Shorten it. Long text belongs in the comment."
            raise InvalidAppend(run=run, reason=_too_long(word), fix=fix)


def _check_bodies(run: str, bodies: tuple[AnyBody, ...], writer: WrittenBy, at_least: int = 1) -> None:
    if len(bodies) < at_least:
        raise InvalidAppend(run=run, reason="nothing to append")
    for body in bodies:
        _check_writer(run, body, writer)
        VOCABULARY.check(body)


# The largest integer that is exact as a 64-bit float.
MAX_EXACT = 2**53
# Indexed text is short, since a database's index stores no more.
LONGEST_WORD = 500


def _check_words(run: str, body: RunCreated | RunForked | ConversationCreated | ConversationForked) -> None:
    words = [body.user, body.session, *body.labels, *body.labels.values()]
    if isinstance(body, RunCreated | RunForked):
        words += [body.agent, body.agent_version, body.exclusive]
    for word in words:
        if word is not None and _is_long(word):
            fix = "Shorten it. Long text belongs in the input of the run, or in an artifact."
            raise InvalidAppend(run=run, reason=_too_long(word), fix=fix)


def _is_long(word: str) -> bool:
    return len(word.encode(errors="replace")) > LONGEST_WORD


def _too_long(word: str) -> str:
    return f"{word[:20]!r}… has more than {LONGEST_WORD} bytes, the limit of indexed text"


def _check_writer(run: str, body: AnyBody, writer: WrittenBy) -> None:
    kind = VOCABULARY.kind_of(body)
    if kind.writer is not writer:
        raise InvalidAppend(run=run, reason=f"{kind.name} can only be written by the {kind.writer.value}")
