"""The seam to a database: rows, changed inside one transaction on the writer's thread, and read from any thread.

Whoever writes a new store writes a `Backend`. What the operations mean (guards, sealing, fencing, claiming) is written
once, in `transact`, over `Tables`; a backend keeps rows and makes a transaction durable.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Event as Flag
from typing import Any, Protocol

from limpet.errors import LimpetError
from limpet.events import Event, Head
from limpet.stores.ops import Op
from limpet.stores.rows import Late, Page, RequestFilter, RequestRow, RunFilter, RunRow, Snapshot, WorkerRow

__all__ = ["Backend", "Capabilities", "Misfit", "Outcome", "Tables"]

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


class Misfit(Exception):
    """The schema refused a row: something that should have been refused before it got there."""


class Tables(Protocol):
    """The rows, inside one transaction."""

    def now(self) -> int:
        """The store's clock."""

    def undoable(self) -> AbstractContextManager[None]:
        """What is done inside is undone if it raises; the transaction goes on."""

    # Streams and their events

    def row(self, run: str) -> RunRow | None:
        """The stream's row, locked until the transaction ends."""

    def add(self, row: RunRow) -> int:
        """Insert the row of a new stream; its number."""

    def advance(self, run: str, after: Head, fence: int | None, head: Head, step: int, settled: bool) -> int | None:
        """Move the head in one conditional update; the stream's number, or nothing if the condition failed.

        The condition: the row is at `after` (sequence and hash), and, with a fence, a worker has it under this fence;
        without one, it is a conversation. Raises `step` to the given number; forgets deaths if something was settled.
        """

    def save(self, row: RunRow) -> None:
        """Write back what may change of a row: head, status, waits, worker, fence and description."""

    def insert(self, number: int, events: Sequence[Event], commands: Sequence[str | None] | None = None) -> None:
        """Add events; commands come each with the id that it is known by."""

    def events(self, row: RunRow, after: int, limit: int) -> list[Event]:
        """The events after a sequence, in order."""

    def command(self, row: RunRow, command: str) -> Event | None:
        """The event that a command id belongs to."""

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
        """Keep what came too late."""


class Backend(Protocol):
    """A database that holds the rows. Reads may come from any thread, `commit` from one at a time."""

    capabilities: Capabilities

    def open(self) -> None:
        """Connect, and make or migrate the schema."""

    def close(self) -> None:
        """Give up everything that is held."""

    def reopen(self) -> None:
        """After a failure: connect again, and verify what is stored; raises StoreUnavailable if it is not sound.

        Workers of this process are alive all the while.
        """

    def now(self) -> int:
        """The store's clock."""

    def commit(self, ops: Sequence[Op[Any]]) -> list[Outcome]:
        """Do all of them in one durable transaction; a refused one fails alone.

        Raises StoreBusy if nothing was written and trying again may help, StoreUnavailable if nobody knows.
        """

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
