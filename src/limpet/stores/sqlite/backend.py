"""A SQLite file as a backend: one connection that writes, a few that read, and one that listens.

A disk that fails is waited for: the file is opened again, and what was under way is done again unless it is there.
After a full disk that is all. After an I/O error or a failed fsync nobody knows what of the log is on the disk: all of
it is moved into the database file, and synced there, before anything is acknowledged.

A file that was deleted or replaced under us is not waited for: what we write there is in no file that anybody can find.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Event as Flag
from threading import RLock
from time import monotonic
from typing import Any, TypeVar

import apsw

from limpet.clock import SECOND, Clock, Duration, SystemClock, microseconds
from limpet.errors import (
    ConnectionLost,
    InvalidValue,
    LimpetError,
    NotFound,
    StoreBusy,
    StoreReplaced,
    StoreUnavailable,
)
from limpet.events import Codec, Event
from limpet.stores.backend import Capabilities, Outcome, StoreInfo, Tables
from limpet.stores.columns import as_text
from limpet.stores.commit import Begin, commit, transact
from limpet.stores.connection_pool import ConnectionPool
from limpet.stores.rows import Feed, Recent
from limpet.stores.sql_files import load
from limpet.stores.sql_reads import LAST, SqlReads
from limpet.stores.sqlite.faults import Failed, Fault, error_text, failing, meaning
from limpet.stores.sqlite.files import Files
from limpet.stores.sqlite.locks import HAVE_FLOCK, Gate, WorkerLocks
from limpet.stores.sqlite.migrate import migrate, newest, schema_version
from limpet.stores.sqlite.tables import SqliteTables
from limpet.stores.writes import Op, Transact

__all__ = ["HEALING", "SqliteBackend", "is_store"]

# Older ones can lose committed pages when a write-ahead log is reset under several connections.
OLDEST_SQLITE = (3, 51, 3)
LOOK_EVERY = 0.012
# How long a lock of somebody else is waited for.
PATIENCE = "60s"
# After how long a process that only works gives a failing disk up.
HEALING = "60s"
# How long, in seconds, one batch waits for a disk that fails, and the pauses between two attempts.
WAITING, PAUSE, LONGEST_PAUSE = 20.0, 0.02, 2.0
# A larger file, in bytes, is not read as a whole after an error.
LARGE = 10**9

T = TypeVar("T")
Note = Callable[[Any], object]


class SqliteBackend(SqlReads):
    """One database file, which other processes may share."""

    capabilities = Capabilities(processes=True, durable=True, sees_death=HAVE_FLOCK, transactions="between")

    def __init__(
        self,
        path: str | Path,
        clock: Clock | None = None,
        *,
        patience: Duration | None = None,
        healing: Duration = HEALING,
    ) -> None:
        self._path = Path(path).absolute()
        self._patience = microseconds(PATIENCE if patience is None else patience)
        self._healing = microseconds(healing) / SECOND
        self._clock = clock or SystemClock()
        self._locks = WorkerLocks(self._path)
        self._sql = load(__package__, "queries.sql")
        self._lock = RLock()
        self._interrupted = Flag()
        self._files = Files(self._path)
        self._opened: _Opened | None = None
        self._fault: Fault | None = None

    def is_there(self) -> bool:
        """Whether there is a store in the file, which stays as it is."""
        return is_store(self._path, self._patience / 10**6)

    def open(self) -> None:
        """Connect, and make or migrate the schema."""
        _check_version(apsw.sqlite_lib_version())
        self._interrupted.clear()
        self._files, self._fault = Files(self._path), None
        with error_text(self._path, passing=False):
            self._opened = self._connected()

    def interrupt(self) -> None:
        """Wait for no disk any more."""
        self._interrupted.set()

    def close(self) -> None:
        """Give up every connection and lock."""
        self._disconnect()
        self._locks.close()

    def reopen(self) -> None:
        """Connect again, and verify pages, indexes, and that every row agrees with its log; readers wait meanwhile."""
        fault = self._fault = self._fault or Fault("it is being reopened", is_open=True)
        if fault.is_open:  # it is asked for, and nobody knows why
            fault.is_open = fault.is_full = False
        try:
            self._heal()
        except Failed as failed:
            raise StoreUnavailable(reason=failed.reason) from failed

    @property
    def failure(self) -> StoreUnavailable | None:
        """Why nothing was written for so long, though it was tried again and again."""
        fault = self._fault
        is_over = fault is not None and monotonic() - fault.since > self._healing
        return StoreUnavailable(reason=fault.reason) if fault is not None and is_over else None

    def now(self) -> int:
        """The store's clock, which is this machine's."""
        return self._clock.now()

    def about(self) -> StoreInfo:
        """The library, and the schema of the file."""
        [(schema,)] = self._all("schema_version")
        return StoreInfo(f"SQLite {apsw.sqlite_lib_version()}", int(schema), self._path)

    def commit(self, ops: Sequence[Op[Any]], codec: Codec) -> list[Outcome]:
        """Do all of them in one durable transaction; callers' own writes come after it, each in one of its own."""
        ours = [op for op in ops if not isinstance(op, Transact)]
        done = iter(self._durably(lambda begin, note: commit(begin, ours, codec, note)) if ours else ())
        return [self._theirs(op, codec) if isinstance(op, Transact) else next(done) for op in ops]

    def transact(self, op: Transact, codec: Codec) -> Outcome:
        """A caller's own writes: in a transaction of its own, like any other."""
        return self._durably(lambda begin, note: transact(begin, op, codec, note))

    def _theirs(self, op: Transact, codec: Codec) -> Outcome:
        try:
            return self.transact(op, codec)
        except LimpetError as refused:  # others of its batch have been written
            return refused

    # A disk that fails

    def _durably(self, work: Callable[[Begin, Note], T]) -> T:
        """Do it until it is known to be done or not, while patience for a failing disk lasts."""
        sent: list[tuple[T, Event | None]] = []
        deadline, pause = monotonic() + min(self._patience / SECOND, WAITING), PAUSE
        while True:
            try:
                self._heal()
                done = sent[-1][0] if sent and self._has(sent[-1][1]) else self._do(work, sent)
            except Failed as failed:
                self._fault = (self._fault or Fault(failed.reason)).again(failed)
                if self.failure is not None or self._interrupted.wait(pause) or monotonic() > deadline:
                    raise ConnectionLost(reason=failed.reason) from failed
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                if self._alive().transaction.wrote:  # without that, a full disk does not mind
                    self._fault = None
                return done

    def _do(self, work: Callable[[Begin, Note], T], sent: list[tuple[T, Event | None]]) -> T:
        """Do it in the transaction of this connection, and note what is about to be committed."""
        sent.clear()
        opened = self._alive()
        return work(lambda: opened.transaction, lambda done: sent.append((done, opened.tables.last if done else None)))

    def _has(self, event: Event | None) -> bool:
        """Whether a commit that failed took place after all; one that added no event may be done again."""
        if event is None:
            return False
        try:
            found = self.read(event.run, event.seq - 1, None, 1, backwards=False)
        except NotFound:
            return False
        except ConnectionLost as lost:
            raise Failed(lost.reason) from lost
        return [each.hash for each in found] == [event.hash]

    def _heal(self) -> None:
        """Open the file again if it failed, and require of the disk what it must have done before we go on."""
        fault = self._fault
        if fault is None or fault.is_open:
            return
        try:
            with self._lock, failing(self._path):
                self._files.check()
                self._disconnect()
                self._files.closed()
                self._opened = self._required(fault)
        except StoreBusy as busy:  # what was under way before may have been written all the same
            raise Failed(busy.reason) from busy
        fault.is_open = fault.is_full = True

    def _required(self, fault: Fault) -> "_Opened":
        """The file, opened again, with everything in it on the disk and verified if nobody knows whether it was."""
        opened = self._connected()
        try:
            if not fault.is_full:
                opened.checkpoint()
                began = monotonic()
                opened.verify()
                fault.since += monotonic() - began  # it takes as long as the file is large
        except BaseException:
            opened.close()
            raise
        return opened

    def _connected(self) -> "_Opened":
        return _Opened(self._path, self._sql, self._clock, self._locks, self._patience, self._files)

    def changes(self, stop: Flag) -> Iterator[None]:
        """Look every few milliseconds whether another connection has committed."""
        with error_text(self._path), closing(self._alive().reader()) as db:
            seen: Sequence[object] = ()
            while not stop.is_set():
                self._files.check_sometimes()
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
        with error_text(self._path), ExitStack() as taken:
            with self._lock:  # not while it is opened again
                self._files.check_sometimes()
                db = taken.enter_context(self._alive().readers.connection())
            yield db

    def _disconnect(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _alive(self) -> "_Opened":
        if self._opened is None:
            if self._fault is not None:
                raise ConnectionLost(reason=self._fault.reason)
            raise StoreUnavailable(reason="it is not open")
        return self._opened


def is_store(path: Path, patience: Duration = PATIENCE) -> bool:
    """Whether there is a store in a file, which stays as it is."""
    if not path.is_file():
        return False
    with error_text(path, passing=False), _looking(path, microseconds(patience)) as db:
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

    def __init__(
        self, path: Path, sql: Mapping[str, str], clock: Clock, locks: WorkerLocks, patience: int, files: Files
    ) -> None:
        self._path, self._sql, self._patience, self._files = path, sql, patience, files
        if not path.parent.is_dir():
            raise StoreUnavailable(reason=f"there is no folder {path.parent}")
        self.gate = Gate(path.with_name(f"{path.name}-gate"), patience)
        self.readers = ConnectionPool(self.reader)
        try:
            self.writing = self._made() if not _is_ready(path, sql, patience) else self._connect()
            files.opened(Path(self.writing.filename_wal))
        except BaseException:
            self.gate.close()
            raise
        self.tables = SqliteTables(self.writing, sql, clock, locks)
        self.transaction = _Transaction(path, self.writing, self.gate, self.tables, sql, files)

    def _made(self) -> apsw.Connection:
        """The connection that writes, to a file that was made or migrated, one process at a time."""
        self.gate.enter()
        try:
            db = self._connect()
            migrate(db, self._sql)
            return db
        finally:
            self.gate.leave()

    def reader(self) -> apsw.Connection:
        """A new connection that reads the file that is open: another one in its place would get our log."""
        self._files.check()
        db = self._connect()
        db.execute(self._sql["read_only"])
        return db

    def checkpoint(self) -> None:
        """Have everything that was committed in the database file, and synced."""
        self.gate.enter()
        try:
            [(busy, _, _)] = self.writing.execute(self._sql["checkpoint"]).fetchall()
        finally:
            self.gate.leave()
        if busy:
            raise Failed(f"{self._path}: others read, so that the write-ahead log cannot be emptied")

    def verify(self) -> None:
        """Check pages, indexes, and that every row agrees with its log."""
        if os.stat(self._path).st_size < LARGE:
            [(found,)] = self.writing.execute(self._sql["quick_check"]).fetchall()
            if found != "ok":
                raise StoreUnavailable(reason=f"the file is damaged: {found}")
        for run, seq in self.writing.execute(self._sql["bad_head"]).fetchall():
            raise StoreUnavailable(reason=f"the row of {run} does not agree with its log at event {seq}")

    def _connect(self) -> apsw.Connection:
        db = apsw.Connection(str(self._path), statementcachesize=200)
        db.set_busy_timeout(self._patience // 1000)
        db.execute(self._sql["connect"]).fetchall()
        return db

    def close(self) -> None:
        """Give up everything."""
        self.readers.close()
        self.writing.close()
        self.gate.close()


class _Transaction:
    """The writer's transaction, behind the gate."""

    def __init__(
        self,
        path: Path,
        db: apsw.Connection,
        gate: Gate,
        tables: SqliteTables,
        sql: Mapping[str, str],
        files: Files,
    ) -> None:
        self._path, self._db, self._gate, self._tables, self._files = path, db, gate, tables, files
        self._execute = db.cursor().execute
        self._begin, self._commit, self._rollback = sql["begin"], sql["commit"], sql["rollback"]
        self._changes = 0

    @property
    def wrote(self) -> bool:
        """Whether anything was written since the last one began."""
        return self._db.total_changes() > self._changes

    def __enter__(self) -> Tables:
        self._gate.enter()
        try:
            self._execute(self._begin)
        except BaseException as error:
            self._gate.leave()
            raise meaning(error, self._path) from error
        self._tables.last, self._changes = None, self._db.total_changes()
        return self._tables

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self._execute(self._commit)
                self._tables.committed()
                self._files.check()
        except (apsw.Error, OSError, StoreReplaced) as failed:
            error = failed
        finally:
            self._tables.undone()
            try:
                if self._db.in_transaction:
                    self._execute(self._rollback)
            except apsw.Error as failed:
                error = failed
            finally:
                self._gate.leave()
        if error is not None:
            raise meaning(error, self._path) from error


def _check_version(found: str) -> None:
    if tuple(int(part) for part in found.split(".")[:3]) < OLDEST_SQLITE:
        oldest = ".".join(str(part) for part in OLDEST_SQLITE)
        raise StoreUnavailable(reason=f"SQLite {found} can lose committed data; {oldest} or newer is needed (apsw)")
