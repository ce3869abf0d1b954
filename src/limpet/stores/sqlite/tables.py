"""The rows of a SQLite database, inside the writer's transaction."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import apsw
from msgspec.structs import astuple

from limpet.clock import Clock
from limpet.events import Event, Packed, parse
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
from limpet.stores.sqlite.locks import WorkerLocks
from limpet.stores.writes import Extension

__all__ = ["SqliteTables"]

REMEMBERED = 100_000
# Numbers of events that a statement appends; places that are not needed stay empty. Longer statements are not cached.
TOGETHER = (8, 32, 64, 128, 192, 256, 320, 448)
EVENT, NO_EVENT = f"({','.join('?' * 16)})", (None,) * 16


class SqliteTables:
    """The tables for `transact`, as named statements on one connection."""

    def __init__(self, db: apsw.Connection, sql: Mapping[str, str], clock: Clock, locks: WorkerLocks) -> None:
        self._db = db
        self._cursor = db.cursor()
        self._sql = {**sql, **{f"extend_{size}": f"{sql['extend']} {','.join([EVENT] * size)}" for size in TOGETHER}}
        self._clock = clock
        self._locks = locks
        self._numbers: dict[str, int] = {}
        self._added: dict[str, int] = {}
        """Numbers of the streams that this transaction has added."""
        self._has_slots: bool | None = None
        self._has_requests: bool | None = None
        """Whether there is any slot, and any open request; None if this transaction has not looked yet."""
        self._gone: list[str] = []
        self.last: Event | None = None
        """The last event that was added."""

    def now(self) -> int:
        """Return the store's time, which is this machine's."""
        return self._clock.now()

    @contextmanager
    def undoable(self) -> Iterator[None]:
        """Undo everything done inside the block if it raises."""
        self._run("savepoint")
        try:
            yield
        except BaseException:
            self._run("undo")
            self._added.clear()
            raise
        finally:
            self._run("forget")

    # Streams and their events

    def expect(self, runs: Collection[str], creations: int) -> None:
        """Do nothing: the whole file is locked."""

    def row_if_free(self, found: RunRow) -> RunRow | None:
        """Return the stream's row, which no other transaction can have locked."""
        return self.row(found.id)

    def peek(self, run: str) -> RunRow | None:
        """Return the stream's row."""
        return self.row(run)

    def row(self, run: str) -> RunRow | None:
        """Return the stream's row."""
        found = self._one("row", run)
        if found is None:
            return None
        self._remember(run, found[0])
        return row_of(found)

    def add(self, row: RunRow) -> int:
        """Insert the row of a new stream and return its number."""
        number: int = self._one("add", *columns(row))[0]
        if row.labels:
            self._many("add_label", [(name, value, number) for name, value in row.labels.items()])
        self._added[row.id] = number
        return number

    def extend(self, extensions: Sequence[Extension], *, final: bool = False) -> list[int | None]:  # noqa: ARG002
        """Move each head by compare-and-set and insert its events, with few statements if there are many."""
        if len(extensions) == 1:
            return [self._extended(extensions[0])]
        done: dict[str, int | None] = {}
        for part in _parts(extensions):
            done |= self.extend_together(part)
        for each in extensions:
            if each.run in done:
                self.last = each.events[-1]
            else:
                done[each.run] = self._extended(each)
        return [done[each.run] for each in extensions]

    def extend_together(self, extensions: Sequence[Extension]) -> dict[str, int]:
        """Append to streams in one statement; return the numbers of the streams that were extended.

        The others are stale, or not known as runs, or the statement has no place for them.
        """
        known: dict[str, int] = {}
        rows: list[tuple[Any, ...]] = []
        for each in extensions:
            number = self._numbers.get(each.run)
            if number is not None and each.fence is not None and len(rows) + len(each.events) <= TOGETHER[-1]:
                known[each.run] = number
                rows += _rows_together(number, each)
        if not rows:
            return {}
        size = next(size for size in TOGETHER if size >= len(rows))
        before = self._db.total_changes()
        self._run(f"extend_{size}", *chain.from_iterable(rows), *NO_EVENT * (size - len(rows)))
        added = (self._db.total_changes() - before) // 2  # Each event also moves a head.
        if added == len(rows):
            return known
        newest = set(parse(self._one("newest_hashes", added)[0]))
        ends = ((each.run, each.events[-1].hash.hex()) for each in extensions if each.run in known)
        return {run: known[run] for run, end in ends if end in newest}

    def _extended(self, wanted: Extension) -> int | None:
        number = self._numbers.get(wanted.run)
        if number is None or not self._advanced(number, wanted):
            row = self.row(wanted.run)  # Never seen, or loaded again under another number.
            if row is None or row.number == number:
                return None
            number = row.number
            if not self._advanced(number, wanted):
                return None
        self._many("insert", _event_rows(number, wanted))
        self.last = wanted.events[-1]
        return number

    def _advanced(self, number: int, wanted: Extension) -> bool:
        after, head = wanted.after, wanted.events[-1]
        if wanted.fence is None:
            self._run("advance_conversation", number, after.seq, after.hash, head.seq, head.hash, head.time)
        else:
            self._run("advance_run", *_advance(number, wanted))
        return self._db.changes() == 1

    def save(self, row: RunRow) -> None:
        """Update the mutable fields of a row."""
        self._run("save", row.number, *saved_columns(row))

    def insert(self, number: int, events: Sequence[Event], keys: Sequence[EventKeys]) -> None:
        """Insert events, each with the keys by which it is found."""
        self.last = events[-1]
        if len(events) == 1:
            self._run("insert", number, *astuple(events[0])[1:], *keys[0])
            return
        self._many("insert", [(number, *astuple(event)[1:], *found) for event, found in zip(events, keys, strict=True)])

    def events(self, row: RunRow, after: int, limit: int) -> list[Event]:
        """Return the events after a sequence, in order."""
        return [Event(row.id, *found) for found in self._all("events", row.number, after, limit)]

    def logs(self, rows: Sequence[RunRow]) -> list[list[Event]]:
        """Return all events of each of these streams."""
        return [self.events(row, 0, row.seq) for row in rows]

    def command(self, row: RunRow, command: str) -> Event | None:
        """Return the event with a command id."""
        found = self._one("command", row.number, command)
        return None if found is None else Event(row.id, *found)

    def rewrite(
        self,
        row: RunRow,
        requests: Sequence[RequestRow],
        scores: Sequence[ScoreRow],
        blobs: Sequence[int],
        steps: Sequence[tuple[int, int | None]],
    ) -> None:
        """Replace everything that is derived from a stream's log."""
        self._run("rewrite", *columns(row))
        self._many("index_step", [(row.number, seq, step) for seq, step in steps])
        for name in ("drop_labels", "drop_requests", "drop_scores"):
            self._run(name, row.number)
        self._many("add_label", [(name, value, row.number) for name, value in row.labels.items()])
        for request in requests:
            self.save_request(request, row.number)
        for score in scores:
            self.save_score(score, row.number)
        self.refer([(row.number, blob) for blob in blobs])

    def recount(self) -> None:
        """Recompute the counters from the rows."""
        self._run("drop_counters")
        self._run("count_anew")

    def needing(self, streams: Sequence[str]) -> list[str]:
        """Return the forks of these streams, and the runs that use one of them as their conversation."""
        return [run for (run,) in self._all("needing", as_text(list(streams)))]

    def delete(self, numbers: Sequence[int]) -> None:
        """Delete streams with everything that belongs to them. Blobs without other references become loose."""
        gone = as_text(list(numbers))
        blobs = as_text([blob for (blob,) in self._all("referred", gone)])
        for name in OF_A_STREAM:
            self._run(f"delete_{name}", gone)
        self._run("let_go", blobs, self.now())

    # Blobs

    def put_blobs(self, blobs: Sequence[Blob]) -> None:
        """Store blobs that do not exist yet. The grace period of loose blobs that exist starts again."""
        known = self.find_blobs([blob.id for blob in blobs])
        for blob in blobs:
            if blob.id in known:
                self._run("touch_blob", known[blob.id], self.now())
            else:
                known[blob.id] = self._add_blob(blob.id, blob.size, "")
                for place, chunk in enumerate(blob.chunks):
                    self._run("put_chunk", known[blob.id], place, *chunk)

    def find_blobs(self, blobs: Collection[str]) -> dict[str, int]:
        """Return the numbers of the blobs that exist."""
        return dict(self._all("find_blobs", as_text(list(blobs))))

    def refer(self, references: Sequence[tuple[int, int]]) -> None:
        """Record that streams refer to blobs, which are then not loose."""
        self._many("refer", references)
        self._many("hold_blob", [(blob,) for blob in {blob for _, blob in references}])

    def put_chunk(self, upload: str, place: int, chunk: Packed) -> None:
        """Store one chunk of an upload."""
        id = f"upload:{upload}"
        number = self.find_blobs([id]).get(id) or self._add_blob(id, 0, upload)
        self._run("touch_blob", number, self.now())
        self._run("put_chunk", number, place, *chunk)

    def end_upload(self, upload: str, blob: str, size: int, chunks: int) -> bool:
        """Name an upload, or drop it if a blob of that name exists. Returns False if a chunk is missing."""
        id = f"upload:{upload}"
        known = self.find_blobs([id, blob])
        if blob in known:
            self._run("touch_blob", known[blob], self.now())
            self._run("drop_blob", known.get(id))
            return True
        if id not in known or self._one("count_chunks", known[id])[0] != chunks:
            return False
        self._run("name_blob", known[id], blob, size, self.now())
        return True

    def collect(self, before: int, limit: int) -> int:
        """Delete up to `limit` blobs that have been loose since before a time; return their number."""
        self._run("collect", before, limit)
        return self._db.changes()

    def _add_blob(self, id: str, size: int, name: str) -> int:
        number: int = self._one("add_blob", id, size, name, self.now())[0]
        return number

    # Keys

    def settle(self, name: str, value: str) -> str:
        """Return the value of a setting; set it first if it has none."""
        return str(self._one("settle", name, value)[0])

    def is_new(self) -> bool:
        """Return whether no stream was ever created."""
        return bool(self._one("is_new")[0])

    def keys(self) -> list[KeyRow]:
        """Return the wrapped keys, oldest first."""
        return [KeyRow(*found) for found in self._all("keys")]

    def save_keys(self, keys: Sequence[KeyRow]) -> None:
        """Replace the wrapped keys."""
        self._run("drop_keys")
        self._many("add_key", keys)

    # Requests

    def request(self, request: str) -> RequestRow | None:
        """Return a request's row."""
        found = self._one("request", request)
        return None if found is None else request_of(found)

    def save_request(self, row: RequestRow, number: int) -> None:
        """Insert or replace a request's row."""
        self._has_requests = None
        self._run(
            "save_request",
            row.id,
            number,
            row.seq,
            row.kind,
            row.status,
            as_text(row.to),
            row.risk,
            row.tool,
            row.opened,
            row.expires,
            row.digest,
            row.by,
        )

    def open_requests(self, number: int) -> list[RequestRow]:
        """Return the open requests of a run."""
        if self._has_requests is None:
            self._has_requests = bool(self._all("any_request"))
        if not self._has_requests:
            return []
        return [request_of(found) for found in self._all("open_requests", number)]

    # Scores

    def save_score(self, row: ScoreRow, number: int) -> None:
        """Insert a score's row, or replace the one with the same key."""
        self._run("save_score", number, *astuple(row)[1:])

    def drop_score(self, row: ScoreRow, number: int) -> None:
        """Delete the score's row with the same key."""
        self._run("drop_score", number, row.name, row.by, row.step)

    # Workers, claims and slots

    def workers(self) -> list[WorkerRow]:
        """Return all workers."""
        return [worker_of(found) for found in self._all("workers")]

    def worker(self, worker: str) -> WorkerRow | None:
        """Return a worker's row."""
        found = self._one("worker", worker)
        return None if found is None else worker_of(found)

    def lock_worker(self, worker: WorkerRow) -> bool:
        """Return whether a worker's row is unchanged; the whole file is locked."""
        return self.worker(worker.id) == worker

    def save_worker(self, worker: WorkerRow) -> None:
        """Insert or replace a worker's row. Takes its lock first, before other processes can see the row."""
        self._locks.hold(worker.id)
        agents = as_text(worker.agents)
        self._run("save_worker", worker.id, worker.host, agents, worker.started, worker.lease_until, worker.engine)

    def drop_worker(self, worker: str) -> None:
        """Delete a worker's row. Its lock is released after the commit, or a crash before that would hide its death."""
        self._run("drop_worker", worker)
        self._gone.append(worker)

    def duty(self, name: str) -> DutyRow:
        """Return a duty's row; the whole file is locked."""
        found = self._one("duty", name)
        assert found is not None
        return duty_of(found)

    def save_duty(self, duty: DutyRow) -> None:
        """Replace a duty's row."""
        self._run("save_duty", *astuple(duty))

    def token(self, token: str) -> TokenRow | None:
        """Return a token's row; the whole file is locked."""
        found = self._one("token", token)
        return None if found is None else token_of(found)

    def add_token(self, token: TokenRow) -> bool:
        """Insert a token's row; return False if there is one with its id."""
        return self._one("add_token", *token_columns(token)) is not None

    def save_token(self, token: TokenRow) -> None:
        """Replace what may change of a token's row."""
        self._run("save_token", token.id, token.revoked, token.revoked_by, token.last_used)

    def drop_sessions(self, before: int) -> None:
        """Delete sessions and login codes that expired before a time."""
        self._run("drop_sessions", before)

    def committed(self) -> None:
        """After a durable commit, remember new streams, and release the locks of removed workers."""
        for run, number in self._added.items():
            self._remember(run, number)
        gone, self._gone = self._gone, []
        for worker in gone:
            if self.worker(worker) is None:
                self._locks.drop(worker)

    def undone(self) -> None:
        """Forget what only this transaction knows, after its end."""
        self._gone.clear()
        self._added.clear()
        self._has_slots = self._has_requests = None

    def is_dead(self, worker: WorkerRow) -> bool:
        """Return whether the worker's process has ended, since it no longer holds its lock."""
        return self._locks.is_free(worker.id)

    def held_by(self, worker: str) -> list[RunRow]:
        """Return the runs that a worker holds."""
        return readable(self._all("held_by", worker))

    def ready_agents(self, agents: Collection[str]) -> list[str]:
        """Return those of the agents that have runs which are ready now."""
        found: list[str] = parse(self._one("ready_agents", as_text(list(agents)), self.now())[0])
        return found

    def ready(self, agent: str, versions: Sequence[str], limit: int) -> list[RunRow]:
        """Return runs of an agent that may be claimed now, longest ready first."""
        now, wanted = self.now(), as_text(list(versions))
        return enough(lambda count: self._all("ready", agent, now, wanted, count), readable, limit)

    def take_slot(self, name: str, size: int, number: int, *, driven: bool) -> bool:
        """Take one of `size` slots for a run, or keep the one it has."""
        taken = dict(self._all("slots_taken", name))
        if number in taken.values():
            return True
        free = next((place for place in range(size) if place not in taken), None)
        if free is None or len(taken) >= size:
            return False
        self._run("take_slot", name, free, number, driven)
        self._has_slots = True
        return True

    def free_slots(self, number: int, *, driven_only: bool) -> None:
        """Free the slots of a run."""
        if self._has_slots is None:
            self._has_slots = bool(self._all("any_slot"))
        if self._has_slots:
            self._run("free_slots", number, driven_only)

    # Beside the log

    def save_snapshot(self, number: int, snapshot: Snapshot) -> None:
        """Insert or replace a snapshot."""
        self._run("save_snapshot", number, *snapshot)

    def drop_snapshots(self, number: int, seqs: Sequence[int]) -> None:
        """Delete snapshots."""
        self._many("drop_snapshot", [(number, seq) for seq in seqs])

    def save_late(self, number: int, late: Late) -> None:
        """Store a late event, once."""
        self._run("save_late", number, late.time, *astuple(late.event)[1:])

    def save_contracts(self, rows: Sequence[ContractRow]) -> None:
        """Insert contracts, or replace those with another hash."""
        self._many("save_contract", [astuple(row) for row in rows])

    @contextmanager
    def lend(self) -> Iterator[apsw.Connection]:
        """Lend the connection for a caller's own writes. Closes the caller's cursors, since an open one keeps its
        snapshot.
        """
        cursors: list[apsw.Cursor] = []
        traces = self._db.row_trace, self._db.exec_trace

        def cursor(db: apsw.Connection) -> apsw.Cursor:
            cursors.append(apsw.Cursor(db))
            return cursors[-1]

        self._db.authorizer, self._db.cursor_factory = _only_their_own, cursor
        try:
            yield self._db
        finally:
            self._db.authorizer, self._db.cursor_factory = None, apsw.Cursor
            self._db.row_trace, self._db.exec_trace = traces
            for each in cursors:
                each.close(True)

    def _remember(self, run: str, number: int) -> None:
        """Remember a run's number, which never changes and never belongs to another run."""
        if len(self._numbers) >= REMEMBERED:
            self._numbers.clear()
        self._numbers[run] = number

    def _run(self, name: str, *bindings: Any) -> apsw.Cursor:
        try:
            return self._cursor.execute(self._sql[name], bindings)
        except apsw.ConstraintError as error:
            raise SchemaViolation(f"{name}: {error}") from error

    def _many(self, name: str, bindings: Sequence[tuple[Any, ...]]) -> None:
        try:
            self._cursor.executemany(self._sql[name], bindings)
        except apsw.ConstraintError as error:
            raise SchemaViolation(f"{name}: {error}") from error

    def _one(self, name: str, *bindings: Any) -> Any:
        found = self._all(name, *bindings)
        return found[0] if found else None

    def _all(self, name: str, *bindings: Any) -> list[Any]:
        """Return all rows. An unfinished statement would keep its snapshot and make the next BEGIN fail."""
        return self._run(name, *bindings).fetchall()


