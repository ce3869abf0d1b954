"""The rows of a PostgreSQL database, inside a transaction.

Rows that the transaction is going to touch are locked and read at its beginning, in one order for everybody. What is
written gathers, and goes to the server in few statements, however many operations there are.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg
from msgspec.structs import astuple, replace

from limpet.clock import Clock
from limpet.errors import InvalidAppend, WorkerAlive
from limpet.events import Event, Packed
from limpet.stores.backend import Extension, SchemaViolation
from limpet.stores.blobs import Blob
from limpet.stores.columns import (
    OF_A_STREAM,
    as_text,
    columns,
    enough,
    readable,
    request_of,
    row_of,
    saved_columns,
    worker_of,
)
from limpet.stores.postgres.connection import Connection, Lent, again, query
from limpet.stores.postgres.text import plain, safe
from limpet.stores.postgres.wire import Wire
from limpet.stores.processes import has_ended, this_process
from limpet.stores.rows import ContractRow, KeyRow, Late, RequestRow, RunRow, Snapshot, WorkerRow

__all__ = ["Living", "PostgresTables", "TransactionParts"]


class PostgresTables:
    """What `transact` needs, as named statements on one connection; one for each transaction."""

    def __init__(self, db: Connection, means: "TransactionParts", batch: int | None) -> None:
        self._db, self._batch = db, batch
        self._sql, self._wire, self._clock, self._living = means
        self._begun = False
        self._now: int | None = None
        self._rows: dict[str, RunRow | None] = {}
        self._numbers: list[int] = []
        self._dirty: dict[int, RunRow] = {}
        self._new: list[tuple[int, RunRow]] = []
        self._events: list[tuple[Any, ...]] = []
        self._freed: dict[bool, list[int]] = {}
        self._news = False

    # The transaction

    def begin(self) -> None:
        """Begin, if it has not begun."""
        if self._begun:
            return
        self._begun = True
        ours = []
        if self._batch is not None:
            ours = [self._sql["impatient"], self._sql["receipt"] % (self._living.name, self._batch)]
        self._wire.run(self._db, ";".join([self._sql["begin"], *ours]))

    def commit(self) -> None:
        """Send what has gathered, tell others if they must know, and commit."""
        if not self._begun:
            return
        self._flush()
        notify = f"{self._sql['notify']};" if self._news else ""
        if self._wire.run(self._db, f"{notify}{self._sql['commit']}") != b"COMMIT":
            raise psycopg.errors.InFailedSqlTransaction("the transaction had failed, and was undone")

    def rollback(self) -> None:
        """Undo everything; if the connection is lost over it, the server does."""
        if self._begun and not self._db.closed:
            try:
                self._wire.run(self._db, self._sql["rollback"])
            except psycopg.OperationalError:
                self._db.close()

    def now(self) -> int:
        """The store's clock: the server's, when it was first asked for, which is after what was expected was locked."""
        if self._now is None:
            self.begin()
            now: int = self._query("now")[0][0] if self._clock is None else self._clock.now()
            self._now = now
        return self._now

    @contextmanager
    def undoable(self) -> Iterator[None]:
        """What is done inside is undone if it raises."""
        self._flush()
        self._wire.run(self._db, self._sql["savepoint"])
        kept = self._rows.copy(), self._numbers.copy()
        try:
            yield
            self._flush()
        except BaseException:
            self._forget()
            self._rows, self._numbers = kept
            if not self._db.closed:
                self._wire.run(self._db, self._sql["undo"])
            raise
        finally:
            if not self._db.closed:
                self._wire.run(self._db, self._sql["forget"])

    def _forget(self) -> None:
        self._dirty, self._new, self._events, self._freed = {}, [], [], {}

    def _flush(self) -> None:
        """Send what has gathered, in an order that the schema's references allow."""
        new, dirty, events, freed = self._new, self._dirty, self._events, self._freed
        self._forget()
        if new:
            self._many("add_all", [(number, *columns(row)) for number, row in new])
            self._label(new)
        if dirty:
            self._many("save_all", [(*saved_columns(row), number) for number, row in sorted(dirty.items())])
        if events:
            self._many("insert_all", events)
        for driven_only, numbers in freed.items():
            self._query("free_slots", numbers, driven_only)

    def _label(self, rows: Sequence[tuple[int, RunRow]]) -> None:
        labels = [(name, value, number) for number, row in rows for name, value in row.labels.items()]
        if labels:
            self._many("add_labels", labels)

    # Streams and their events

    def expect(self, runs: Collection[str], creations: int) -> None:
        """Lock the rows, and take numbers for those that will be made."""
        self.begin()
        found = {row[1]: row for row in self._query("lock_rows", sorted(runs))} if runs else {}
        self._rows = {run: row_of(plain(found[run])) if run in found else None for run in runs}
        if creations:
            self._numbers = [number for (number,) in self._query("numbers", creations)]

    def row(self, run: str) -> RunRow | None:
        """The stream's row, locked."""
        if run not in self._rows:
            self._rows[run] = self._row("row", run)
        return self._rows[run]

    def row_if_free(self, found: RunRow) -> RunRow | None:
        """The same stream's row as it is now, locked; nothing if somebody else has it locked."""
        if self._rows.get(found.id) is not None:
            return self._rows[found.id]
        row = self._row("row_if_free", found.id)
        if row is not None:
            self._rows[found.id] = row
        return row

    def peek(self, run: str) -> RunRow | None:
        """The stream's row, not locked."""
        return self._row("peek", run)

    def _row(self, name: str, run: str) -> RunRow | None:
        self.begin()
        self._flush()
        found = self._query(name, run)
        return row_of(plain(found[0])) if found else None

    def add(self, row: RunRow) -> int:
        """A new stream, under a number that was taken for it."""
        if not self._numbers:
            self._numbers = [number for (number,) in self._query("numbers", 1)]
        number = self._numbers.pop()
        self._new.append((number, row))
        self._rows[row.id] = replace(row, number=number)
        return number

    def extend(self, extensions: Sequence[Extension], *, final: bool = False) -> list[int | None]:
        """Move the heads that are where their writers believe them to be, and insert their events: one statement."""
        if not final:
            self.begin()
            self._flush()
        moved = self._extended(extensions)
        numbers = [moved.get(place) for place in range(1, len(extensions) + 1)]
        for each, number in zip(extensions, numbers, strict=True):
            row = self._rows.get(each.run)
            if number is not None and row is not None:
                head = each.events[-1].head
                ahead = replace(row, seq=head.seq, hash=head.hash, time=head.time, step=max(row.step, each.step))
                self._rows[each.run] = replace(ahead, deaths=0) if each.settled else ahead
        return numbers

    def _extended(self, extensions: Sequence[Extension]) -> dict[int, int]:
        try:
            return self._wire.extend(self._db, extensions, ours=self._batch is not None)
        except _MISFITS as error:
            raise SchemaViolation(f"extend: {str(error).splitlines()[0]}") from error

    def save(self, row: RunRow) -> None:
        """Write back what may change of a row."""
        self._news = True
        self._rows[row.id] = row
        self._dirty[row.number] = row

    def insert(self, number: int, events: Sequence[Event], commands: Sequence[str | None] | None = None) -> None:
        """Add events; commands come each with the id that it is known by."""
        self._news = True
        ids = commands or (None,) * len(events)
        self._events += [(number, *astuple(event)[1:], command) for event, command in zip(events, ids, strict=True)]

    def events(self, row: RunRow, after: int, limit: int) -> list[Event]:
        """The events after a sequence, in order."""
        return [Event(row.id, *plain(found)) for found in self._look("events", row.number, after, limit)]

    def command(self, row: RunRow, command: str) -> Event | None:
        """The event that a command id belongs to."""
        found = self._look("command", row.number, command)
        return Event(row.id, *plain(found[0])) if found else None

    def rewrite(self, row: RunRow, requests: Sequence[RequestRow], blobs: Sequence[int]) -> None:
        """Replace everything that was made from a stream's log."""
        self._flush()
        _, *values = safe(columns(row))
        self._query("rewrite", *values, row.number)
        for name in ("drop_labels", "drop_requests"):
            self._query(name, row.number)
        self._label([(row.number, row)])
        for request in requests:
            self.save_request(request, row.number)
        if blobs:
            self.refer([(row.number, blob) for blob in blobs])
        self._rows[row.id] = row

    def recount(self) -> None:
        """Make the counters anew from the rows; whoever changes a status waits meanwhile."""
        self.begin()
        for name in ("lock_counters", "drop_counters", "count_anew"):
            self._look(name)

    def needing(self, streams: Sequence[str]) -> list[str]:
        """The streams that share the beginning of one of these, and the runs that talk in one."""
        return [run for (run,) in self._look("needing", list(streams), list(streams))]

    def delete(self, numbers: Sequence[int]) -> None:
        """Delete streams with all that belongs to them; blobs that nobody refers to any more are loose from now on."""
        self._flush()
        blobs = [blob for (blob,) in self._query("referred", list(numbers))]
        for name in OF_A_STREAM:
            self._query(f"delete_{name}", list(numbers))
        self._query("let_go", self.now(), blobs)
        self._rows = {run: row for run, row in self._rows.items() if row is None or row.number not in numbers}
        self._news = True

    # Blobs

    def put_blobs(self, blobs: Sequence[Blob]) -> None:
        """Store blobs that are not there; the time of those that are there and loose begins anew."""
        by_id = {blob.id: blob for blob in blobs}
        sizes = [blob.size for blob in by_id.values()]
        found = self._query("put_blobs", self.now(), list(by_id), sizes)
        chunks = [
            (number, place, *chunk)
            for id, number, is_new in found
            if is_new
            for place, chunk in enumerate(by_id[id].chunks)
        ]
        if chunks:
            self._many("put_chunks", chunks)

    def find_blobs(self, blobs: Collection[str]) -> dict[str, int]:
        """The numbers of those that are there, which the collector leaves alone until the transaction ends."""
        self.begin()  # or they would be held for this statement alone
        return dict(self._query("find_blobs", list(blobs)))

    def refer(self, references: Sequence[tuple[int, int]]) -> None:
        """Streams refer to blobs; a blob that somebody refers to is not loose."""
        self._flush()
        self._many("refer", references)
        self._query("hold_blobs", sorted({blob for _, blob in references}))

    def put_chunk(self, upload: str, place: int, chunk: Packed) -> None:
        """Store one chunk of a blob that has no name yet."""
        [(number,)] = self._query("begin_upload", f"upload:{upload}", upload, self.now())
        self._many("put_chunks", [(number, place, *chunk)])

    def end_upload(self, upload: str, blob: str, size: int, chunks: int) -> bool:
        """Give a blob its name, or drop it if one of that name is there; false if a chunk is missing."""
        id = f"upload:{upload}"
        known = dict(self._query("lock_upload", id)) | self.find_blobs([blob])
        if blob in known:
            self._query("touch_blob", self.now(), known[blob])
            if id in known:
                self._query("drop_blob", known[id])
            return True
        if id not in known or self._query("count_chunks", known[id])[0][0] != chunks:
            return False
        self._query("name_blob", blob, size, self.now(), known[id])
        return True

    def collect(self, before: int, limit: int) -> int:
        """Delete some blobs that have been loose since before a time; one that is in use just now is passed by."""
        loose = [number for (number,) in self._query("loose_blobs", before, limit)]
        return len(self._query("collect", loose)) if loose else 0

    # Keys

    def settle(self, name: str, value: str) -> str:
        """What a setting is: as it was settled before, or else by this."""
        self.begin()
        return str(self._query("settle", name, value)[0][0])

    def is_new(self) -> bool:
        """Whether no stream was ever created."""
        return bool(self._query("is_new")[0][0])

    def keys(self) -> list[KeyRow]:
        """The wrapped keys, oldest first, locked."""
        self.begin()
        self._query("lock_keys")
        return [KeyRow(*found) for found in self._query("keys")]

    def save_keys(self, keys: Sequence[KeyRow]) -> None:
        """Replace them."""
        self._query("drop_keys")
        for key in keys:
            self._query("add_key", *key)

    # Requests

    def request(self, request: str) -> RequestRow | None:
        """A request's row."""
        found = self._look("request", *safe([request]))
        return request_of(plain(found[0])) if found else None

    def save_request(self, row: RequestRow, number: int) -> None:
        """Insert or replace a request's row."""
        self._flush()
        id, _, *values = astuple(row)
        values[_TO] = as_text(row.to)
        self._query("save_request", *safe((id, number, *values)))

    def open_requests(self, number: int) -> list[RequestRow]:
        """The requests of a run that nobody has decided."""
        return [request_of(plain(found)) for found in self._query("open_requests", number)]

    # Workers, claims and slots

    def workers(self) -> list[WorkerRow]:
        """All workers."""
        return [worker_of(plain(found)) for found in self._query("workers")]

    def save_worker(self, worker: WorkerRow) -> None:
        """Insert or replace a worker's row, which names the process that it lives in; one name, one process."""
        now, agents = self.now(), as_text(worker.agents)
        before = [host for (host,) in self._query("host", worker.id)]
        dead = before[0] if before and _has_ended(before[0]) else ""
        row = (worker.id, self._living.host, agents, worker.started, worker.lease_until)
        if not self._query("save_worker", *safe(row), now, dead):
            raise WorkerAlive(worker=worker.id)
        self._living.add(worker.id)

    def worker(self, worker: str) -> WorkerRow | None:
        """A worker's row, which nobody drops before the transaction ends."""
        self.begin()
        found = self._query("worker", worker)
        return worker_of(plain(found[0])) if found else None

    def lock_worker(self, worker: WorkerRow) -> bool:
        """Whether a worker's row is still this one, and nobody uses it just now."""
        return bool(self._query("lock_worker", *safe((worker.id, worker.host)), worker.lease_until))

    def drop_worker(self, worker: str) -> None:
        """Delete a worker's row."""
        self._query("drop_worker", worker)
        self._living.drop(worker)

    def is_dead(self, worker: WorkerRow) -> bool:
        """Whether its process is known to have ended, though its lease lasts."""
        return _has_ended(worker.host)

    def held_by(self, worker: str) -> list[RunRow]:
        """The runs that a worker has."""
        return readable(plain(found) for found in self._look("held_by", worker))

    def ready(self, agent: str, versions: Sequence[str], limit: int) -> list[RunRow]:
        """Runs of an agent that may be claimed now and that nobody else is claiming, longest ready first."""
        [agent], now, wanted = safe([agent]), self.now(), list(safe(versions))
        rows = enough(
            lambda count: self._look("ready", agent, now, wanted, count),
            lambda found: readable(plain(each) for each in found),
            limit,
        )
        self._rows |= {row.id: row for row in rows}
        return rows

    def take_slot(self, name: str, size: int, number: int, *, driven: bool) -> bool:
        """Take one of `size` slots for a run, or keep the one it has."""
        [name] = safe([name])
        if self._look("has_slot", name, number):
            return True
        wanted = {"name": name, "run": number, "driven": driven, "size": size}
        while not self._run("take_slot", wanted):
            if self._query("count_slots", name)[0][0] >= size:
                return False
        return True

    def free_slots(self, number: int, *, driven_only: bool) -> None:
        """Give slots back."""
        self._freed.setdefault(driven_only, []).append(number)

    # Beside the log

    def save_snapshot(self, number: int, snapshot: Snapshot) -> None:
        """Insert or replace a snapshot."""
        self._query("save_snapshot", number, *snapshot)

    def drop_snapshots(self, number: int, seqs: Sequence[int]) -> None:
        """Delete snapshots."""
        self._query("drop_snapshots", number, list(seqs))

    def save_late(self, number: int, late: Late) -> None:
        """Keep what came too late, once."""
        self._query("save_late", number, late.time, *safe(astuple(late.event)[1:]))

    def save_contracts(self, rows: Sequence[ContractRow]) -> None:
        """Insert contracts, or replace those whose hash is another: one statement."""
        self._many("save_contracts", [astuple(row) for row in rows])

    @contextmanager
    def lend(self) -> Iterator[Connection]:
        """The connection, for a caller's own writes."""
        self.begin()
        self._flush()
        [(lent,)] = self._query("lend")
        theirs = Lent(self._db.pgconn)
        theirs.prepare_threshold = None
        yield theirs
        status = self._db.info.transaction_status
        if status == psycopg.pq.TransactionStatus.INERROR:
            raise InvalidAppend(run="", reason="a statement of the caller's failed, and its error was swallowed")
        if status != psycopg.pq.TransactionStatus.INTRANS or not self._query("take_back", lent):
            raise InvalidAppend(run="", reason="the caller's code has ended the transaction that it was lent")
        self._wire.run(self._db, self._sql["impatient"])

    def _look(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        """Read what this transaction may have changed."""
        self._flush()
        return self._query(name, *values)

    def _many(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        """One statement for many rows: a list for each column."""
        self._query(name, *(list(safe(column)) for column in zip(*rows, strict=True)))

    def _query(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._run(name, values or None)

    def _run(self, name: str, values: Any) -> list[tuple[Any, ...]]:
        try:
            return query(self._db, self._sql[name], values)
        except _MISFITS as error:
            if isinstance(error, psycopg.Error) and again(error):
                raise
            raise SchemaViolation(f"{name}: {str(error).splitlines()[0]}") from error


_MISFITS = (psycopg.IntegrityError, psycopg.DataError, psycopg.errors.ProgramLimitExceeded, OverflowError)
_TO = RequestRow.__struct_fields__.index("to") - 2


def _has_ended(host: str) -> bool:
    return has_ended(host.rpartition("#")[0])


class TransactionParts(NamedTuple):
    """What the transactions of a backend have in common."""

    sql: Mapping[str, str]
    wire: Wire
    clock: Clock | None
    """Whose time counts, if it is not the server's."""
    living: "Living"


class Living:
    """The workers of one store in this process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.host = f"{this_process()}#{name}"
        self._workers: set[str] = set()

    def add(self, worker: str) -> None:
        """A worker lives here."""
        self._workers.add(worker)

    def drop(self, worker: str) -> None:
        """It does not any more."""
        self._workers.discard(worker)

    def all(self) -> list[str]:
        """Who lives here."""
        return sorted(self._workers)
