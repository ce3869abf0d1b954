"""The interface to a database: rows that are changed in one transaction on the writer's thread, and read from any
thread.

The author of a new store writes a `Backend`. The logic of the operations (guards, sealing, fencing, claiming) is
written once, in `commit.py`, on top of `Tables`. A backend stores rows and makes transactions durable.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Event as Flag
from typing import Any, Literal, NamedTuple, Protocol

from msgspec import Struct

from limpet.errors import LimpetError, ReadOnlyStore, StoreUnavailable
from limpet.events import AnyBody, Codec, Event, Packed
from limpet.events.bodies import Command
from limpet.state import step_of
from limpet.stores.blobs import Blob, BlobRow
from limpet.stores.fork_reads import StepRange
from limpet.stores.rows import (
    ContractRow,
    DutyRow,
    Feed,
    KeyRow,
    Late,
    Place,
    Recent,
    RequestFilter,
    RequestRow,
    RowPage,
    RunFilter,
    RunRow,
    ScoreFilter,
    ScoreRow,
    Snapshot,
    TokenRow,
    WorkerRow,
)
from limpet.stores.writes import Extension, Op, Transact

__all__ = [
    "Backend",
    "Capabilities",
    "EventKeys",
    "LockTimeout",
    "Outcome",
    "SchemaViolation",
    "StoreInfo",
    "Tables",
    "keys_of",
]

Outcome = Any | LimpetError
"""The outcome of an operation: its result, or the error with which it was refused."""


class Capabilities(Struct, frozen=True, kw_only=True):
    """Features that a store supports; declared, never guessed."""

    processes: bool
    """Several processes can use the store concurrently."""
    durable: bool
    """Written data survives the death of the process."""
    sees_death: bool
    """A dead process on the same machine is detected immediately, before its lease expires."""
    transactions: Literal["none", "between", "beside"] = "none"
    """Whether a caller's own writes can be committed with an append: not at all ("none"), on the writer's thread
    between two batches ("between"), or on separate connections ("beside").
    """
    own_process: bool = False
    """The database works in a process of its own, so that a commit goes on while this process computes."""

    def have(self, need: str) -> bool:
        """Return whether the store has a capability."""
        return getattr(self, need) not in (False, "none")


class StoreInfo(NamedTuple):
    """The database behind a store."""

    database: str
    """Name and version of the database."""
    schema: int = 0
    """Schema version; 0 if there is none."""
    file: Path | None = None
    """Path on this machine, if the store is a file."""


class SchemaViolation(Exception):
    """The schema refused a row. An earlier check should have refused it."""


class LockTimeout(Exception):
    """A transaction waited too long for a row that another transaction has locked. Nothing was written."""


class EventKeys(NamedTuple):
    """The values by which an event is found, besides its sequence."""

    command: str | None = None
    """Command id, if the event is a command."""
    step: int | None = None
    """Number of its step; see `state.step_of`."""


def keys_of(body: AnyBody) -> EventKeys:
    """Return the values by which an event is found."""
    return EventKeys(body.command if isinstance(body, Command) else None, step_of(body))


class Tables(Protocol):
    """The rows, inside one transaction."""

    def now(self) -> int:
        """Return the store's time."""

    def expect(self, runs: Collection[str], creations: int) -> None:
        """Announce what the transaction will touch. A store with row locks takes them now, in the same order
        everywhere.
        """

    def undoable(self) -> AbstractContextManager[None]:
        """Undo everything done inside the block if it raises. The transaction continues."""

    # Streams and their events

    def row(self, run: str) -> RunRow | None:
        """Return the stream's row, locked until the transaction ends."""

    def row_if_free(self, found: RunRow) -> RunRow | None:
        """Return the current row of the same stream, locked; None if another transaction has locked it."""

    def peek(self, run: str) -> RunRow | None:
        """Return the stream's row, not locked."""

    def add(self, row: RunRow) -> int:
        """Insert the row of a new stream and return its number."""

    def extend(self, extensions: Sequence[Extension], *, final: bool = False) -> list[int | None]:
        """Move each head by compare-and-set and insert its events; return each stream's number, or None if stale.

        The condition: the row is at `after` (sequence and hash), and, with a fence, a worker holds the run under it;
        without a fence, the stream is a conversation. Raises the row's step, and resets deaths if something was
        settled. No two extensions are for the same stream. After a `final` call nothing more is written in this
        transaction.
        """

    def save(self, row: RunRow) -> None:
        """Update the mutable fields of a row: head, status, waits, worker, fence and description."""

    def insert(self, number: int, events: Sequence[Event], keys: Sequence[EventKeys]) -> None:
        """Insert events, each with the keys by which it is found."""

    def events(self, row: RunRow, after: int, limit: int) -> list[Event]:
        """Return the events after a sequence, in order."""

    def logs(self, rows: Sequence[RunRow]) -> list[list[Event]]:
        """Return all events of each of these streams, which are short."""

    def command(self, row: RunRow, command: str) -> Event | None:
        """Return the event with a command id."""

    def rewrite(
        self,
        row: RunRow,
        requests: Sequence[RequestRow],
        scores: Sequence[ScoreRow],
        blobs: Sequence[int],
        steps: Sequence[tuple[int, int | None]],
    ) -> None:
        """Replace what is derived from a stream's log: its row, labels, requests and scores. Adds references to blobs.

        `steps` has the sequence of each of its own events, with the step by which the event is found.
        """

    def recount(self) -> None:
        """Recompute the counters from the rows."""

    def needing(self, streams: Sequence[str]) -> list[str]:
        """Return the forks of these streams, and the runs that use one of them as their conversation."""

    def delete(self, numbers: Sequence[int]) -> None:
        """Delete streams with everything that belongs to them. Blobs without other references become loose."""

    # Blobs

    def put_blobs(self, blobs: Sequence[Blob]) -> None:
        """Store blobs that do not exist yet. The grace period of loose blobs that exist starts again."""

    def find_blobs(self, blobs: Collection[str]) -> dict[str, int]:
        """Return the numbers of the blobs that exist; they are not collected before the transaction ends."""

    def refer(self, references: Sequence[tuple[int, int]]) -> None:
        """Record that streams refer to blobs, by number. Repeating a reference is allowed."""

    def put_chunk(self, upload: str, place: int, chunk: Packed) -> None:
        """Store one chunk of an upload. Repeating a chunk is allowed."""

    def end_upload(self, upload: str, blob: str, size: int, chunks: int) -> bool:
        """Name an upload, or drop it if a blob of that name exists. Returns False if a chunk is missing."""

    def collect(self, before: int, limit: int) -> int:
        """Delete up to `limit` blobs that have been loose since before a time; return their number."""

    # Keys

    def settle(self, name: str, value: str) -> str:
        """Return the value of a setting; set it first if it has none."""

    def is_new(self) -> bool:
        """Return whether no stream was ever created."""

    def keys(self) -> list[KeyRow]:
        """Return the wrapped keys, oldest first, locked until the transaction ends."""

    def save_keys(self, keys: Sequence[KeyRow]) -> None:
        """Replace the wrapped keys."""

    # Requests

    def request(self, request: str) -> RequestRow | None:
        """Return a request's row."""

    def save_request(self, row: RequestRow, number: int) -> None:
        """Insert or replace a request's row."""

    def open_requests(self, number: int) -> list[RequestRow]:
        """Return the open requests of a run."""

    # Scores

    def save_score(self, row: ScoreRow, number: int) -> None:
        """Insert a score's row, or replace the one of the same run, name, person and step."""

    def drop_score(self, row: ScoreRow, number: int) -> None:
        """Delete the score's row of the same run, name, person and step, if there is one."""

    # Workers, claims and slots

    def workers(self) -> list[WorkerRow]:
        """Return all workers."""

    def worker(self, worker: str) -> WorkerRow | None:
        """Return a worker's row, which cannot be dropped before the transaction ends."""

    def lock_worker(self, worker: WorkerRow) -> bool:
        """Lock a worker's row. Returns False if the row has changed or another transaction uses it."""

    def save_worker(self, worker: WorkerRow) -> None:
        """Insert or replace a worker's row."""

    def drop_worker(self, worker: str) -> None:
        """Delete a worker's row."""

    def is_dead(self, worker: WorkerRow) -> bool:
        """Return whether the worker's process is known to have ended, although its lease has not expired."""

    def held_by(self, worker: str) -> list[RunRow]:
        """Return the runs that a worker holds."""

    def ready_agents(self, agents: Collection[str]) -> list[str]:
        """Return those of the agents that have runs which are ready now: most claims find none."""

    def ready(self, agent: str, versions: Sequence[str], limit: int) -> list[RunRow]:
        """Return runs of an agent that may be claimed now and whose exclusive slot is free, longest ready first.

        Runs of other engines are left out.
        """

    def take_slot(self, name: str, size: int, number: int, *, driven: bool) -> bool:
        """Take one of `size` slots for a run, or keep the one it has. A driven slot lasts as long as the claim."""

    def free_slots(self, number: int, *, driven_only: bool) -> None:
        """Free the slots of a run."""

    # Duties

    def duty(self, name: str) -> DutyRow:
        """Return a duty's row, locked until the transaction ends. A duty that is not known yet gets a row."""

    def save_duty(self, duty: DutyRow) -> None:
        """Replace a duty's row, which `duty` returned."""

    # Tokens

    def token(self, token: str) -> TokenRow | None:
        """Return a token's row, locked until the transaction ends."""

    def add_token(self, token: TokenRow) -> bool:
        """Insert a token's row; return False if there is one with its id."""

    def save_token(self, token: TokenRow) -> None:
        """Replace a token's row, which `token` returned."""

    def drop_sessions(self, before: int) -> None:
        """Delete sessions and login codes that expired before a time."""

    # Beside the log

    def save_snapshot(self, number: int, snapshot: Snapshot) -> None:
        """Insert or replace a snapshot."""

    def drop_snapshots(self, number: int, seqs: Sequence[int]) -> None:
        """Delete snapshots."""

    def save_late(self, number: int, late: Late) -> None:
        """Store a late event, once."""

    def save_contracts(self, rows: Sequence[ContractRow]) -> None:
        """Insert contracts, or replace those with another hash. Contracts with the same hash stay unchanged.

        No two are for the same agent and version.
        """

    def lend(self) -> AbstractContextManager[Any]:
        """Lend the connection for a caller's own writes. The caller can neither end the transaction nor touch Limpet's
        tables.
        """