_ENDS = (apsw.SQLITE_TRANSACTION, apsw.SQLITE_SAVEPOINT, apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH)
_READING = ("table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "foreign_key_list")
# Actions that change a table, with the index of the authorizer argument that names it.
_WRITES = {
    apsw.SQLITE_INSERT: 0,
    apsw.SQLITE_UPDATE: 0,
    apsw.SQLITE_DELETE: 0,
    apsw.SQLITE_CREATE_TABLE: 0,
    apsw.SQLITE_CREATE_TEMP_TABLE: 0,
    apsw.SQLITE_CREATE_VIEW: 0,
    apsw.SQLITE_CREATE_TEMP_VIEW: 0,
    apsw.SQLITE_CREATE_VTABLE: 0,
    apsw.SQLITE_DROP_TABLE: 0,
    apsw.SQLITE_ALTER_TABLE: 1,
    apsw.SQLITE_CREATE_INDEX: 1,
    apsw.SQLITE_CREATE_TEMP_INDEX: 1,
    apsw.SQLITE_DROP_INDEX: 1,
    apsw.SQLITE_CREATE_TRIGGER: 1,
    apsw.SQLITE_CREATE_TEMP_TRIGGER: 1,
    apsw.SQLITE_DROP_TRIGGER: 1,
    apsw.SQLITE_DROP_TEMP_TRIGGER: 1,
    apsw.SQLITE_DROP_TEMP_VIEW: 0,
}


def _only_their_own(
    action: int,
    first: str | None,
    second: str | None,
    *_: str | None,
) -> int:
    """Let a caller read everything and write its own tables, but not touch the transaction or Limpet's tables."""
    if action == apsw.SQLITE_PRAGMA:
        return apsw.SQLITE_OK if (first or "").lower() in _READING else apsw.SQLITE_DENY
    named = ((first, second)[_WRITES.get(action, 0)] or "").lower()
    forbidden = action in _ENDS or (action in _WRITES and named.startswith("limpet_"))
    return apsw.SQLITE_DENY if forbidden else apsw.SQLITE_OK


def _parts(extensions: Sequence[Extension]) -> Iterator[list[Extension]]:
    """Divide extensions among statements."""
    part: list[Extension] = []
    events = 0
    for each in extensions:
        events += len(each.events)
        if events > TOGETHER[-1]:
            yield part
            part, events = [], len(each.events)
        part.append(each)
    yield part


def _rows_together(number: int, wanted: Extension) -> Iterator[tuple[Any, ...]]:
    """Return the bindings of the events of an extension, for a statement that appends to many streams."""
    previous = wanted.after.hash
    for event, step in zip(wanted.events, wanted.steps, strict=True):
        yield (number, *astuple(event)[1:], step, previous, wanted.fence, wanted.step, wanted.settled)
        previous = event.hash


def _event_rows(number: int, wanted: Extension) -> list[tuple[Any, ...]]:
    """Return the bindings of the events of an extension, none of which is a command."""
    return [(number, *astuple(event)[1:], None, step) for event, step in zip(wanted.events, wanted.steps, strict=True)]


def _advance(number: int, wanted: Extension) -> tuple[Any, ...]:
    """Return the bindings of the compare-and-set."""
    after, head = wanted.after, wanted.events[-1]
    return (
        number,
        after.seq,
        after.hash,
        wanted.fence,
        head.seq,
        head.hash,
        head.time,
        wanted.step,
        wanted.settled,
    )
