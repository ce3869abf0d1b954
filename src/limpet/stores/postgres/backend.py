"""A PostgreSQL database as a backend: one connection that writes, some that read, and some for callers' own writes.

A lost connection is replaced, and the interrupted work is repeated. Nothing is written twice, because a committed write
is found before it is repeated. Row locks of a transaction that is still ending on the server are waited for.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from select import POLLIN, poll
from threading import Event as Flag
from threading import RLock
from time import monotonic
from typing import Any, TypeVar

import psycopg

from limpet.clock import SECOND, Clock, Duration, SystemClock, microseconds
from limpet.errors import (
    ConnectionLost,
    InvalidArgument,
    InvalidValue,
    ReadOnlyStore,
    StaleServer,
    StoreBusy,
    StoreUnavailable,
)
from limpet.events import Codec, Event
from limpet.ids import RandomIds
from limpet.stores.append import CallerError
from limpet.stores.backend import Capabilities, LockTimeout, Outcome, SchemaViolation, StoreInfo, Tables
from limpet.stores.columns import as_text
from limpet.stores.commit import commit, transact
from limpet.stores.connection_pool import ConnectionPool
from limpet.stores.fork_reads import LAST
from limpet.stores.postgres.connection import (
    STANDBY,
    Address,
    Connection,
    Server,
    again,
    collided,
    connect,
    is_lost,
    leave_as_new,
    query,
    translated,
)
from limpet.stores.postgres.migrate import migrate, newest, schema_version
from limpet.stores.postgres.parameters import compiled
from limpet.stores.postgres.tables import PostgresTables, ProcessWorkers, TransactionParts
from limpet.stores.postgres.text import plain_rows, safe
from limpet.stores.postgres.wire import BoundStatement, Wire, decoded
from limpet.stores.processes import CAN_SEE
from limpet.stores.rows import Feed, Recent
from limpet.stores.search import lowered
from limpet.stores.sql_files import check_schema, load
from limpet.stores.sql_reads import SqlReads
from limpet.stores.threads import CLOSED
from limpet.stores.writes import Extension, Op, Transact, Transacted

__all__ = ["PostgresBackend"]

log = logging.getLogger("limpet")

T = TypeVar("T")

PATIENCE = "20s"
"""How long to wait for an unavailable server."""
PAUSE = 0.1
# Seconds after which a log line says that the server is unavailable.
TELL_AFTER = 1.0
COLLISIONS = 100
POLL_EVERY = {True: 0.25, False: 0.05}
"""Seconds between two polls of the sequence, with and without LISTEN."""


class PostgresBackend(SqlReads):
    """One schema of a database, which other processes may share."""

    capabilities = Capabilities(
        processes=True, durable=True, sees_death=CAN_SEE, transactions="beside", own_process=True
    )

    def __init__(self, url: str, clock: Clock | None = None, *, patience: Duration | None = None) -> None:
        self._address = Address.parse(url)
        self._clock = clock
        self._patience = microseconds(PATIENCE if patience is None else patience) / SECOND
        schema = self._address.schema
        self._sql = load(__package__, "statements.sql", schema=f'"{schema}"', channel=f"limpet_{schema}")
        self._server = Server(self._address, self._sql["hello"])
        self._name = RandomIds(SystemClock()).new()
        self._batch = 0
        self._restored = 1
        self._workers = ProcessWorkers(self._name)
        wire = Wire(self._sql, prepare=self._address.prepare)
        self._means = TransactionParts(self._sql, wire, clock, self._workers)
        self._stop, self._interrupted = Flag(), Flag()
        self._lock = RLock()
        self._writing: Connection | None = None
        self.read_only: ReadOnlyStore | None = None
        self._readers = ConnectionPool(self._connect_reader)
        self._theirs = ConnectionPool(lambda: self._connect(ours=False))

    def exists(self) -> bool:
        """Return whether the schema exists and belongs to Limpet."""
        with closing(self._reach()) as db:
            try:
                return schema_version(db, self._address.schema, self._sql) > 0
            except psycopg.Error as error:
                raise self._no_schema(error) from error

    def open(self) -> None:
        """Connect, and create or migrate the schema. A store that can only be read is opened without any write."""
        self._open(standby=True)

    def _open(self, *, standby: bool) -> None:
        db = self._reach(standby=standby)
        try:
            self.read_only = self._why_read_only(db)
            if self.read_only is None:
                self._prepare(db)
            else:
                check_schema(schema_version(db, self._address.schema, self._sql), newest(), self.read_only)
            self._restored = int(query(db, self._sql["life"])[0][0])
        except psycopg.Error as error:
            db.close()
            raise self._no_schema(error) from error
        except BaseException:
            db.close()
            raise
        self._stop.clear()
        self._interrupted.clear()
        self._readers, self._theirs = (
            ConnectionPool(self._connect_reader),
            ConnectionPool(lambda: self._connect(ours=False)),
        )
        if self.read_only is None:
            self._writing = db
        else:
            db.close()

    def _prepare(self, db: Connection) -> None:
        """Create or migrate the schema, and prepare a connection for writing."""
        migrate(db, self._address.schema, self._sql)
        old, own = compiled(self._sql["drop_old_receipts"]), compiled(self._sql["receipt"])
        receipt = BoundStatement(own, own.encode((self._name, self._batch)))
        self._means.wire.send(db, [BoundStatement(old), receipt])  # May wait for a transaction that is still ending.
        self._means.wire.make_ready(db, writes=True)

    def _why_read_only(self, db: Connection) -> ReadOnlyStore | None:
        """Return why this server, session or role cannot write to the store, or None."""
        [(is_standby, is_session, role, may_write)] = query(db, self._sql["accepts_writes"])
        if is_standby:
            fix = "Point the URL at the primary. Queries such as `limpet show` work here."
            return ReadOnlyStore(reason=STANDBY, fix=fix, is_standby=True)
        if is_session:
            reason = "its transactions are read-only (default_transaction_read_only is on)"
            fix = "Set default_transaction_read_only = off for this role or database."
            return ReadOnlyStore(reason=reason, fix=fix)
        if may_write:
            return None
        fix = "Use a role that may write. Queries such as `limpet show` work with this one."
        return ReadOnlyStore(reason=f"the role {role} may not write to the tables of {self._address.schema}", fix=fix)

    def _no_schema(self, error: psycopg.Error) -> StoreUnavailable:
        reason, schema = f"cannot create or read the schema: {_first_line(error)}", self._address.schema
        if not isinstance(error, psycopg.errors.InsufficientPrivilege):
            return StoreUnavailable(reason=reason)
        grant = f"GRANT USAGE ON SCHEMA {schema} TO ROLE; GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO ROLE"
        return StoreUnavailable(reason=reason, fix=f"Use the store's owner, or let this role read: `{grant}`.")

    def _connect_reader(self) -> Connection:
        db = self._server.connect(standby=self.read_only is not None)
        self._means.wire.make_ready(db, writes=False)
        return db

    def _require_writable(self) -> None:
        """Raise ReadOnlyStore for a store that was opened read-only and still is."""
        if self.read_only is None:
            return
        with closing(self._reach()) as db:
            why = self._why_read_only(db)
        if why is not None:
            raise why
        with self._lock:
            self._disconnect()
            self.open()

    def _reach(self, *, standby: bool = True) -> Connection:
        """Connect to a server that may be starting. Does not retry if the server answers and refuses."""
        try:
            return self._until_known(lambda: self._first(standby=standby))
        except (psycopg.Error, ConnectionLost, StaleServer) as error:
            raise StoreUnavailable(reason=f"no connection: {_first_line(error)}") from error

    def _first(self, *, standby: bool) -> Connection:
        try:
            return self._server.connect(standby=standby)
        except (psycopg.OperationalError, ConnectionLost) as error:
            if isinstance(error, ConnectionLost) or not self._server.answers():
                raise _Lost(error) from error
        return self._server.connect(standby=standby)  # It may have started since.

    def interrupt(self) -> None:
        """Stop waiting for the server."""
        self._interrupted.set()

    def close(self) -> None:
        """Close every connection; other processes then see this store's workers as dead."""
        self._stop.set()
        if self._writing is not None:
            with suppress(psycopg.Error):  # Their leases decide then.
                query(self._writing, self._sql["end_leases"], (self._workers.all(), self._workers.host))
                query(self._writing, self._sql["drop_receipt"], (self._name,))
        self._disconnect()

    def reopen(self) -> None:
        """Reconnect, and verify that every row matches its log. Readers wait meanwhile."""
        with self._lock:
            self._disconnect()
            self._open(standby=self.read_only is not None)
        for run, seq in self._all("bad_head"):
            raise StoreUnavailable(reason=f"the row of {run} does not match its log at event {seq}")

    def now(self) -> int:
        """Return the store's time, which is the server's."""
        if self._clock is not None:
            return self._clock.now()
        now: int = self._all("now")[0][0]
        return now

    def about(self) -> StoreInfo:
        """Return the server and its schema version."""
        [(version,)], [(schema,)] = self._all("server_version"), self._all("schema_version")
        return StoreInfo(f"PostgreSQL {version}", int(schema))

    # Writing

    def commit_now(self, extension: Extension) -> None:
        """Do nothing: the event loop must not wait for a server."""

    is_untidy = False

    def tidy(self) -> None:
        """Do nothing: there is no such work."""

    def commit(self, ops: Sequence[Op[Any]], codec: Codec) -> list[Outcome]:
        """Perform all operations in one durable transaction; retries after a collision or a lost connection."""
        self._require_writable()
        sent: list[list[Outcome]] = []

        def attempt() -> list[Outcome]:
            if sent and sent[-1] and self._was_committed():
                return sent[-1]
            sent.clear()
            return commit(self._begin, ops, codec, sent.append)

        return self._until_known(attempt)

    def transact(self, op: Transact, codec: Codec) -> Outcome:
        """Commit a caller's own writes and an append, on a connection that is used for nothing else meanwhile."""
        self._require_writable()
        sent: list[Transacted] = []

        def attempt() -> Outcome:
            with self._theirs.connection() as db:
                if sent and self._is_stored(db, op.run, sent[-1]):
                    return sent[-1]
                sent.clear()
                done = transact(lambda: self._transaction(db, None), op, codec, sent.append)
                leave_as_new(db)
                return done

        return self._until_known(attempt)

    def _was_committed(self) -> bool:
        """Return whether the last batch was committed although its reply was lost. Waits for one that is still in
        progress.
        """
        db = self._writer()
        try:
            found = query(db, self._sql["last_receipt"], (self._name,))
        except psycopg.Error as error:
            db.close()
            raise _Lost(error) from error
        return found == [(self._batch,)]

    def _is_stored(self, db: Connection, run: str, sent: Transacted) -> bool:
        """Return whether a commit with a lost reply took place. The row's lock makes this wait if it is in progress."""
        with self._transaction(db, None) as tables:
            row = tables.row(run)
            first = sent.events[0].event
            found = tables.events(row, first.seq - 1, 1) if row is not None else []
        return [event.hash for event in found] == [first.hash]

    @contextmanager
    def _begin(self) -> Iterator[Tables]:
        db = self._writer()
        self._batch += 1
        with self._transaction(db, self._batch) as tables:
            yield tables

    @contextmanager
    def _transaction(self, db: Connection, batch: int | None) -> Iterator[PostgresTables]:
        """Open a transaction, which starts on the server at the first statement. A batch of the writer leaves a
        receipt.
        """
        tables = PostgresTables(db, self._means, batch)
        try:
            yield tables
            tables.commit()
        except CallerError as theirs:  # Judge only what it did to this connection: the caller may use others.
            broken = db.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
            if db.closed:
                raise _Lost(theirs.error) from theirs.error
            tables.rollback()
            if broken and collided(theirs.error):
                raise _Collided(theirs.error) from theirs.error
            raise
        except psycopg.Error as error:
            if db.closed or is_lost(error):
                db.close()
                raise _Lost(error) from error
            tables.rollback()
            raise _meaning(error) from error
        except BaseException:
            tables.rollback()
            raise

    def _writer(self) -> Connection:
        """Return the writer's connection, reconnecting if it was lost."""
        if self._stop.is_set():
            raise StoreUnavailable(reason=CLOSED)
        if self._writing is None or self._writing.closed:
            self._writing = self._connect()
            self._make_ready(self._writing)
        return self._writing

    def _make_ready(self, db: Connection) -> None:
        try:
            self._means.wire.make_ready(db, writes=True)
        except psycopg.Error as error:
            db.close()
            raise _Lost(error) from error

    def _connect(self, *, ours: bool = True) -> Connection:
        try:
            return self._server.connect(ours=ours)
        except (psycopg.Error, ConnectionLost, StaleServer) as error:
            raise _Lost(error) from error

    def _until_known(self, work: Callable[[], T]) -> T:
        """Repeat until the outcome is known: immediately after a collision, for a limited time after a loss."""
        began, collisions, is_told = monotonic(), 0, False
        while True:
            try:
                return work()
            except _Collided as collision:
                collisions += 1
                if collisions > COLLISIONS:
                    raise StoreBusy(reason=_first_line(collision.error)) from collision.error
            except _Lost as loss:
                self._readers.clear()  # The other connections are probably lost, too.
                self._theirs.clear()
                if self._interrupted.wait(PAUSE) or monotonic() > began + self._patience:
                    raise _gone(loss.error) from loss.error
                if not is_told and monotonic() > began + TELL_AFTER:
                    is_told = True
                    log.warning("no connection yet, trying for %g s: %s", self._patience, _first_line(loss.error))

    # Watching for changes

    def changes(self, stop: Flag) -> Iterator[None]:
        """Listen, and also poll what every write changes, since a notification may be lost or never arrive."""
        listening = self._address.listen != "no" and self.read_only is None
        looking = self._sql["looking" if self.read_only is None else "looking_read_only"]
        with closing(self._listener()) as db:
            try:
                if listening:
                    query(db, self._sql["listen"])
                seen, until = -1, 0
                while not stop.is_set():
                    pause = POLL_EVERY[listening] if seen >= 0 else 0
                    notified = _is_notified(db, pause) if listening else stop.wait(pause)
                    [(last, oldest, newest)] = query(db, looking)
                    if last != seen:  # Visible to all only when every transaction of this moment has ended.
                        seen, until = last, newest
                        yield
                    elif notified or until:
                        until = until if oldest < until else 0
                        yield
            except psycopg.Error as error:
                raise ConnectionLost(reason=_first_line(error)) from error

    def _listener(self) -> Connection:
        try:
            if self._address.listen in ("", "no") or self.read_only is not None:
                return self._connect_reader()
            return connect(self._address.listen)
        except psycopg.Error as error:
            raise ConnectionLost(reason=_first_line(error)) from error

    # Reading

    def feed(self, after: str, limit: int) -> Feed:
        """Return events of all streams in the order of their transactions, up to the oldest open one."""
        life, xid, position = _place(after)
        found = self._all("feed", xid, position, limit + 1)
        if found and tuple(found[0][-2:]) == (xid, position):
            found = found[1:]
        elif xid and life != self._life():  # Its event is missing: lost or restored, not only pruned.
            raise InvalidArgument(
                path="after",
                reason="the store was restored or has lost events since this cursor was returned",
                fix='Start again with after="".',
            )
        if not found:
            return Feed((), after or self._place_of(0, 0))
        page = found[:limit]
        cursors = tuple(self._place_of(*each[-2:]) for each in page)
        return Feed(tuple(Event(*each[:-2]) for each in page), cursors[-1], cursors)

    def recent(self, before: str, kinds: Sequence[str], scan: int) -> Recent:
        """Return events of some kinds among the last `scan` events before a cursor, newest first."""
        _, *upto = _place(before) if before else ("", LAST, LAST)
        first = self._all("recent_from", *upto, scan - 1)
        *lowest, time = first[0] if first else (0, 0, 0)
        found = self._all("recent", *upto, *lowest, list(kinds))
        events = tuple(Event(*each) for _, _, *each in found)
        cursors = tuple(self._place_of(xid, position) for xid, position, *_ in found)
        return Recent(events, self._place_of(*lowest) if first else None, time, cursors)

    def feed_end(self) -> str:
        """Return the cursor after everything that can be returned now."""
        found = self._all("feed_end")
        return self._place_of(*found[0]) if found else self._place_of(0, 0)

    def _place_of(self, xid: int, position: int) -> str:
        return f"{self._life()}.{xid}.{position}"

    def _life(self) -> str:
        """Return the life of the database that a cursor belongs to. A restored dump and a new timeline each start
        another.
        """
        return f"{self._restored}-{self._server.timeline}"

    def _ask(self, statement: str, values: Any) -> Sequence[Sequence[Any]]:
        """Query on a pooled connection, and on a new one if that was lost."""
        try:
            return self._asked(statement, values)
        except ConnectionLost:
            self._readers.clear()
            return self._asked(statement, values)

    def _asked(self, statement: str, values: Any) -> Sequence[Sequence[Any]]:
        by_name = isinstance(values, dict)
        bound = dict(zip(values, safe(values.values()), strict=True)) if by_name else safe(values)
        asked = compiled(statement)
        with self._lock:
            readers = self._readers
        try:
            call = BoundStatement(asked, asked.encode(bound))
            with readers.connection() as db:
                return plain_rows(decoded(db, self._means.wire.call(db, call)))
        except (psycopg.DataError, SchemaViolation) as error:
            raise InvalidValue(path="$", reason="a number or text that no column can store") from error
        except psycopg.Error as error:
            raise (_gone(error) if is_lost(error) else translated(error)) from error

    def _bound(self, name: str, value: Any) -> Any:
        match name:
            case "statuses" | "blobs":
                return list(value)
            case "to":
                return as_text(value)
            case "text":
                return lowered(value)
            case _:
                return value

    def _disconnect(self) -> None:
        self._readers.close()
        self._theirs.close()
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.close()


