"""A SQLite file as a backend: one connection that writes, a few that read, and one that listens."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event as Flag
from typing import Any

import apsw

from limpet.clock import Clock, SystemClock
from limpet.errors import NotFound, StoreBusy, StoreUnavailable
from limpet.events import Codec, Event, Packed
from limpet.stores.backend import Capabilities, Outcome, Tables
from limpet.stores.blobs import BlobRow
from limpet.stores.columns import as_text, late_of, request_of, row_of, worker_of
from limpet.stores.ops import Op, Transact
from limpet.stores.rows import (
    Feed,
    KeyRow,
    Late,
    Page,
    RequestFilter,
    RequestRow,
    RunFilter,
    RunRow,
    Snapshot,
    WorkerRow,
)
from limpet.stores.spares import Spares
from limpet.stores.sql import load
from limpet.stores.sqlite.locks import HAVE_FLOCK, Gate, WorkerLocks
from limpet.stores.sqlite.migrate import migrate
from limpet.stores.sqlite.tables import SqliteTables
from limpet.stores.transact import commit

__all__ = ["SqliteBackend"]

# Older ones can lose committed pages when a write-ahead log is reset under several connections.
OLDEST_SQLITE = (3, 51, 3)
LOOK_EVERY = 0.012
_LAST = 2**63 - 1


class SqliteBackend:
    """One database file, which other processes may share."""

    capabilities = Capabilities(processes=True, durable=True, sees_death=HAVE_FLOCK, transactions="between")

    def __init__(self, path: str | Path, clock: Clock | None = None) -> None:
        self._path = Path(path).absolute()
        self._clock = clock or SystemClock()
        self._locks = WorkerLocks(self._path)
        self._sql = load(__package__, "queries.sql")
        self._opened: _Opened | None = None

    def open(self) -> None:
        """Connect, and make or migrate the schema."""
        _check_version(apsw.sqlite_lib_version())
        with _translated():
            self._opened = _Opened(self._path, self._sql, self._clock, self._locks)

    def close(self) -> None:
        """Give up every connection and lock."""
        self._disconnect()
        self._locks.close()

    def reopen(self) -> None:
        """Connect again, and verify pages, indexes, and that every row agrees with its log."""
        self._disconnect()
        self.open()
        with self._reader() as db:
            [(found,)] = db.execute(self._sql["quick_check"]).fetchall()
            if found != "ok":
                raise StoreUnavailable(reason=f"the file is damaged: {found}")
            for run, seq in db.execute(self._sql["bad_head"]).fetchall():
                raise StoreUnavailable(reason=f"the row of {run} does not agree with its log at event {seq}")

    def now(self) -> int:
        """The store's clock, which is this machine's."""
        return self._clock.now()

    def commit(self, ops: Sequence[Op[Any]], codec: Codec) -> list[Outcome]:
        """Do all of them in one durable transaction; the gate makes processes take turns."""
        opened = self._alive()
        return commit(lambda: opened.transaction, ops, codec)

    def transact(self, op: Transact, codec: Codec) -> Outcome:
        """A caller's own writes: in a transaction of its own, like any other."""
        [outcome] = self.commit([op], codec)
        return outcome

    def changes(self, stop: Flag) -> Iterator[None]:
        """Look every few milliseconds whether another connection has committed."""
        with _translated(), closing(self._alive().connect(reading=True)) as db:
            seen: Sequence[object] = ()
            while not stop.is_set():
                found = db.execute(self._sql["data_version"]).fetchall()
                if found != seen:
                    seen = found
                    yield
                stop.wait(LOOK_EVERY)

    # Reading

    def get(self, run: str) -> RunRow | None:
        """A stream's row."""
        found = self._all("row", (run,))
        return row_of(found[0]) if found else None

    def read(self, run: str, after: int, before: int | None, limit: int, backwards: bool) -> list[Event]:
        """Events with sequences strictly between `after` and `before`."""
        name = "read_backwards" if backwards else "read"
        found = self._all(name, (self._number(run), after, _LAST if before is None else before, limit))
        return [Event(run, *each) for each in found]

    def runs(self, where: RunFilter, before: int | None, limit: int) -> Page:
        """Rows that match, newest first, below a number."""
        parts, bindings = self._where("runs", where)
        if before is not None:
            parts.append(self._sql["runs.before"])
            bindings["before"] = before
        bindings["limit"] = limit + 1
        rows = [row_of(found) for found in self._query([*parts, self._sql["runs.order"]], bindings)]
        return Page(tuple(rows[:limit]), rows[limit - 1].number if len(rows) > limit else None)

    def count(self, where: RunFilter) -> int:
        """How many rows match."""
        found: int = self._query(*self._where("count", where))[0][0]
        return found

    def counts(self) -> Mapping[tuple[str, str], int]:
        """How many runs there are by (agent, status)."""
        return {(agent, status): n for agent, status, n in self._all("counts", ())}

    def requests(self, where: RequestFilter, limit: int) -> list[RequestRow]:
        """Requests that match, the oldest first."""
        given = {name: value for name in ("status", "run", "to", "risk") if (value := getattr(where, name)) is not None}
        parts = [self._sql["requests"], *(self._sql[f"requests.{name}"] for name in given), self._sql["requests.order"]]
        return [request_of(found) for found in self._query(parts, {**given, "limit": limit})]

    def workers(self) -> list[WorkerRow]:
        """All workers."""
        return [worker_of(found) for found in self._all("workers", ())]

    def snapshot(self, run: str, at_most: int | None) -> Snapshot | None:
        """The newest snapshot, or the newest not after a sequence."""
        found = self._all("snapshot", (self._number(run), _LAST if at_most is None else at_most))
        return Snapshot(*found[0]) if found else None

    def snapshots(self, run: str) -> list[tuple[int, int]]:
        """The (sequence, time) of every snapshot of a run."""
        return [(seq, time) for seq, time in self._all("snapshots", (self._number(run),))]

    def late(self, run: str) -> list[Late]:
        """What came too late for a run."""
        return [late_of(run, found) for found in self._all("late", (self._number(run),))]

    def feed(self, after: str, limit: int) -> Feed:
        """Events of all streams, in the order in which they were committed."""
        found = self._all("feed", (int(after or 0), limit))
        return Feed(tuple(Event(*each[:-1]) for each in found), str(found[-1][-1]) if found else after or "0")

    def feed_end(self) -> str:
        """The place after everything."""
        return str(self._all("feed_end", ())[0][0])

    def references(self, run: str) -> list[str]:
        """The blobs that a stream refers to."""
        return [blob for (blob,) in self._all("references", (self._number(run),))]

    def blob(self, blob: str) -> BlobRow | None:
        """A stored blob."""
        found = self._all("blob", (blob,))
        return BlobRow(*found[0]) if found else None

    def chunk(self, blob: str, place: int) -> Packed | None:
        """One chunk of a stored blob."""
        found = self._all("chunk", (blob, place))
        return Packed(*found[0]) if found else None

    def keys(self) -> list[KeyRow]:
        """The wrapped keys, oldest first."""
        return [KeyRow(*found) for found in self._all("keys", ())]

    def _where(self, start: str, where: RunFilter) -> tuple[list[str], dict[str, Any]]:
        given = {
            "agent": where.agent,
            "session": where.session,
            "user": where.user,
            "parent": where.parent,
            "created_from": where.created_from,
            "created_before": where.created_before,
            "status": where.status[0] if len(where.status) == 1 else None,
            "statuses": as_text(where.status) if len(where.status) > 1 else None,
            "text": None if where.text is None else f"%{_escape(where.text)}%",
        }
        bindings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        parts = [self._sql[start], *(self._sql[f"runs.{name}"] for name in bindings)]
        for place, (name, value) in enumerate(where.labels.items()):
            parts.append(self._sql["runs.label"] % (place, place))
            bindings |= {f"label_name_{place}": name, f"label_value_{place}": value}
        return parts, {**bindings, "type": where.type}

    def _number(self, run: str) -> int:
        found = self._all("number", (run,))
        if not found:
            raise NotFound(what="run", id=run)
        number: int = found[0][0]
        return number

    def _all(self, name: str, bindings: tuple[Any, ...]) -> list[Any]:
        with self._reader() as db:
            return db.execute(self._sql[name], bindings).fetchall()

    def _query(self, parts: list[str], bindings: dict[str, Any]) -> list[Any]:
        with self._reader() as db:
            return db.execute("\n".join(parts), bindings).fetchall()

    @contextmanager
    def _reader(self) -> Iterator[apsw.Connection]:
        with _translated(), self._alive().readers.one() as db:
            yield db

    def _disconnect(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _alive(self) -> "_Opened":
        if self._opened is None:
            raise StoreUnavailable(reason="it is not open")
        return self._opened


class _Opened:
    """What is held while the file is open."""

    def __init__(self, path: Path, sql: Mapping[str, str], clock: Clock, locks: WorkerLocks) -> None:
        self._path, self._sql = path, sql
        if not path.parent.is_dir():
            raise StoreUnavailable(reason=f"there is no folder {path.parent}")
        self.gate = Gate(path.with_name(f"{path.name}-gate"))
        self.readers = Spares(lambda: self.connect(reading=True))
        self.gate.enter()
        try:
            self.writing = self.connect(reading=False)
            migrate(self.writing, sql)
        except BaseException:
            self.gate.close()
            raise
        finally:
            self.gate.leave()
        tables = SqliteTables(self.writing, sql, clock, locks)
        self.transaction = _Transaction(self.writing, self.gate, tables, sql)

    def connect(self, *, reading: bool) -> apsw.Connection:
        """A new connection."""
        db = apsw.Connection(str(self._path), statementcachesize=200)
        db.execute(self._sql["connect"]).fetchall()
        if reading:
            db.execute(self._sql["read_only"])
        return db

    def close(self) -> None:
        """Give up everything."""
        self.readers.close()
        self.writing.close()
        self.gate.close()


class _Transaction:
    """The writer's transaction, behind the gate."""

    def __init__(self, db: apsw.Connection, gate: Gate, tables: Tables, sql: Mapping[str, str]) -> None:
        self._db, self._gate, self._tables = db, gate, tables
        self._execute = db.cursor().execute
        self._begin, self._commit, self._rollback = sql["begin"], sql["commit"], sql["rollback"]

    def __enter__(self) -> Tables:
        self._gate.enter()
        try:
            self._execute(self._begin)
        except BaseException as error:
            self._gate.leave()
            raise _ours(error) from error
        return self._tables

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self._execute(self._commit)
        except apsw.Error as failed:
            error = failed
        finally:
            try:
                if self._db.in_transaction:
                    self._execute(self._rollback)
            finally:
                self._gate.leave()
        if error is not None:
            raise _ours(error) from error


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (apsw.Error, OSError) as error:
        raise _ours(error) from error


def _ours(error: BaseException) -> BaseException:
    """SQLite's errors as ours: busy means that nothing was written, anything else that nobody knows."""
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StoreBusy(reason=str(error))
    if isinstance(error, apsw.Error | OSError):
        return StoreUnavailable(reason=f"{type(error).__name__}: {error}")
    return error


def _check_version(found: str) -> None:
    if tuple(int(part) for part in found.split(".")[:3]) < OLDEST_SQLITE:
        oldest = ".".join(str(part) for part in OLDEST_SQLITE)
        raise StoreUnavailable(reason=f"SQLite {found} can lose committed data; {oldest} or newer is needed (apsw)")


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
