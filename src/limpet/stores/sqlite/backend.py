"""A SQLite file as a backend: one connection that writes, a few that read, and one that listens.

After a disk error the store retries: it reopens the file, and repeats the interrupted work unless that was committed.
After a full disk nothing else is needed. After an I/O error or a failed fsync it is unknown how much of the write-ahead
log is on the disk, so all of it is checkpointed into the database file and synced before anything is acknowledged.

If the open file was deleted or replaced, the store does not retry: its writes would go to a file without a name.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from copy import copy
from pathlib import Path
from threading import Event as Flag
from threading import Lock, RLock
from time import monotonic, sleep  # noqa: TID251 - the pause of a thread that polls a file
from typing import Any, TypeVar

import apsw

from limpet.clock import SECOND, Clock, Duration, SystemClock, microseconds
from limpet.errors import (
    ConnectionLost,
    InvalidValue,
    LimpetError,
    NotFound,
    ReadOnlyStore,
    StoreBusy,
    StoreReplaced,
    StoreUnavailable,
    not_open,
)
from limpet.events import Codec, Event
from limpet.stores.backend import Capabilities, Outcome, StoreInfo, Tables
from limpet.stores.columns import as_text
from limpet.stores.commit import Begin, commit, transact
from limpet.stores.connection_pool import ConnectionPool
from limpet.stores.fork_reads import LAST
from limpet.stores.rows import Feed, Recent
from limpet.stores.sql_files import check_schema, load
from limpet.stores.sql_reads import SqlReads
from limpet.stores.sqlite.faults import Failed, Fault, error_text, failing, meaning
from limpet.stores.sqlite.file_identity import Files
from limpet.stores.sqlite.locks import HAVE_FLOCK, WorkerLocks, WriterQueue
from limpet.stores.sqlite.migrate import migrate, newest, schema_version
from limpet.stores.sqlite.read_only import ReadOnlyFile, why_read_only
from limpet.stores.sqlite.tables import SqliteTables
from limpet.stores.writes import Extension, Op, Transact

__all__ = ["HEALING", "SqliteBackend", "is_store"]

# Older versions can lose committed pages when a write-ahead log is reset with several connections.
OLDEST_SQLITE = (3, 51, 3)
# Seconds between two looks for changes of other processes; and after a second without any.
POLL_EVERY, POLL_QUIETLY = 0.012, 0.025
QUIET_AFTER = 80
# Length of the write-ahead log, in pages, from which it is moved into the database file.
CHECKPOINT_PAGES = 1_000
# How long to wait for another process's lock.
PATIENCE = "60s"
# How long a disk may fail before a worker process exits.
HEALING = "60s"
# Seconds that one batch waits for a failing disk, and the pauses between two attempts.
WAITING, PAUSE, LONGEST_PAUSE = 20.0, 0.02, 2.0
# A file larger than this, in bytes, is not checked as a whole after an error.
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
        self._sql = load(__package__, "statements.sql")
        self._lock = RLock()
        self._interrupted = Flag()
        self._polling = Lock()
        """Held while a thread polls for changes."""
        self._files = Files(self._path)
        self._opened: _Opened | None = None
        self._file: ReadOnlyFile | None = None
        self._fault: Fault | None = None
        self.read_only: ReadOnlyStore | None = None

    def exists(self) -> bool:
        """Return whether the file contains a store. Does not change it."""
        return is_store(self._path, self._patience / 10**6)

    def open(self) -> None:
        """Connect, and create or migrate the schema."""
        _check_version(apsw.sqlite_lib_version())
        self._interrupted.clear()
        self._files, self._fault = Files(self._path), None
        with error_text(self._path, passing=False):
            self.read_only = why_read_only(self._path)
            if self.read_only is None:
                self._opened = self._connected()
            else:
                self._file = self._look(self.read_only)

    def _look(self, why: ReadOnlyStore) -> ReadOnlyFile:
        """Open a file that cannot be written here. A file of an older version cannot be upgraded."""
        file = _read_only(self._path, self._sql, self._patience)
        try:
            check_schema(file.ask(lambda db: schema_version(db, self._sql)), newest(), why)
        except BaseException:
            file.close()
            raise
        return file

    def _require_writable(self) -> None:
        """Raise ReadOnlyStore for a store that was opened read-only and still is."""
        if (file := self._file) is None:
            return
        self.read_only = why_read_only(self._path)
        if self.read_only is not None:
            raise self.read_only
        self.open()
        self._file = None
        file.close()

    def interrupt(self) -> None:
        """Stop waiting for the disk."""
        self._interrupted.set()

    def close(self) -> None:
        """Close every connection and release every lock."""
        with self._polling:  # its connection is closed, too
            self._disconnect()
        self._locks.close()
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def reopen(self) -> None:
        """Reconnect and verify pages, indexes, and that every row matches its log. Readers wait meanwhile."""
        self._require_writable()
        fault = self._fault = self._fault or Fault("the store is being reopened", is_open=True)
        if fault.is_open:  # A caller asked for it, for an unknown reason.
            fault.is_open = fault.is_full = False
        try:
            self._heal()
        except Failed as failed:
            raise StoreUnavailable(reason=failed.reason) from failed

    @property
    def failure(self) -> StoreUnavailable | None:
        """Why nothing could be written for longer than `healing`, despite retries."""
        fault = self._fault
        is_over = fault is not None and monotonic() - fault.since > self._healing
        return StoreUnavailable(reason=fault.reason) if fault is not None and is_over else None

    def now(self) -> int:
        """Return the store's time, which is this machine's."""
        return self._clock.now()

    def about(self) -> StoreInfo:
        """Return the library and the file's schema version."""
        [(schema,)] = self._all("schema_version")
        return StoreInfo(f"SQLite {apsw.sqlite_lib_version()}", int(schema), self._path)

    def commit(self, ops: Sequence[Op[Any]], codec: Codec) -> list[Outcome]:
        """Perform all operations in one durable transaction. Callers' own writes follow, each in its own.

        If all are extensions, as in most batches, those that are not stale are one statement.
        """
        self._require_writable()
        extensions = [op for op in ops if type(op) is Extension]
        if not len(extensions) == len(ops) == len({op.run for op in extensions}):
            return self._perform(ops, codec)
        written = self._extended_together(extensions)
        left = [op for op in extensions if op.run not in written]
        try:
            done = iter(self._perform(left, codec))
        except (StoreBusy, ConnectionLost) as failed:
            if not written:
                raise
            done = iter([copy(failed) for _ in left])  # Not raised: the others are committed.
        return [op.run in written or next(done) for op in extensions]

    def _perform(self, ops: Sequence[Op[Any]], codec: Codec) -> list[Outcome]:
        ours = [op for op in ops if not isinstance(op, Transact)]
        done = iter(self._durably(lambda begin, note: commit(begin, ours, codec, note)) if ours else ())
        return [self._theirs(op, codec) if isinstance(op, Transact) else next(done) for op in ops]

    def commit_now(self, extension: Extension) -> bool | None:
        """Perform an extension on the calling thread, if no lock and no checkpoint is in its way."""
        opened = self._opened
        if opened is None or self._fault is not None:
            return None
        try:
            return opened.transaction.extend_now(extension)
        except Exception as error:  # noqa: BLE001 - `commit` gets the same events, and raises or heals it
            self._note_failure(error)
            return None

    def _extended_together(self, extensions: Sequence[Extension]) -> Mapping[str, int]:
        """Perform extensions in one statement, and return the runs that were extended."""
        opened = self._opened
        if opened is None or self._fault is not None:
            return {}
        try:
            return opened.transaction.extend_together(extensions)
        except StoreBusy:
            raise
        except Exception as error:  # noqa: BLE001 - the general way gets the same events, and raises or heals it
            self._note_failure(error)
            return {}

    def _note_failure(self, error: Exception) -> None:
        if isinstance(error, Failed):
            self._fault = Fault(error.reason).again(error)

    @property
    def is_untidy(self) -> bool:
        """Whether the write-ahead log is so long that it should be moved into the database file."""
        return self._opened is not None and self._opened.transaction.is_checkpoint_due

    def tidy(self) -> None:
        """Move the write-ahead log into the database file."""
        self._alive().transaction.checkpoint()

    def transact(self, op: Transact, codec: Codec) -> Outcome:
        """Commit a caller's own writes and an append in one transaction."""
        self._require_writable()
        return self._durably(lambda begin, note: transact(begin, op, codec, note))

    def _theirs(self, op: Transact, codec: Codec) -> Outcome:
        try:
            return self.transact(op, codec)
        except LimpetError as refused:  # Other operations of its batch have been written.
            return refused

    # Disk failures

    def _durably(self, work: Callable[[Begin, Note], T]) -> T:
        """Repeat until the outcome is known, or until the time for a failing disk is over."""
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
                if self._alive().transaction.wrote:  # A transaction without writes also succeeds on a full disk.
                    self._fault = None
                return done

    def _do(self, work: Callable[[Begin, Note], T], sent: list[tuple[T, Event | None]]) -> T:
        """Perform the work in this connection's transaction, and record what is about to be committed."""
        sent.clear()
        opened = self._alive()
        return work(lambda: opened.transaction, lambda done: sent.append((done, opened.tables.last if done else None)))

    def _has(self, event: Event | None) -> bool:
        """Return whether a failed commit took place after all. A commit that added no event may be repeated."""
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
        """Reopen the file after a failure, and make the disk complete what it may have missed."""
        fault = self._fault
        if fault is None or fault.is_open:
            return
        try:
            with self._lock, failing(self._path):
                self._files.check()
                self._disconnect()
                self._files.closed()
                self._opened = self._required(fault)
        except StoreBusy as busy:  # Earlier work may have been written all the same.
            raise Failed(busy.reason) from busy
        fault.is_open = fault.is_full = True

    def _required(self, fault: Fault) -> "_Opened":
        """Reopen the file. If it is unknown what is on the disk, checkpoint, sync and verify everything."""
        opened = self._connected()
        try:
            if not fault.is_full:
                opened.checkpoint()
                began = monotonic()
                opened.verify()
                fault.since += monotonic() - began  # Verifying takes longer for larger files.
        except BaseException:
            opened.close()
            raise
        return opened

    def _connected(self) -> "_Opened":
        return _Opened(self._path, self._sql, self._clock, self._locks, self._patience, self._files)

    def changes(self, stop: Flag) -> Iterator[None]:
        """Poll every few milliseconds whether another connection has committed."""
        if self._file is not None:
            yield from self._changes_of(self._file, stop)
            return
        with self._polling, error_text(self._path), closing(self._alive().reader()) as db:
            seen, quiet = None, 0
            while not stop.is_set():
                self._files.check_sometimes()
                found = db.execute(self._sql["data_version"]).fetchall()
                quiet += 1
                if found != seen:
                    seen, quiet = found, 0
                    yield
                sleep(POLL_EVERY if quiet < QUIET_AFTER else POLL_QUIETLY)  # `stop.wait` takes twice the CPU

    def _changes_of(self, file: ReadOnlyFile, stop: Flag) -> Iterator[None]:
        seen: tuple[object, ...] = ()
        while not stop.is_set():
            with error_text(self._path):
                stamp = file.stamp()
            found = (stamp, self._all("last_position"))
            if found != seen:
                seen = found
                yield
            sleep(POLL_EVERY)

    # Reading

    def feed(self, after: str, limit: int) -> Feed:
        """Return events of all streams, in the order in which they were committed."""
        begin = int(after or 0)
        if not 0 <= begin <= self._all("last_position")[0][0]:
            raise ValueError("ahead of the store's end: the file was replaced by an older copy")
        found = self._all("feed", begin, limit)
        cursors = tuple(str(each[-1]) for each in found)
        return Feed(tuple(Event(*each[:-1]) for each in found), cursors[-1] if cursors else after or "0", cursors)

    def recent(self, before: str, kinds: Sequence[str], scan: int) -> Recent:
        """Return events of some kinds among the last `scan` events before a cursor, newest first."""
        upto = int(before) if before else LAST
        first = self._all("recent_from", upto, scan - 1)
        lowest, time = first[0] if first else (0, 0)
        found = self._all("recent", upto, lowest, as_text(list(kinds)))
        events, cursors = tuple(Event(*each) for _, *each in found), tuple(str(each[0]) for each in found)
        return Recent(events, str(lowest) if first else None, time, cursors)

    def feed_end(self) -> str:
        """Return the cursor after the last event."""
        return str(self._all("feed_end")[0][0])

    def _ask(self, statement: str, values: Any) -> list[Any]:
        try:
            if (file := self._file) is not None:
                with error_text(self._path):
                    return file.ask(lambda db: db.execute(statement, values).fetchall())
            with self._reader() as db:
                return db.execute(statement, values).fetchall()
        except OverflowError as error:
            raise InvalidValue(path="$", reason="a number that no column can store") from error

    def _bound(self, name: str, value: Any) -> Any:
        return as_text(value) if name in ("statuses", "blobs") else value

    @contextmanager
    def _reader(self) -> Iterator[apsw.Connection]:
        with error_text(self._path), ExitStack() as taken:
            with self._lock:  # Not while the file is being reopened.
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
            raise not_open("store")
        return self._opened


