"""The rows of a PostgreSQL database, inside a transaction.

Rows that the transaction will touch are locked and read at its start, always in the same order. Writes are collected
and sent to the server in few statements, however many operations there are. A statement without a result waits until
one with a result, or the commit, is sent: a usual transaction takes two round trips.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg
from msgspec.structs import astuple, replace

from limpet.clock import Clock
from limpet.errors import InvalidAppend, WorkerAlive
from limpet.events import Event, Packed
from limpet.stores.backend import EventKeys, SchemaViolation
from limpet.stores.blobs import Blob
from limpet.stores.columns import (
    OF_A_STREAM,
    as_text,
    columns,
    duty_of,
    enough,
    readable,
    request_of,
    row_of,
    saved_columns,
    token_columns,
    token_of,
    worker_of,
)
from limpet.stores.postgres.connection import CallerConnection, Connection, again
from limpet.stores.postgres.parameters import compiled
from limpet.stores.postgres.text import plain, plain_rows, safe
from limpet.stores.postgres.wire import BoundStatement, Result, Wire, decoded
from limpet.stores.processes import has_ended, this_process
from limpet.stores.rows import (
    ContractRow,
    DutyRow,
    KeyRow,
    Late,
    RequestRow,
    RunRow,
    ScoreRow,
    Snapshot,
    TokenRow,
    WorkerRow,
)
from limpet.stores.writes import Extension

__all__ = ["PostgresTables", "ProcessWorkers", "TransactionParts"]


class PostgresTables:
    """The tables for `transact`, as named statements on one connection; one object per transaction."""

    def __init__(self, db: Connection, means: "TransactionParts", batch: int | None) -> None:
        self._db, self._batch = db, batch
        self._sql, self._wire, self._clock, self._workers = means
        self._begun = False
        self._waiting: list[BoundStatement] = []
        self._sent = 0
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
        """Start the transaction with the next statement, if it has not started."""
        if self._begun:
            return
        self._begun = True
        self._later("begin")
        if self._batch is not None:
            self._later("impatient")
            self._later("receipt", self._workers.name, self._batch)

    def commit(self) -> None:
        """Send the collected writes, notify others if necessary, and commit."""
        if not self._begun:
            return
        self._flush()
        if self._news:
            self._later("notify")
        [done] = self._send(self._call("commit"))
        if done.command_status != b"COMMIT":
            raise psycopg.errors.InFailedSqlTransaction("the transaction had failed, and was rolled back")

    def rollback(self) -> None:
        """Roll back. If the connection is lost, the server does."""
        self._waiting.clear()
        if self._begun and self._sent and not self._db.closed:
            try:
                self._wire.run(self._db, self._sql["rollback"])
            except psycopg.OperationalError:
                self._db.close()

    def now(self) -> int:
        """Return the server's time when first asked for, which is after the expected rows were locked."""
        if self._now is None:
            self.begin()
            self._now = self._clock.now() if self._clock is not None else int(self._query("now")[0][0])
        return self._now

    @contextmanager
    def undoable(self) -> Iterator[None]:
        """Undo everything done inside the block if it raises."""
        self.begin()
        self._flush()
        before = self._sent + len(self._waiting)
        self._later("savepoint")
        kept = self._rows.copy(), self._numbers.copy()
        try:
            yield
            self._flush()
        except BaseException:
            self._forget()
            self._rows, self._numbers = kept
            del self._waiting[max(before - self._sent, 0) :]
            if self._sent > before:
                self._later("undo")
                self._later("forget")
            raise
        self._later("forget")

    def _forget(self) -> None:
        self._dirty, self._new, self._events, self._freed = {}, [], [], {}

    def _flush(self) -> None:
        """Send the collected writes, in an order that the foreign keys allow."""
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
            self._later("free_slots", numbers, driven_only)

    def _label(self, rows: Sequence[tuple[int, RunRow]]) -> None:
        labels = [(name, value, number) for number, row in rows for name, value in row.labels.items()]
        if labels:
            self._many("add_labels", labels)

    # Streams and their events

    def expect(self, runs: Collection[str], creations: int) -> None:
        """Lock the rows, and reserve numbers for new streams."""
        self.begin()
        calls = {}
        if runs:
            calls["lock_rows"] = self._call("lock_rows", sorted(runs))
        if creations:
            calls["numbers"] = self._call("numbers", creations)
        if self._clock is None:
            calls["now"] = self._call("now")
        found = dict(zip(calls, self._send(*calls.values()), strict=True)) if calls else {}
        locked = {row[1]: row for row in self._decoded(found.get("lock_rows"))}
        self._rows = {run: row_of(plain(locked[run])) if run in locked else None for run in runs}
        self._numbers = [number for (number,) in self._decoded(found.get("numbers"))]
        for (now,) in self._decoded(found.get("now")):
            self._now = now

    def row(self, run: str) -> RunRow | None:
        """Return the stream's row, locked."""
        if run not in self._rows:
            self._rows[run] = self._row("row", run)
        return self._rows[run]

    def row_if_free(self, found: RunRow) -> RunRow | None:
        """Return the current row of the same stream, locked; None if another transaction has locked it."""
        if self._rows.get(found.id) is not None:
            return self._rows[found.id]
        row = self._row("row_if_free", found.id)
        if row is not None:
            self._rows[found.id] = row
        return row

    def peek(self, run: str) -> RunRow | None:
        """Return the stream's row, not locked."""
        return self._row("peek", run)

    def _row(self, name: str, run: str) -> RunRow | None:
        self.begin()
        self._flush()
        found = self._query(name, run)
        return row_of(plain(found[0])) if found else None

    def add(self, row: RunRow) -> int:
        """Add a new stream with a reserved number."""
        if not self._numbers:
            self._numbers = [number for (number,) in self._query("numbers", 1)]
        number = self._numbers.pop()
        self._new.append((number, row))
        self._rows[row.id] = replace(row, number=number)
        return number

    def extend(self, extensions: Sequence[Extension], *, final: bool = False) -> list[int | None]:
        """Move the heads that are where their writers expect them, and insert their events, in one statement."""
        if not final:
            self.begin()
            self._flush()
        waiting = self._take_waiting()
        with _misfits():
            moved = self._wire.extend(self._db, extensions, waiting)
        numbers = [moved.get(place) for place in range(1, len(extensions) + 1)]
        for each, number in zip(extensions, numbers, strict=True):
            row = self._rows.get(each.run)
            if number is not None and row is not None:
                head = each.events[-1].head
                ahead = replace(row, seq=head.seq, hash=head.hash, time=head.time, step=max(row.step, each.step))
                self._rows[each.run] = replace(ahead, deaths=0) if each.settled else ahead
        return numbers

    def save(self, row: RunRow) -> None:
        """Update the mutable fields of a row."""
        self._news = True
        self._rows[row.id] = row
        self._dirty[row.number] = row

    def insert(self, number: int, events: Sequence[Event], keys: Sequence[EventKeys]) -> None:
        """Insert events, each with the keys by which it is found."""
        self._news = True
        self._events += [(number, *astuple(event)[1:], *found) for event, found in zip(events, keys, strict=True)]

    def events(self, row: RunRow, after: int, limit: int) -> list[Event]:
        """Return the events after a sequence, in order."""
        return [Event(row.id, *found) for found in plain_rows(self._read("events", row.number, after, limit))]

    def logs(self, rows: Sequence[RunRow]) -> list[list[Event]]:
        """Return all events of each of these streams, in one query."""
        found: dict[int, list[Sequence[Any]]] = {row.number: [] for row in rows}
        for number, *event in self._read("logs", list(found)):
            found[number].append(event)
        return [[Event(row.id, *each) for each in plain_rows(found[row.number])] for row in rows]

    def command(self, row: RunRow, command: str) -> Event | None:
        """Return the event with a command id."""
        found = self._read("command", row.number, command)
        return Event(row.id, *plain(found[0])) if found else None

    def rewrite(
        self,
        row: RunRow,
        requests: Sequence[RequestRow],
        scores: Sequence[ScoreRow],
        blobs: Sequence[int],
        steps: Sequence[tuple[int, int | None]],
    ) -> None:
        """Replace everything that is derived from a stream's log."""
        self._flush()
        _, *values = safe(columns(row))
        self._later("rewrite", *values, row.number)
        for name in ("drop_labels", "drop_requests", "drop_scores"):
            self._later(name, row.number)
        self._label([(row.number, row)])
        self._later("index_steps", row.number, [seq for seq, _ in steps], [step for _, step in steps])
        for request in requests:
            self.save_request(request, row.number)
        for score in scores:
            self.save_score(score, row.number)
        if blobs:
            self.refer([(row.number, blob) for blob in blobs])
        self._rows[row.id] = row

    def recount(self) -> None:
        """Recompute the counters from the rows; transactions that change a status wait meanwhile."""
        self._flush()
        for name in ("lock_counters", "drop_counters", "count_anew"):
            self._later(name)

    def needing(self, streams: Sequence[str]) -> list[str]:
        """Return the forks of these streams, and the runs that use one of them as their conversation."""
        return [run for (run,) in self._read("needing", list(streams), list(streams))]

    def delete(self, numbers: Sequence[int]) -> None:
        """Delete streams with everything that belongs to them. Blobs without other references become loose."""
        self._flush()
        blobs = [blob for (blob,) in self._query("referred", list(numbers))]
        for name in OF_A_STREAM:
            self._later(f"delete_{name}", list(numbers))
        self._later("let_go", self.now(), blobs)
        self._rows = {run: row for run, row in self._rows.items() if row is None or row.number not in numbers}
        self._news = True

    # Blobs

    def put_blobs(self, blobs: Sequence[Blob]) -> None:
        """Store blobs that do not exist yet. The grace period of loose blobs that exist starts again."""
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
        """Return the numbers of the blobs that exist. The collector skips them until the transaction ends."""
        self.begin()  # Without a transaction they would only be locked for this statement.
        return dict(self._query("find_blobs", list(blobs)))

    def refer(self, references: Sequence[tuple[int, int]]) -> None:
        """Record that streams refer to blobs, which are then not loose."""
        self._flush()
        self._many("refer", references)
        self._later("hold_blobs", sorted({blob for _, blob in references}))

    def put_chunk(self, upload: str, place: int, chunk: Packed) -> None:
        """Store one chunk of an upload."""
        [(number,)] = self._query("begin_upload", f"upload:{upload}", upload, self.now())
        self._many("put_chunks", [(number, place, *chunk)])

    def end_upload(self, upload: str, blob: str, size: int, chunks: int) -> bool:
        """Name an upload, or drop it if a blob of that name exists. Returns False if a chunk is missing."""
        id = f"upload:{upload}"
        known = dict(self._query("lock_upload", id)) | self.find_blobs([blob])
        if blob in known:
            self._later("touch_blob", self.now(), known[blob])
            if id in known:
                self._later("drop_blob", known[id])
            return True
        if id not in known or self._query("count_chunks", known[id])[0][0] != chunks:
            return False
        self._later("name_blob", blob, size, self.now(), known[id])
        return True

    def collect(self, before: int, limit: int) -> int:
        """Delete up to `limit` blobs that have been loose since before a time, skipping those in use."""
        loose = [number for (number,) in self._query("loose_blobs", before, limit)]
        return len(self._query("collect", loose)) if loose else 0

    # Keys

    def settle(self, name: str, value: str) -> str:
        """Return the value of a setting; set it first if it has none."""
        self.begin()
        return str(self._query("settle", name, value)[0][0])

    def is_new(self) -> bool:
        """Return whether no stream was ever created."""
        return bool(self._query("is_new")[0][0])

    def keys(self) -> list[KeyRow]:
        """Return the wrapped keys, oldest first, locked."""
        self.begin()
        self._later("lock_keys")
        return [KeyRow(*found) for found in self._query("keys")]

    def save_keys(self, keys: Sequence[KeyRow]) -> None:
        """Replace the wrapped keys."""
        self._later("drop_keys")
        for key in keys:
            self._later("add_key", *key)

    # Requests

    def request(self, request: str) -> RequestRow | None:
        """Return a request's row."""
        found = self._read("request", *safe([request]))
        return request_of(plain(found[0])) if found else None

    def save_request(self, row: RequestRow, number: int) -> None:
        """Insert or replace a request's row."""
        self._flush()
        id, _, *values = astuple(row)
        values[_TO] = as_text(row.to)
        self._later("save_request", *safe((id, number, *values)))

    def open_requests(self, number: int) -> list[RequestRow]:
        """Return the open requests of a run."""
        return [request_of(plain(found)) for found in self._query("open_requests", number)]

    # Scores

    def save_score(self, row: ScoreRow, number: int) -> None:
        """Insert a score's row, or replace the one with the same key."""
        self._flush()
        self._later("save_score", number, *safe(astuple(row)[1:]))

    def drop_score(self, row: ScoreRow, number: int) -> None:
        """Delete the score's row with the same key."""
        self._flush()
        self._later("drop_score", number, *safe([row.name, row.by, row.step]))

    # Workers, claims and slots

    def workers(self) -> list[WorkerRow]:
        """Return all workers."""
        return [worker_of(plain(found)) for found in self._query("workers")]

    def save_worker(self, worker: WorkerRow) -> None:
        """Insert or replace a worker's row, with this process. Raises WorkerAlive if another process has the name."""
        now, agents = self.now(), as_text(worker.agents)
        before = [host for (host,) in self._query("host", worker.id)]
        dead = before[0] if before and _has_ended(before[0]) else ""
        row = (worker.id, self._workers.host, agents, worker.started, worker.lease_until, worker.engine)
        if not self._query("save_worker", *safe(row), now, dead):
            raise WorkerAlive(worker=worker.id)
        self._workers.add(worker.id)

    def worker(self, worker: str) -> WorkerRow | None:
        """Return a worker's row, which cannot be dropped before the transaction ends."""
        self.begin()
        found = self._query("worker", worker)
        return worker_of(plain(found[0])) if found else None

    def lock_worker(self, worker: WorkerRow) -> bool:
        """Lock a worker's row. Returns False if the row has changed or another transaction uses it."""
        return bool(self._query("lock_worker", *safe((worker.id, worker.host)), worker.lease_until))

    def duty(self, name: str) -> DutyRow:
        """Return a duty's row, locked."""
        self.begin()
        return duty_of(plain(self._query("duty", *safe((name,)))[0]))

    def save_duty(self, duty: DutyRow) -> None:
        """Replace a duty's row."""
        name, *rest = safe(astuple(duty))
        self._later("save_duty", *rest, name)

    def token(self, token: str) -> TokenRow | None:
        """Return a token's row, locked."""
        self.begin()
        found = self._query("lock_token", *safe((token,)))
        return token_of(plain(found[0])) if found else None

    def add_token(self, token: TokenRow) -> bool:
        """Insert a token's row; return False if there is one with its id."""
        self.begin()
        return bool(self._query("add_token", *safe(token_columns(token))))

    def save_token(self, token: TokenRow) -> None:
        """Replace what may change of a token's row."""
        self._later("save_token", *safe((token.revoked, token.revoked_by, token.last_used, token.id)))

    def drop_sessions(self, before: int) -> None:
        """Delete sessions and login codes that expired before a time."""
        self._later("drop_sessions", before)

    def drop_worker(self, worker: str) -> None:
        """Delete a worker's row."""
        self._later("drop_worker", worker)
        self._workers.drop(worker)

    def is_dead(self, worker: WorkerRow) -> bool:
        """Return whether the worker's process is known to have ended, although its lease has not expired."""
        return _has_ended(worker.host)

    def held_by(self, worker: str) -> list[RunRow]:
        """Return the runs that a worker holds."""
        return readable(plain(found) for found in self._read("held_by", worker))

    def ready_agents(self, agents: Collection[str]) -> list[str]:
        """Return those of the agents that have runs which are ready now."""
        found = self._read("ready_agents", list(safe(agents)), self.now())
        return list(plain(agent for (agent,) in found))

    def ready(self, agent: str, versions: Sequence[str], limit: int) -> list[RunRow]:
        """Return runs of an agent that may be claimed now and are not being claimed, longest ready first."""
        [agent], now, wanted = safe([agent]), self.now(), list(safe(versions))
        rows = enough(
            lambda count: self._read("ready", agent, now, wanted, count),
            lambda found: readable(plain(each) for each in found),
            limit,
        )
        self._rows |= {row.id: row for row in rows}
        return rows

    def take_slot(self, name: str, size: int, number: int, *, driven: bool) -> bool:
        """Take one of `size` slots for a run, or keep the one it has."""
        [name] = safe([name])
        if self._read("has_slot", name, number):
            return True
        while not self._query("take_slot", name, number, driven, size):
            if self._query("count_slots", name)[0][0] >= size:
                return False
        return True

    def free_slots(self, number: int, *, driven_only: bool) -> None:
        """Free the slots of a run."""
        self._freed.setdefault(driven_only, []).append(number)

    # Beside the log

    def save_snapshot(self, number: int, snapshot: Snapshot) -> None:
        """Insert or replace a snapshot."""
        self._later("save_snapshot", number, *snapshot)

    def drop_snapshots(self, number: int, seqs: Sequence[int]) -> None:
        """Delete snapshots."""
        self._later("drop_snapshots", number, list(seqs))

    def save_late(self, number: int, late: Late) -> None:
        """Store a late event, once."""
        self._later("save_late", number, late.time, *safe(astuple(late.event)[1:]))

    def save_contracts(self, rows: Sequence[ContractRow]) -> None:
        """Insert contracts, or replace those with another hash, in one statement."""
        self._many("save_contracts", [astuple(row) for row in rows])

    @contextmanager
    def lend(self) -> Iterator[Connection]:
        """Lend the connection for a caller's own writes."""
        self.begin()
        self._flush()
        [(lent,)] = self._query("lend")
        theirs = CallerConnection(self._db.pgconn)
        theirs.prepare_threshold = None
        yield theirs
        status = self._db.info.transaction_status
        if status == psycopg.pq.TransactionStatus.INERROR:
            reason = "a statement of the caller's transaction failed, and the caller ignored its error"
            fix = "Let the database error propagate, or run the statement inside a savepoint."
            raise InvalidAppend(run="", reason=reason, fix=fix)
        if status != psycopg.pq.TransactionStatus.INTRANS or not self._query("take_back", lent):
            fix = "Remove commit() and rollback(): Limpet commits the caller's writes together with the events."
            raise InvalidAppend(run="", reason="the caller's code has ended the transaction", fix=fix)
        self._later("impatient")

    def _read(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        """Query after sending the collected writes, which may affect the result."""
        self._flush()
        return self._query(name, *values)

    def _many(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run one statement for many rows, with a list per column."""
        self._later(name, *(safe(column) for column in zip(*rows, strict=True)))

    def _later(self, name: str, *values: Any) -> None:
        """Run a statement without a result before the next one that has a result."""
        self.begin()
        self._waiting.append(self._call(name, *values))

    def _query(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        [result] = self._send(self._call(name, *values))
        return self._decoded(result)

    def _decoded(self, result: Result | None) -> list[tuple[Any, ...]]:
        return [] if result is None else decoded(self._db, result)

    def _call(self, name: str, *values: Any) -> BoundStatement:
        statement = compiled(self._sql[name])
        return BoundStatement(statement, statement.encode(values))

    def _send(self, *calls: BoundStatement) -> list[Result]:
        """Run what waits and these statements in one round trip; return the results of these."""
        waiting = self._take_waiting()
        self._sent += len(calls)
        with _misfits():
            if not waiting and len(calls) == 1:
                return [self._wire.call(self._db, calls[0])]
            return self._wire.send(self._db, [*waiting, *calls])[len(waiting) :]

    def _take_waiting(self) -> list[BoundStatement]:
        waiting, self._waiting = self._waiting, []
        self._sent += len(waiting)
        return waiting


@contextmanager
def _misfits() -> Iterator[None]:
    """Raise SchemaViolation if the server refuses a value, unless a collision is the reason."""
    try:
        yield
    except _MISFITS as error:
        if again(error):
            raise
        raise SchemaViolation(str(error).splitlines()[0]) from error


_MISFITS = (psycopg.IntegrityError, psycopg.DataError, psycopg.errors.ProgramLimitExceeded)
_TO = RequestRow.__struct_fields__.index("to") - 2


def _has_ended(host: str) -> bool:
    return has_ended(host.rpartition("#")[0])


class TransactionParts(NamedTuple):
    """Resources that the transactions of a backend share."""

    sql: Mapping[str, str]
    wire: Wire
    clock: Clock | None
    """The clock to use instead of the server's."""
    workers: "ProcessWorkers"


class ProcessWorkers:
    """The workers of one store in this process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.host = f"{this_process()}#{name}"
        self._workers: set[str] = set()

    def add(self, worker: str) -> None:
        """Add a worker."""
        self._workers.add(worker)

    def drop(self, worker: str) -> None:
        """Remove a worker."""
        self._workers.discard(worker)

    def all(self) -> list[str]:
        """Return the workers in this process."""
        return sorted(self._workers)
