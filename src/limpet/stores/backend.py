"""The seam to a database: rows, changed inside one transaction on the writer's thread, and read from any thread.

Whoever writes a new store writes a `Backend`. What the operations mean (guards, sealing, fencing, claiming) is written
once, in `transact`, over `Tables`; a backend keeps rows and makes a transaction durable.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from threading import Event as Flag
from typing import Any, Literal, NamedTuple, Protocol

from limpet.errors import LimpetError, StoreUnavailable
from limpet.events import Codec, Event, Head, Packed
from limpet.stores.blobs import Blob, BlobRow
from limpet.stores.rows import (
    ContractRow,
    Feed,
    KeyRow,
    Late,
    Page,
    Recent,
    RequestFilter,
    RequestRow,
    RunFilter,
    RunRow,
    Snapshot,
    WorkerRow,
)
from limpet.stores.writes import Op, Transact

__all__ = ["Backend", "Capabilities", "Extension", "LockTimeout", "Outcome", "SchemaViolation", "StoreInfo", "Tables"]

Outcome = Any | LimpetError
"""What an operation came to: its result, or why it was refused."""


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a store has; declared, never guessed."""

    processes: bool
    """Several processes can use it at once."""
    durable: bool
    """What was written is there after the process has died."""
    sees_death: bool
    """A dead process on the same machine is seen at once, before its lease ends."""
    transactions: Literal["none", "between", "beside"] = "none"
    """Whether a caller's own writes can be committed with an append: not at all, on the writer's lane between two
    batches, or on connections beside it."""

    def have(self, need: str) -> bool:
        """Whether a capability is there."""
        return getattr(self, need) not in (False, "none")


class StoreInfo(NamedTuple):
    """What a store is kept in."""

    database: str
    """With its version."""
    schema: int = 0
    """Its number; 0 where there is none."""
    file: Path | None = None
    """Where it is on this machine, if it is a file."""


class SchemaViolation(Exception):
    """The schema refused a row: something that should have been refused before it got there."""


class LockTimeout(Exception):
    """A transaction waited too long for a row that somebody else holds; nothing was written."""


class Extension(NamedTuple):
    """Events to be added after a head, if it still is the head and the fence is valid."""

    run: str
    after: Head
    fence: int | None
    """None for a conversation, which has no owner."""
    events: Sequence[Event]
    step: int
    """The highest step's number in them."""
    settled: bool
    """Whether something came to its end: then the run's deaths are forgotten."""