def is_store(path: Path, patience: Duration = PATIENCE) -> bool:
    """Return whether a file contains a store. Does not change it."""
    if not path.is_file():
        return False
    sql = load(__package__, "statements.sql")
    with error_text(path, passing=False):
        if why_read_only(path) is not None:
            with closing(_read_only(path, sql, microseconds(patience))) as file:
                return file.ask(lambda db: schema_version(db, sql)) > 0
        with _inspecting(path, microseconds(patience)) as db:
            return schema_version(db, sql) > 0


def _read_only(path: Path, sql: Mapping[str, str], patience: int) -> ReadOnlyFile:
    return ReadOnlyFile(path, sql["connect_read_only"], sql["index_in_memory"], patience)


def _is_ready(path: Path, sql: Mapping[str, str], patience: int) -> bool:
    """Return whether a file can be used without writing to it first."""
    if not path.is_file():
        return False
    with _inspecting(path, patience) as db:
        is_wal = db.execute(sql["journal_mode"]).fetchall() == [("wal",)]
        return is_wal and schema_version(db, sql) == newest()


@contextmanager
def _inspecting(path: Path, patience: int) -> Iterator[apsw.Connection]:
    """Open a connection that does not change a file, except for rolling back what a dead process left half-done.

    A read-only connection could not roll back.
    """
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as db:
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        db.set_busy_timeout(patience // 1000)
        yield db


class _Opened:
    """The resources of an open file."""

    def __init__(
        self, path: Path, sql: Mapping[str, str], clock: Clock, locks: WorkerLocks, patience: int, files: Files
    ) -> None:
        self.path, self._sql, self.patience, self.files = path, sql, patience, files
        if not path.parent.is_dir():
            fix = f"Run `mkdir -p {path.parent}`, or pass another URL."
            raise StoreUnavailable(reason=f"the folder {path.parent} does not exist", fix=fix)
        self.gate = WriterQueue(path.with_name(f"{path.name}-gate"), patience)
        self.readers = ConnectionPool(self.reader)
        try:
            self.writing = self._made() if not _is_ready(path, sql, patience) else self._connect()
            self.writing.execute(sql["extensions"]).fetchall()
            files.opened(Path(self.writing.filename_wal))
        except BaseException:
            self.gate.close()
            raise
        self.tables = SqliteTables(self.writing, sql, clock, locks)
        self.transaction = _Transaction(self, sql)

    def _made(self) -> apsw.Connection:
        """Return the writing connection to a file that was created or migrated, one process at a time."""
        self.gate.enter()
        try:
            db = self._connect()
            migrate(db, self._sql)
            return db
        finally:
            self.gate.leave()

    def reader(self) -> apsw.Connection:
        """Open a reading connection. First checks that the file was not replaced: another file would get our log."""
        self.files.check()
        db = self._connect()
        db.execute(self._sql["read_only"])
        return db

    def checkpoint(self) -> None:
        """Move everything committed into the database file, and sync it."""
        self.gate.enter()
        try:
            [(busy, _, _)] = self.writing.execute(self._sql["checkpoint"]).fetchall()
        finally:
            self.gate.leave()
        if busy:
            raise Failed(f"{self.path}: the write-ahead log cannot be emptied while others read")

    def verify(self) -> None:
        """Check pages, indexes, and that every row matches its log."""
        if os.stat(self.path).st_size < LARGE:
            [(found,)] = self.writing.execute(self._sql["quick_check"]).fetchall()
            if found != "ok":
                raise StoreUnavailable(reason=f"the file is damaged: {found}")
        for run, seq in self.writing.execute(self._sql["bad_head"]).fetchall():
            raise StoreUnavailable(reason=f"the row of {run} does not match its log at event {seq}")

    def _connect(self) -> apsw.Connection:
        db = apsw.Connection(str(self.path), statementcachesize=200)
        db.set_busy_timeout(self.patience // 1000)
        db.execute(self._sql["connect"]).fetchall()
        return db

    def close(self) -> None:
        """Close everything."""
        self.readers.close()
        self.writing.close()
        self.gate.close()


class _Transaction:
    """The writer's transaction, behind the gate."""

    def __init__(self, opened: _Opened, sql: Mapping[str, str]) -> None:
        self._path, self._gate, self._files = opened.path, opened.gate, opened.files
        self._db, self._tables, self._patience = opened.writing, opened.tables, opened.patience
        self._execute = self._db.cursor().execute
        self._begin, self._commit, self._rollback = sql["begin"], sql["commit"], sql["rollback"]
        self._changes = 0
        self._pages = 0
        """Size of the write-ahead log after the last commit."""
        self._db.set_wal_hook(self._note_pages)  # instead of SQLite's own checkpoints, which any commit could do

    @property
    def wrote(self) -> bool:
        """Whether anything was written since the last transaction started."""
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
        self._end(error)

    def extend_now(self, extension: Extension) -> bool | None:
        """Write an extension in a transaction of its own, and return whether it was written.

        Returns None if another writer is in its way, or a checkpoint is due: an event loop must not wait.
        """
        if not self._begin_now():
            return None
        error: BaseException | None = None
        number = None
        try:
            [number] = self._tables.extend([extension])
        except BaseException as raised:  # noqa: BLE001 - rolled back and raised by `_end`
            error = raised
        self._end(error)
        return number is not None

    def extend_together(self, extensions: Sequence[Extension]) -> Mapping[str, int]:
        """Write extensions of different runs in one statement, which is a transaction of its own.

        Returns the runs that were extended; the others may be stale, or too many.
        """
        self._gate.enter()
        try:
            written = self._tables.extend_together(extensions)
            self._files.check()
        except (apsw.Error, OSError) as failed:
            raise meaning(failed, self._path) from failed
        finally:
            self._gate.leave()
        return written

    def _begin_now(self) -> bool:
        if self.is_checkpoint_due or not self._gate.enter_now():
            return False
        self._db.set_busy_timeout(0)
        try:
            self._execute(self._begin)
        except apsw.Error:  # Another program writes, or the disk fails: the writer finds out.
            self._gate.leave()
            return False
        finally:
            self._db.set_busy_timeout(self._patience // 1000)
        self._tables.last, self._changes = None, self._db.total_changes()
        return True

    def _end(self, error: BaseException | None) -> None:
        """Commit, or roll back if there was an error. Raises that error, or the one of the commit."""
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

    def _note_pages(self, _: apsw.Connection, __: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether the write-ahead log is long."""
        return self._pages >= CHECKPOINT_PAGES

    def checkpoint(self) -> None:
        """Move the write-ahead log into the database file. If that fails, a later commit repeats it.

        No other process may write meanwhile, or its writes would stay in the log, which would grow.
        """
        self._pages = 0
        with suppress(apsw.Error, StoreBusy):
            self._gate.enter()
            try:
                self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            finally:
                self._gate.leave()


def _check_version(found: str) -> None:
    if tuple(int(part) for part in found.split(".")[:3]) < OLDEST_SQLITE:
        oldest = ".".join(str(part) for part in OLDEST_SQLITE)
        raise StoreUnavailable(reason=f"SQLite {found} can lose committed data; {oldest} or newer is needed (apsw)")
