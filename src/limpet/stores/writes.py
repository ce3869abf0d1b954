"""What a store can be asked to write. An `Append` is all or nothing; its legs may touch several runs.

Two closed lists of events go two ways: owner events come sealed by their appender, under the fence of its claim
(`Extend`); commands come as bodies from any process and are sealed by the store (`Tell`).
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct

from limpet.errors import InvalidAppend, InvalidValue
from limpet.events import VOCABULARY, AnyBody, Event, Head, Packed, Sealed, Writer, canonical
from limpet.events.bodies import (
    Command,
    ConversationCreated,
    ConversationForked,
    RequestAnswered,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunFailed,
    RunForked,
    RunWaiting,
)
from limpet.ids import check_id
from limpet.state import AgentState, apply
from limpet.stores.blobs import Blob
from limpet.stores.rows import ContractRow, KeyRow, RunRow, WorkerRow

__all__ = [
    "ENCRYPTED",
    "YES",
    "Append",
    "Appended",
    "Claim",
    "Claimed",
    "Collect",
    "Create",
    "DropSnapshots",
    "EndUpload",
    "Extend",
    "KeepLate",
    "Leg",
    "Load",
    "Missed",
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
    "SaveContracts",
    "SaveKeys",
    "SaveSnapshot",
    "SendCommands",
    "Settle",
    "Taken",
    "Transact",
    "Transacted",
    "Work",
    "check_contract",
    "check_leg",
]

R_co = TypeVar("R_co", covariant=True)
# The setting that says whether a store is encrypted.
ENCRYPTED, YES = "encrypted", "yes"
# With these the owner gives the run up.
LEAVING = (RunWaiting, RunCompleted, RunFailed, RunCancelled)


class Create(Struct, frozen=True, kw_only=True, gc=False):
    """A new stream, with its first events; sealed by the store, whose clock says when."""

    run: str
    bodies: tuple[AnyBody, ...]
    actor: str


class Extend(Struct, frozen=True, kw_only=True, gc=False):
    """Sealed events after a head: of a run under a fence, of a conversation without one."""

    run: str
    after: Head
    fence: int | None
    events: tuple[Sealed, ...]


class SendCommands(Struct, frozen=True, kw_only=True, gc=False):
    """Commands to a run, deduplicated by the id of the first."""

    run: str
    bodies: tuple[AnyBody, ...]
    actor: str
    optional: bool = False
    """If it is refused, the append goes on without it."""
    judged: tuple[str, ...] | None = None
    """Whom a request was for when it was judged whether this person may decide it."""


class Release(Struct, frozen=True, kw_only=True, gc=False):
    """A worker gives a run back."""

    run: str
    fence: int
    actor: str
    reason: str
    retry_at: int | None = None
    """No worker claims it before this time."""
    fruitless: bool = False
    """The worker could not drive it."""


Leg = Create | Extend | SendCommands | Release


class Appended(NamedTuple):
    """It is in the log, durably; the new head of each leg, in order (none for an optional one that was refused)."""

    heads: tuple[Head | None, ...]
    created: RunRow | None = None
    """The new row, where there was nothing but a creation."""


class Missed(NamedTuple):
    """Nothing was written: others wrote first. Fold these, seal again, retry."""

    run: str
    events: tuple[Sealed, ...]


class Taken(NamedTuple):
    """Nothing was written: a stream of this id exists, and began like this."""

    row: RunRow
    first: AnyBody


class Claimed(NamedTuple):
    """A run that a worker has now, under a fence."""

    row: RunRow
    died: bool
    """It was taken from a worker that died."""


class Renewal(NamedTuple):
    """What a worker learns when it renews its lease."""

    now: int
    """The store's clock."""
    held: dict[str, int]
    """The runs it still has, each with its fence."""


class Op(Struct, Generic[R_co], frozen=True, gc=False):
    """Something to be written, and what comes back."""


AppendOutcome = Appended | Missed | Taken


class Append(Op[AppendOutcome], frozen=True):
    """Legs that are written together or not at all, with the blobs that they refer to."""

    legs: tuple[Leg, ...]
    blobs: tuple[Blob, ...] = ()