class Tables(Protocol):
    """The rows, inside one transaction."""

    def now(self) -> int:
        """The store's clock."""

    def expect(self, runs: Collection[str], creations: int) -> None:
        """What the transaction is going to touch: a store with row locks takes them now, in one order for everybody."""

    def undoable(self) -> AbstractContextManager[None]:
        """What is done inside is undone if it raises; the transaction goes on."""

    # Streams and their events

    def row(self, run: str) -> RunRow | None:
        """The stream's row, locked until the transaction ends."""

    def row_if_free(self, found: RunRow) -> RunRow | None:
        """The same stream's row as it is now, locked; nothing if somebody else has it locked."""

    def peek(self, run: str) -> RunRow | None:
        """The stream's row, not locked."""

    def add(self, row: RunRow) -> int:
        """Insert the row of a new stream; its number."""

    def extend(self, extensions: Sequence[Extension], *, final: bool = False) -> list[int | None]:
        """Move each head in a conditional update and insert its events; each stream's number, or nothing if stale.

        The condition: the row is at `after` (sequence and hash), and, with a fence, a worker has it under this fence;
        without one, it is a conversation. Raises the row's step; forgets deaths if something was settled. No two are of
        the same stream. After a `final` one nothing is written in this transaction.
        """

    def save(self, row: RunRow) -> None:
        """Write back what may change of a row: head, status, waits, worker, fence and description."""

    def insert(self, number: int, events: Sequence[Event], commands: Sequence[str | None] | None = None) -> None:
        """Add events; commands come each with the id that it is known by."""

    def events(self, row: RunRow, after: int, limit: int) -> list[Event]:
        """The events after a sequence, in order."""

    def command(self, row: RunRow, command: str) -> Event | None:
        """The event that a command id belongs to."""

    def rewrite(self, row: RunRow, requests: Sequence[RequestRow], blobs: Sequence[int]) -> None:
        """Replace what was made from a stream's log: its row, labels, requests; add references to blobs."""

    def recount(self) -> None:
        """Make the counters anew from the rows."""

    def needing(self, streams: Sequence[str]) -> list[str]:
        """The streams that share the beginning of one of these, and the runs that talk in one."""

    def delete(self, numbers: Sequence[int]) -> None:
        """Delete streams with all that belongs to them; blobs that nobody refers to any more are loose from now on."""

    # Blobs

    def put_blobs(self, blobs: Sequence[Blob]) -> None:
        """Store blobs that are not there; the time of those that are there and loose begins anew."""

    def find_blobs(self, blobs: Collection[str]) -> dict[str, int]:
        """The numbers of those that are there; they stay until the transaction ends."""

    def refer(self, references: Sequence[tuple[int, int]]) -> None:
        """Streams refer to blobs, by their numbers; a reference that is there may come again."""

    def put_chunk(self, upload: str, place: int, chunk: Packed) -> None:
        """Store one chunk of a blob that has no name yet; a chunk that is there may come again."""

    def end_upload(self, upload: str, blob: str, size: int, chunks: int) -> bool:
        """Give a blob its name, or drop it if one of that name is there; false if a chunk is missing."""

    def collect(self, before: int, limit: int) -> int:
        """Delete some blobs that have been loose since before a time; how many."""

    # Keys

    def settle(self, name: str, value: str) -> str:
        """What a setting of the store is: as it was settled before, or else by this."""

    def is_new(self) -> bool:
        """Whether no stream was ever created."""

    def keys(self) -> list[KeyRow]:
        """The wrapped keys, oldest first, locked until the transaction ends."""

    def save_keys(self, keys: Sequence[KeyRow]) -> None:
        """Replace them."""

    # Requests

    def request(self, request: str) -> RequestRow | None:
        """A request's row."""

    def save_request(self, row: RequestRow, number: int) -> None:
        """Insert or replace a request's row."""

    def open_requests(self, number: int) -> list[RequestRow]:
        """The requests of a run that nobody has decided."""

    # Workers, claims and slots

    def workers(self) -> list[WorkerRow]:
        """All workers."""

    def worker(self, worker: str) -> WorkerRow | None:
        """A worker's row, which is not dropped before the transaction ends."""

    def lock_worker(self, worker: WorkerRow) -> bool:
        """Whether a worker's row is still this one, and nobody uses it just now; then nobody does until the end."""

    def save_worker(self, worker: WorkerRow) -> None:
        """Insert or replace a worker's row."""

    def drop_worker(self, worker: str) -> None:
        """Delete a worker's row."""

    def is_dead(self, worker: WorkerRow) -> bool:
        """Whether its process is known to have ended, though its lease lasts."""

    def held_by(self, worker: str) -> list[RunRow]:
        """The runs that a worker has."""

    def ready(self, agent: str, versions: Sequence[str], limit: int) -> list[RunRow]:
        """Runs of an agent that may be claimed now and whose exclusive slot is free, longest ready first."""

    def take_slot(self, name: str, size: int, number: int, *, driven: bool) -> bool:
        """Take one of `size` slots for a run, or keep the one it has; a driven one is for the time of the claim."""

    def free_slots(self, number: int, *, driven_only: bool) -> None:
        """Give slots back."""

    # Beside the log

    def save_snapshot(self, number: int, snapshot: Snapshot) -> None:
        """Insert or replace a snapshot."""

    def drop_snapshots(self, number: int, seqs: Sequence[int]) -> None:
        """Delete snapshots."""

    def save_late(self, number: int, late: Late) -> None:
        """Keep what came too late, once."""

    def save_contracts(self, rows: Sequence[ContractRow]) -> None:
        """Insert contracts, or replace those whose hash is another; one of the same hash is left as it is.

        No two are of the same agent and version.
        """

    def lend(self) -> AbstractContextManager[Any]:
        """The connection, for a caller's own writes: it can neither end the transaction nor touch what is ours."""


