"""A SQLite file as a backend: one connection that writes, a few that read, and one that listens."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event as Flag
from threading import RLock
from typing import Any

import apsw

from limpet.clock import Clock, Duration, SystemClock, microseconds
from limpet.errors import InvalidValue, StoreBusy, StoreUnavailable
from limpet.events import Codec, Event
from limpet.stores.backend import About, Capabilities, Outcome, Tables
from limpet.stores.columns import as_text
from limpet.stores.ops import Op, Transact
from limpet.stores.reads import LAST, SqlReads
from limpet.stores.rows import Feed, Recent
from limpet.stores.spares import Spares
from limpet.stores.sql import load
from limpet.stores.sqlite.locks import HAVE_FLOCK, Gate, WorkerLocks
from limpet.stores.sqlite.migrate import migrate, newest, schema_version
from limpet.stores.sqlite.tables import SqliteTables
from limpet.stores.transact import commit

__all__ = ["SqliteBackend", "is_store"]

# Older ones can lose committed pages when a write-ahead log is reset under several connections.
OLDEST_SQLITE = (3, 51, 3)
LOOK_EVERY = 0.012
# How long a lock of somebody else is waited for.
PATIENCE = "60s"


class SqliteBackend(SqlReads):
    """One database file, which other processes may share."""

    capabilities = Capabilities(processes=True, durable=True, sees_death=HAVE_FLOCK, transactions="between")

    def __init__(self, path: str | Path, clock: Clock | None = None, *, patience: Duration | None = None) -> None:
        self._path = Path(path).absolute()
        self._patience = microseconds(PATIENCE if patience is None else patience)
        self._clock = clock or SystemClock()
        self._locks = WorkerLocks(self._path)
        self._sql = load(__package__, "queries.sql")
        self._lock = RLock()
        self._opened: _Opened | None = None

    def is_there(self) -> bool:
        """Whether there is a store in the file, which stays as it is."""
        return is_store(self._path, self._patience / 10**6)

    def open(self) -> None:
        """Connect, and make or migrate the schema."""
        _check_version(apsw.sqlite_lib_version())
        with _translated(self._path):
            self._opened = _Opened(self._path, self._sql, self._clock, self._locks, self._patience)

    def interrupt(self) -> None:
        """Nothing is waited for that does not come by itself."""

    def close(self) -> None:
        """Give up every connection and lock."""
        self._disconnect()
        self._locks.close()

    def reopen(self) -> None:
        """Connect again, and verify pages, indexes, and that every row agrees with its log; readers wait meanwhile."""
        with self._lock:
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

    def about(self) -> About:
        """The library, and the schema of the file."""
        [(schema,)] = self._all("schema_version")
        return About(f"SQLite {apsw.sqlite_lib_version()}", int(schema), self._path)

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
        with _translated(self._path), closing(self._alive().connect(reading=True)) as db:
            seen: Sequence[object] = ()
            while not stop.is_set():
                found = db.execute(self._sql["data_version"]).fetchall()
                if found != seen:
                    seen = found
                    yield
                stop.wait(LOOK_EVERY)

    # Reading

    def feed(self, after: str, limit: int) -> Feed:
        """Events of all streams, in the order in which they were committed."""
        begin = int(after or 0)
        if not 0 <= begin <= self._all("last_position")[0][0]:
            raise ValueError("ahead of the store: an older copy of the file was put in its place")
        found = self._all("feed", begin, limit)
        return Feed(tuple(Event(*each[:-1]) for each in found), str(found[-1][-1]) if found else after or "0")

    def recent(self, before: str, kinds: Sequence[str], scan: int) -> Recent:
        """Events of some kinds among so many before a place, the newest first."""
        upto = int(before) if before else LAST
        first = self._all("recent_from", upto, scan - 1)
        lowest, time = first[0] if first else (0, 0)
        found = self._all("recent", upto, lowest, as_text(list(kinds)))
        return Recent(tuple(Event(*each) for each in found), str(lowest) if first else None, time)

    def feed_end(self) -> str:
        """The place after everything."""
        return str(self._all("feed_end")[0][0])

    def _ask(self, statement: str, values: Any) -> list[Any]:
        try:
            with self._reader() as db:
                return db.execute(statement, values).fetchall()
        except OverflowError as error:
            raise InvalidValue(path="$", reason="a number that no column holds") from error

    def _bound(self, name: str, value: Any) -> Any:
        return as_text(value) if name in ("statuses", "blobs") else value

    @contextmanager
    def _reader(self) -> Iterator[apsw.Connection]:
        with self._lock:
            readers = self._alive().readers
        with _translated(self._path), readers.one() as db:
            yield db

    def _disconnect(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _alive(self) -> "_Opened":
        if self._opened is None:
            raise StoreUnavailable(reason="it is not open")
        return self._opened


def is_store(path: Path, patience: Duration = PATIENCE) -> bool:
    """Whether there is a store in a file, which stays as it is."""
    if not path.is_file():
        return False
    with _translated(path), _looking(path, microseconds(patience)) as db:
        return schema_version(db, load(__package__, "queries.sql")) > 0


def _is_ready(path: Path, sql: Mapping[str, str], patience: int) -> bool:
    """Whether nothing has to be written before a file can be used."""
    if not path.is_file():
        return False
    with _looking(path, patience) as db:
        is_wal = db.execute(sql["journal_mode"]).fetchall() == [("wal",)]
        return is_wal and schema_version(db, sql) == newest()


@contextmanager
def _looking(path: Path, patience: int) -> Iterator[apsw.Connection]:
    """A connection that leaves a file as it is, but for what somebody who died in it left half done.

    That is undone, which a connection that only reads cannot.
    """
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as db:
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        db.set_busy_timeout(patience // 1000)
        yield db


class _Opened:
    """What is held while the file is open."""

    def __init__(self, path: Path, sql: Mapping[str, str], clock: Clock, locks: WorkerLocks, patience: int) -> None:
        self._path, self._sql, self._patience = path, sql, patience
        if not path.parent.is_dir():
            raise StoreUnavailable(reason=f"there is no folder {path.parent}")
        self.gate = Gate(path.with_name(f"{path.name}-gate"), patience)
        self.readers = Spares(lambda: self.connect(reading=True))
        try:
            self.writing = self.connect(reading=False) if _is_ready(path, sql, patience) else self._made()
        except BaseException:
            self.gate.close()
            raise
        tables = SqliteTables(self.writing, sql, clock, locks)
        self.transaction = _Transaction(path, self.writing, self.gate, tables, sql)

    def _made(self) -> apsw.Connection:
        """The connection that writes, to a file that was made or migrated, one process at a time."""
        self.gate.enter()
        try:
            db = self.connect(reading=False)
            migrate(db, self._sql)
            return db
        finally:
            self.gate.leave()

    def connect(self, *, reading: bool) -> apsw.Connection:
        """A new connection."""
        db = apsw.Connection(str(self._path), statementcachesize=200)
        db.set_busy_timeout(self._patience // 1000)
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

    def __init__(
        self, path: Path, db: apsw.Connection, gate: Gate, tables: SqliteTables, sql: Mapping[str, str]
    ) -> None:
        self._path, self._db, self._gate, self._tables = path, db, gate, tables
        self._execute = db.cursor().execute
        self._begin, self._commit, self._rollback = sql["begin"], sql["commit"], sql["rollback"]

    def __enter__(self) -> Tables:
        self._gate.enter()
        try:
            self._execute(self._begin)
        except BaseException as error:
            self._gate.leave()
            raise _ours(error, self._path) from error
        return self._tables

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self._execute(self._commit)
                self._tables.committed()
        except apsw.Error as failed:
            error = failed
        finally:
            self._tables.undone()
            try:
                if self._db.in_transaction:
                    self._execute(self._rollback)
            finally:
                self._gate.leave()
        if error is not None:
            raise _ours(error, self._path) from error


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except (apsw.Error, OSError) as error:
        raise _ours(error, path) from error


def _ours(error: BaseException, path: Path) -> BaseException:
    """SQLite's errors as ours: busy means that nothing was written, anything else that nobody knows."""
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StoreBusy(reason=str(error))
    if isinstance(error, apsw.Error | OSError):
        return StoreUnavailable(reason=f"{path}: {type(error).__name__}: {error}")
    return error


def _check_version(found: str) -> None:
    if tuple(int(part) for part in found.split(".")[:3]) < OLDEST_SQLITE:
        oldest = ".".join(str(part) for part in OLDEST_SQLITE)
        raise StoreUnavailable(reason=f"SQLite {found} can lose committed data; {oldest} or newer is needed (apsw)")