Work = Callable[[Any], tuple[Sequence[AnyBody], Sequence[Blob]]]
"""A caller's own writes, on the connection that it is given: what is to be appended with them."""


class Transacted(NamedTuple):
    """A caller's own writes and these events are committed together."""

    missed: tuple[Sealed, ...]
    """What others wrote since the head that the caller knew; the caller's events follow."""
    events: tuple[Sealed, ...]


class Raised(NamedTuple):
    """The caller's own code raised this: nothing was written."""

    error: BaseException


class Transact(Op[Transacted | Raised], frozen=True, kw_only=True):
    """A caller's own writes and an append, committed together or not at all."""

    run: str
    after: Head
    fence: int
    actor: str
    work: Work
    is_current: bool = False
    """Only if nobody wrote after that head."""


class Register(Op[Renewal], frozen=True, kw_only=True):
    """A worker comes, or comes back after it was given up."""

    worker: WorkerRow
    lease: int


class Renew(Op[Renewal], frozen=True, kw_only=True):
    """A worker is alive."""

    worker: str
    lease: int


class Retire(Op[None], frozen=True, kw_only=True):
    """A worker goes, and gives back what it has."""

    worker: str


class Claim(Op[tuple[Claimed, ...]], frozen=True, kw_only=True):
    """A worker wants runs of the agents it serves."""

    worker: str
    limit: int
    concurrency: dict[str, int] = {}
    """How many runs of an agent may be driven at once, over all workers."""
    skip: tuple[str, ...] = ()
    """Agents that it serves, but wants no runs of now."""
    cleared: int = 0
    """How many suspects got on in this worker without killing it: it may hold so many more at a time."""


class SaveContracts(Op[None], frozen=True, kw_only=True):
    """Contracts of agents; of two of the same agent and version the last stands."""

    rows: tuple[ContractRow, ...]
    again: frozenset[tuple[str, str]] = frozenset()
    """Agents and versions that are written though their hash is as stored."""


class SaveSnapshot(Op[None], frozen=True, kw_only=True):
    """A cached state of a run."""

    run: str
    seq: int
    hash: bytes
    data: bytes


class DropSnapshots(Op[None], frozen=True, kw_only=True):
    """Cached states that are not needed any more."""

    run: str
    seqs: tuple[int, ...]


class KeepLate(Op[None], frozen=True, kw_only=True):
    """What a superseded worker still has, with the blobs that it refers to."""

    events: tuple[Sealed, ...]
    blobs: tuple[Blob, ...] = ()


class PutChunk(Op[None], frozen=True, kw_only=True):
    """One chunk of a blob that is sent ahead; the first one begins it."""

    upload: str
    place: int
    chunk: Packed


class EndUpload(Op[None], frozen=True, kw_only=True):
    """The last chunk is there: the blob gets its name."""

    upload: str
    blob: str
    size: int
    chunks: int


class Collect(Op[int], frozen=True, kw_only=True):
    """Delete some blobs that nobody has referred to for a time; how many were deleted."""

    grace: int
    limit: int


class Load(Op[RunRow], frozen=True, kw_only=True):
    """A whole log from elsewhere, as it was; a run that has not ended waits here until somebody resumes it."""

    events: tuple[Event, ...]
    actor: str


class Prune(Op[bool], frozen=True, kw_only=True):
    """Delete runs that have ended, together or not at all; whether they were."""

    runs: tuple[tuple[str, Head], ...]
    """Each with where its log ends: one that has gone on since, or is another by now, stays, and so do the others."""


class Rebuild(Op[None], frozen=True, kw_only=True):
    """Make the rows of a stream anew from its log."""

    run: str


class Recount(Op[None], frozen=True):
    """Make the counters anew."""


class Settle(Op[bool], frozen=True, kw_only=True):
    """Whether the store is encrypted, which is settled once, when it is made."""

    encrypted: bool


class SaveKeys(Op[bool], frozen=True, kw_only=True):
    """Replace the wrapped keys, if they are still as they were; whether they were."""

    before: tuple[KeyRow, ...]
    after: tuple[KeyRow, ...]


def check_leg(leg: Leg) -> None:
    """Refuse what no correct writer would send, before anything is touched."""
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
                raise InvalidAppend(run=leg.run, reason="a fence is at least 1")