class Backend(Protocol):
    """A database that holds the rows. Reads may come from any thread, `commit` from one at a time."""

    capabilities: Capabilities

    @property
    def failure(self) -> StoreUnavailable | None:
        """Why it has raised ConnectionLost for so long that another process had better try."""

    def is_there(self) -> bool:
        """Whether there is a store, opened or not; none is made."""

    def open(self) -> None:
        """Connect, and make or migrate the schema."""

    def interrupt(self) -> None:
        """Wait no longer for what may never come: it is about to be closed."""

    def close(self) -> None:
        """Give up everything that is held."""

    def reopen(self) -> None:
        """After a failure: connect again, and verify what is stored; raises StoreUnavailable if it is not sound.

        Workers of this process are alive all the while.
        """

    def now(self) -> int:
        """The store's clock."""

    def about(self) -> StoreInfo:
        """What it is kept in."""

    def commit(self, ops: Sequence[Op[Any]], codec: Codec) -> list[Outcome]:
        """Do all of them in one durable transaction; a refused one fails alone.

        Raises StoreBusy if nothing was written and trying again may help, ConnectionLost if nobody knows but the store
        goes on, StoreUnavailable if nobody knows and it has to be reopened before the next batch.
        """

    def transact(self, op: Transact, codec: Codec) -> Outcome:
        """Commit a caller's own writes and an append together: on the writer's lane, or beside it on any thread."""

    def changes(self, stop: Flag) -> Iterator[None]:
        """Yield whenever another process may have written something, the first time at once, until `stop` is set."""

    # Reading

    def get(self, run: str) -> RunRow | None:
        """A stream's row."""

    def read(self, run: str, after: int, before: int | None, limit: int, backwards: bool) -> list[Event]:
        """Events with sequences strictly between `after` and `before`."""

    def runs(self, where: RunFilter, before: int | None, limit: int) -> Page:
        """Rows that match, newest first, below a number."""

    def count(self, where: RunFilter) -> int:
        """How many rows match."""

    def counts(self) -> Mapping[tuple[str, str], int]:
        """How many runs there are by (agent, status)."""

    def miscounted(self) -> list[tuple[str, str, int, int]]:
        """Each (agent, status) whose counter is not what counting finds, with both numbers, of one moment."""

    def strays(self) -> list[tuple[str, int, int]]:
        """The rows of no stream or blob that there is, and slots that are held or missed without right, of one moment.

        Each with its table, the number that it names, and how many there are.
        """

    def streams(self, after: int, limit: int) -> list[tuple[int, str]]:
        """The numbers and ids of all streams after a number, in order, whether their rows can be read or not."""

    def commands(self, run: str) -> list[tuple[int, str]]:
        """The sequences of a stream's own events that are commands, each with the id that it is known by, in order."""

    def labels(self, run: str) -> list[tuple[str, str]]:
        """The labels that a stream is found by."""

    def requests(self, where: RequestFilter, limit: int) -> list[RequestRow]:
        """Requests that match, the oldest first."""

    def workers(self) -> list[WorkerRow]:
        """All workers."""

    def snapshot(self, run: str, at_most: int | None) -> Snapshot | None:
        """The newest snapshot, or the newest not after a sequence."""

    def snapshots(self, run: str) -> list[tuple[int, int]]:
        """The (sequence, time) of every snapshot of a run."""

    def late(self, run: str) -> list[Late]:
        """What came too late for a run."""

    def contracts(self, agent: str | None) -> list[ContractRow]:
        """The contracts of an agent, or of all, in any order."""

    def feed(self, after: str, limit: int) -> Feed:
        """Events of all streams after a place, in an order in which none is ever added before one that was given."""

    def recent(self, before: str, kinds: Sequence[str], scan: int) -> Recent:
        """Events of some kinds among so many before a place, the newest first."""

    def feed_end(self) -> str:
        """The place after everything that can be given now."""

    def references(self, run: str) -> list[str]:
        """The blobs that a stream refers to."""

    def blob(self, blob: str) -> BlobRow | None:
        """A stored blob."""

    def chunk(self, blob: str, place: int) -> Packed | None:
        """One chunk of a stored blob."""

    def small_blobs(self, blobs: Sequence[str]) -> list[tuple[BlobRow, Packed]]:
        """Those of some blobs that are one chunk, with it."""

    def setting(self, name: str) -> str | None:
        """What a setting of the store is, if it was settled."""

    def keys(self) -> list[KeyRow]:
        """The wrapped keys, oldest first."""