class _Lost(Exception):
    """The outcome is unknown, since the connection was lost."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Collided(Exception):
    """The transaction was rolled back because it collided with another."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _place(text: str) -> tuple[str, int, int]:
    if not text:
        return "", 0, 0
    life, xid, position = text.split(".")
    if int(xid) < 0 or int(position) < 0:
        raise ValueError(text)
    return life, int(xid), int(position)


def _meaning(error: psycopg.Error) -> Exception:
    """Translate an error of Limpet's own statement, after a rollback on a working connection."""
    if again(error):
        return _Collided(error)
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return LockTimeout(_first_line(error))
    return translated(error)


def _is_notified(db: Connection, pause: float) -> bool:
    """Wait for a notification, at most for a pause, and return whether one arrived; several count once."""
    if list(db.notifies(timeout=0)):  # arrived during the last query
        return True
    server = poll()  # Unlike select, it can wait for any socket.
    server.register(db.pgconn.socket, POLLIN)
    return bool(server.poll(pause * 1_000)) and bool(list(db.notifies(timeout=0)))


def _gone(error: BaseException) -> ConnectionLost | StaleServer:
    return error if isinstance(error, StaleServer) else ConnectionLost(reason=_first_line(error))


def _first_line(error: BaseException) -> str:
    reason = error.reason if isinstance(error, ConnectionLost) else str(error)
    return reason.splitlines()[0] if reason else type(error).__name__