def check_contract(row: ContractRow) -> None:
    """Refuse a contract whose words not every store can hold and look up."""
    words = {"agent": row.agent, "version": row.version, "hash": row.hash}
    canonical(words)
    for name, word in words.items():
        if _is_long(word):
            raise InvalidValue(path=f"$.{name}", reason=_too_long(word))


def _check_creation(leg: Create) -> None:
    _check_bodies(leg.run, leg.bodies[:1], Writer.CREATOR)
    if isinstance(leg.bodies[0], RunForked | ConversationForked) and leg.bodies[0].at < 1:
        raise InvalidAppend(run=leg.run, reason="a fork shares at least the first event")
    if isinstance(leg.bodies[0], RunCreated | RunForked | ConversationCreated | ConversationForked):
        _check_words(leg.run, leg.bodies[0])
    if VOCABULARY.kind_of(leg.bodies[0]).name.startswith("conversation."):
        _check_bodies(leg.run, leg.bodies[1:], Writer.SPEAKER, at_least=0)
    elif len(leg.bodies) > 1:
        raise InvalidAppend(run=leg.run, reason="a run is created with one event")
    elif isinstance(leg.bodies[0], RunCreated) and leg.bodies[0].initial is not None:
        apply(AgentState(), leg.bodies[0].initial)


def _check_extension(leg: Extend) -> None:
    fence = leg.fence or 0
    writer = Writer.SPEAKER if leg.fence is None else Writer.OWNER
    if not leg.events or (leg.fence is not None and leg.fence < 1):
        raise InvalidAppend(run=leg.run, reason="there is no event, or a fence below 1")
    seq = leg.after.seq
    for sealed in leg.events:
        seq += 1
        event = sealed.event
        if event.run != leg.run or event.seq != seq or event.fence != fence:
            raise InvalidAppend(run=leg.run, reason=f"event {event.seq} was sealed for another run, place or fence")
        _check_writer(leg.run, sealed.body, writer)
        if writer is Writer.SPEAKER:  # an owner's journal has checked its own
            VOCABULARY.check(sealed.body)
    for sealed in leg.events[:-1]:
        if isinstance(sealed.body, LEAVING):
            raise InvalidAppend(run=leg.run, reason=f"nothing follows {sealed.event.kind} under the same fence")


def _check_commands(leg: SendCommands) -> None:
    _check_bodies(leg.run, leg.bodies, Writer.COMMAND)
    ids = [check_id(body.command) for body in leg.bodies if isinstance(body, Command)]
    if len(set(ids)) != len(ids):
        raise InvalidAppend(run=leg.run, reason="two commands have the same id")
    decided = [body.request for body in leg.bodies if isinstance(body, RequestAnswered)]
    if len(set(decided)) != len(decided):
        raise InvalidAppend(run=leg.run, reason="a request is decided once")


def _check_bodies(run: str, bodies: tuple[AnyBody, ...], writer: Writer, at_least: int = 1) -> None:
    if len(bodies) < at_least:
        raise InvalidAppend(run=run, reason="there is nothing to append")
    for body in bodies:
        _check_writer(run, body, writer)
        VOCABULARY.check(body)


# What is looked up is short: a database's index holds no more.
LONGEST_WORD = 500


def _check_words(run: str, body: RunCreated | RunForked | ConversationCreated | ConversationForked) -> None:
    words = [body.user, body.session, *body.labels, *body.labels.values()]
    if isinstance(body, RunCreated | RunForked):
        words += [body.agent, body.agent_version, body.exclusive]
    for word in words:
        if word is not None and _is_long(word):
            raise InvalidAppend(run=run, reason=_too_long(word))


def _is_long(word: str) -> bool:
    return len(word.encode(errors="replace")) > LONGEST_WORD


def _too_long(word: str) -> str:
    return f"{word[:20]!r}… has more than {LONGEST_WORD} bytes, to be looked up"


def _check_writer(run: str, body: AnyBody, writer: Writer) -> None:
    kind = VOCABULARY.kind_of(body)
    if kind.writer is not writer:
        raise InvalidAppend(run=run, reason=f"{kind.name} is written by the {kind.writer.value}")