class Backend(Protocol):
    """A database that stores the rows. Reads may come from any thread, `commit` from one thread at a time."""

    capabilities: Capabilities

    @property
    def failure(self) -> StoreUnavailable | None:
        """Why ConnectionLost has persisted so long that another process should take over."""

    read_only: ReadOnlyStore | None
    """Why the store was opened only for reading; None if it can be written. Then `commit` raises it, unless the store
    has become writable.
    """

    def exists(self) -> bool:
        """Return whether a store exists, opened or not. Never creates one."""

    def open(self) -> None:
        """Connect, and create or migrate the schema. A store that can only be read is opened without any write."""

    def interrupt(self) -> None:
        """Stop waiting for the server; the store is about to be closed."""

    def close(self) -> None:
        """Release all resources."""

    def reopen(self) -> None:
        """Reconnect after a failure and verify what is stored. Raises StoreUnavailable if the data is not sound.

        Workers of this process stay alive in the meantime.
        """

    def now(self) -> int:
        """Return the store's time."""

    def about(self) -> StoreInfo:
        """Return the database behind the store."""

    def commit(self, ops: Sequence[Op[Any]], codec: Codec) -> list[Outcome]:
        """Perform all operations in one durable transaction; a refused one fails alone.

        Raises StoreBusy if nothing was written and a retry may help, ConnectionLost if the outcome is unknown and the
        store stays usable, and StoreUnavailable if the outcome is unknown and the store must be reopened before the
        next batch.
        """

    def commit_now(self, extension: Extension) -> bool | None:
        """Perform an extension durably on the calling thread, an event loop, without waiting for any lock.

        Returns None if that is not possible, or failed: the same events are then sent again through `commit`. A backend
        that talks to a server always returns None.
        """

    @property
    def is_untidy(self) -> bool:
        """Whether there is work that can wait until the callers of a batch have their replies."""

    def tidy(self) -> None:
        """Do this work, on the writer's thread between two batches."""

    def transact(self, op: Transact, codec: Codec) -> Outcome:
        """Commit a caller's own writes and an append together, on the writer's thread or on any other ("beside")."""

    def changes(self, stop: Flag) -> Iterator[None]:
        """Yield whenever another process may have written something, and once immediately, until `stop` is set."""

    # Reading

    def get(self, run: str) -> RunRow | None:
        """Return a stream's row."""

    def read(self, run: str, after: int, before: int | None, limit: int, backwards: bool) -> list[Event]:
        """Return events with sequences strictly between `after` and `before`."""

    def read_steps(self, run: str, span: StepRange) -> list[Event]:
        """Return all events of some steps, and those that concern all steps, in order."""

    def runs(self, where: RunFilter, before: int | None, limit: int) -> RowPage:
        """Return matching rows with numbers below `before`, newest first."""

    def latest(self, where: RunFilter, before: Place | None, limit: int) -> list[RunRow]:
        """Return matching rows before a place in the order of last events, the newest first."""

    def count(self, where: RunFilter) -> int:
        """Return the number of matching rows."""

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Return the number of runs by (agent, status)."""

    def miscounted(self) -> list[tuple[str, str, int, int]]:
        """Return each (agent, status) with a wrong counter, the counter and the true number, read at one moment."""

    def strays(self) -> list[tuple[str, int, int]]:
        """Return rows without their stream or blob, and slots that are held or missing wrongly, read at one moment.

        Each has its table, the number that it refers to, and how many rows there are.
        """

    def streams(self, after: int, limit: int) -> list[tuple[int, str]]:
        """Return the numbers and ids of all streams after a number, in order, including those with unreadable rows."""

    def commands(self, run: str) -> list[tuple[int, str]]:
        """Return sequence and command id of each command among a stream's own events, in order."""

    def steps(self, run: str) -> list[tuple[int, int]]:
        """Return the sequences of a stream's own events that are found by step, each with its step."""

    def labels(self, run: str) -> list[tuple[str, str]]:
        """Return the labels by which a stream is found."""

    def requests(self, where: RequestFilter, limit: int) -> list[RequestRow]:
        """Return matching requests, oldest first."""

    def count_requests(self) -> int:
        """Return the number of open requests."""

    def scores(self, where: ScoreFilter, limit: int) -> list[ScoreRow]:
        """Return matching scores, newest first; those of the same time by run and sequence, the last first."""

    def workers(self) -> list[WorkerRow]:
        """Return all workers."""

    def slot_holder(self, run: str) -> str | None:
        """Return another run that has the exclusive slot of this one, or a slot of its agent; None if there is none."""

    def due(self, engine: str, after: tuple[int, int], until: int, limit: int) -> list[RunRow]:
        """Return the runs of an engine that no worker holds and that are ready by a time, longest ready first.

        `after` is the time and the number of the last run of the page before.
        """

    def duties(self) -> list[DutyRow]:
        """Return all duties, by name."""

    def read_token(self, token: str) -> TokenRow | None:
        """Return a token's row."""

    def read_tokens(self, before: tuple[int, str] | None, limit: int) -> list[TokenRow]:
        """Return tokens that are no sessions, newest first: those before one with this time of creation and id."""

    def snapshot(self, run: str, at_most: int | None) -> Snapshot | None:
        """Return the newest snapshot, or the newest at or before a sequence."""

    def snapshots(self, run: str) -> list[tuple[int, int]]:
        """Return the (sequence, time) of every snapshot of a run."""

    def late(self, run: str) -> list[Late]:
        """Return the late events of a run."""

    def contracts(self, agent: str | None) -> list[ContractRow]:
        """Return the contracts of an agent, or of all agents, in any order."""

    def feed(self, after: str, limit: int) -> Feed:
        """Return events of all streams after a cursor. New events never come before one that was returned."""

    def recent(self, before: str, kinds: Sequence[str], scan: int) -> Recent:
        """Return events of some kinds among the last `scan` events before a cursor, newest first."""

    def feed_end(self) -> str:
        """Return the cursor after everything that can be returned now."""

    def references(self, run: str) -> list[str]:
        """Return the blobs that a stream refers to."""

    def blob(self, blob: str) -> BlobRow | None:
        """Return a stored blob's row."""

    def chunk(self, blob: str, place: int) -> Packed | None:
        """Return one chunk of a stored blob."""

    def small_blobs(self, blobs: Sequence[str]) -> list[tuple[BlobRow, Packed]]:
        """Return those of the blobs that have one chunk, with it."""

    def setting(self, name: str) -> str | None:
        """Return the value of a setting, or None."""

    def keys(self) -> list[KeyRow]:
        """Return the wrapped keys, oldest first."""
