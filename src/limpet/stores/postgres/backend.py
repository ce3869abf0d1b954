"""A PostgreSQL database as a backend: a connection that writes, some that read, some for callers' own writes.

A lost connection is made anew, and what was under way is done again: nothing is written twice, because whatever was
committed is found there. Row locks of a transaction that is still dying on the server are waited for.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from threading import Event as Flag
from typing import Any, TypeVar

import psycopg

from limpet.clock import Clock, SystemClock
from limpet.errors import ConnectionLost, InvalidValue, StaleServer, StoreBusy, StoreUnavailable
from limpet.events import Codec, Event
from limpet.ids import RandomIds
from limpet.stores.appending import Theirs
from limpet.stores.backend import Capabilities, Outcome, Tables
from limpet.stores.columns import as_text
from limpet.stores.handover import CLOSED
from limpet.stores.ops import Op, Transact, Transacted
from limpet.stores.postgres.connection import (
    Address,
    Connection,
    Server,
    again,
    connect,
    is_lost,
    leave_as_new,
    query,
    translated,
)
from limpet.stores.postgres.migrate import migrate
from limpet.stores.postgres.tables import Living, Means, PostgresTables
from limpet.stores.postgres.text import plain, safe
from limpet.stores.postgres.wire import Wire
from limpet.stores.processes import CAN_SEE, this_process
from limpet.stores.reads import SqlReads
from limpet.stores.rows import (
    Feed,
)
from limpet.stores.search import lowered
from limpet.stores.spares import Spares
from limpet.stores.sql import load
from limpet.stores.transact import commit, transact

__all__ = ["PostgresBackend"]

T = TypeVar("T")

PATIENCE = 20.0
"""For how long, in seconds, a server that is gone is waited for."""
PAUSE = 0.1
COLLISIONS = 100
SLICE = 0.05
"""How often, in seconds, whoever listens looks whether it is to stop."""
LOOK_EVERY = {True: 5, False: 1}
"""After how many slices the sequence is looked at, with a listener and without."""


class PostgresBackend(SqlReads):
    """One schema of a database, which other processes share."""

    capabilities = Capabilities(processes=True, durable=True, sees_death=CAN_SEE, transactions="beside")

    def __init__(self, url: str, clock: Clock | None = None, *, patience: float = PATIENCE) -> None:
        self._address = Address.parse(url)
        self._clock = clock
        self._patience = patience
        schema = self._address.schema
        self._sql = load(__package__, "queries.sql", schema=f'"{schema}"', channel=f"limpet_{schema}")
        self._server = Server(self._address, self._sql["hello"])
        self._living = Living(f"{this_process()}#{RandomIds(SystemClock()).new()}")
        wire = Wire(self._sql, prepare=self._address.prepare)
        self._means = Means(self._sql, wire, clock, self._living)
        self._stop = Flag()
        self._writing: Connection | None = None
        self._readers = Spares(self._server.connect)
        self._theirs = Spares(lambda: self._connect(ours=False))

    def open(self) -> None:
        """Connect, and make or migrate the schema."""
        try:
            db = self._server.connect()
        except (psycopg.Error, ConnectionLost) as error:
            raise StoreUnavailable(reason=f"no connection: {_first_line(error)}") from error
        try:
            migrate(db, self._address.schema, self._sql)
        except psycopg.Error as error:
            db.close()
            raise StoreUnavailable(reason=f"no schema: {_first_line(error)}") from error
        except BaseException:
            db.close()
            raise
        self._stop.clear()
        self._readers, self._theirs = Spares(self._server.connect), Spares(lambda: self._connect(ours=False))
        self._writing = db

    def close(self) -> None:
        """Give up every connection; workers that live here are seen as dead from now on."""
        self._stop.set()
        workers = self._living.all()
        if workers and self._writing is not None:
            with suppress(psycopg.Error):  # then their leases decide
                query(self._writing, self._sql["end_leases"], (workers, self._living.host))
        self._disconnect()

    def reopen(self) -> None:
        """Connect again, and verify that every row agrees with its log."""
        self._disconnect()
        self.open()
        for run, seq in self._all("bad_head"):
            raise StoreUnavailable(reason=f"the row of {run} does not agree with its log at event {seq}")

    def now(self) -> int:
        """The store's clock, which is the server's."""
        if self._clock is not None:
            return self._clock.now()
        now: int = self._all("now")[0][0]
        return now

    # Writing

    def commit(self, ops: Sequence[Op[Any]], codec: Codec) -> list[Outcome]:
        """Do all of them in one durable transaction; again, if it collided with another or the connection was lost."""
        return self._until_known(lambda: commit(self._begin, ops, codec))

    def transact(self, op: Transact, codec: Codec) -> Outcome:
        """A caller's own writes and an append, on a connection that nobody else uses meanwhile."""
        sent: list[Transacted] = []

        def attempt() -> Outcome:
            with self._theirs.one() as db:
                if sent and self._is_there(db, op.run, sent[-1]):
                    return sent[-1]
                sent.clear()
                done = transact(lambda: self._transaction(db, ours=False), op, codec, sent.append)
                leave_as_new(db)
                return done

        return self._until_known(attempt)

    def _is_there(self, db: Connection, run: str, sent: Transacted) -> bool:
        """Whether a commit whose reply was lost took place; its row's lock outlives it if it is still under way."""
        with self._transaction(db, ours=False) as tables:
            row = tables.row(run)
            first = sent.events[0].event
            found = tables.events(row, first.seq - 1, 1) if row is not None else []
        return [event.hash for event in found] == [first.hash]

    @contextmanager
    def _begin(self) -> Iterator[Tables]:
        if self._stop.is_set():
            raise StoreUnavailable(reason=CLOSED)
        if self._writing is None or self._writing.closed:
            self._writing = self._connect()
        with self._transaction(self._writing, ours=True) as tables:
            yield tables

    @contextmanager
    def _transaction(self, db: Connection, *, ours: bool) -> Iterator[PostgresTables]:
        """A transaction, which begins when something in it needs one."""
        tables = PostgresTables(db, self._means, ours=ours)
        try:
            yield tables
            tables.commit()
        except BaseException as error:
            met = error.error if isinstance(error, Theirs) else error
            if isinstance(met, psycopg.Error) and is_lost(db, met):
                db.close()
                raise _Lost(met) from met
            tables.rollback()
            if isinstance(met, psycopg.Error) and again(met):
                raise _Collided(met) from met
            if isinstance(error, psycopg.Error):
                raise translated(error) from error
            raise

    def _connect(self, *, ours: bool = True) -> Connection:
        try:
            return self._server.connect(ours=ours)
        except (psycopg.Error, ConnectionLost, StaleServer) as error:
            raise _Lost(error) from error

    def _until_known(self, work: Callable[[], T]) -> T:
        """Do it until it is known to be done or not: after a collision at once, after a loss while patience lasts."""
        waited, collided = 0.0, 0
        while True:
            try:
                return work()
            except _Collided as collision:
                collided += 1
                if collided > COLLISIONS:
                    raise StoreBusy(reason=_first_line(collision.error)) from collision.error
            except _Lost as loss:
                self._readers.clear()  # what one connection has met, the others have too
                self._theirs.clear()
                if waited >= self._patience or self._stop.is_set():
                    raise _gone(loss.error) from loss.error
                waited += PAUSE
                self._stop.wait(PAUSE)

    # Hearing

    def changes(self, stop: Flag) -> Iterator[None]:
        """Listen, and look now and then at what every write moves: a notification may be lost, or never come."""
        listening = self._address.listen != "no"
        with closing(self._listener()) as db:
            try:
                if listening:
                    query(db, self._sql["listen"])
                seen, until, slices = -1, 0, 0
                while not stop.is_set():
                    slices += 1
                    heard = _heard(db, stop) if listening else stop.wait(SLICE)
                    if slices % LOOK_EVERY[listening] and not heard and seen >= 0:
                        continue
                    [(last, oldest, newest)] = query(db, self._sql["looking"])
                    if last != seen:  # given out, but seen by all only when every transaction of now has ended
                        seen, until = last, newest
                        yield
                    elif heard or until:
                        until = until if oldest < until else 0
                        yield
            except psycopg.Error as error:
                raise ConnectionLost(reason=_first_line(error)) from error

    def _listener(self) -> Connection:
        try:
            if self._address.listen in ("", "no"):
                return self._server.connect()
            return connect(self._address.listen)
        except psycopg.Error as error:
            raise ConnectionLost(reason=_first_line(error)) from error

    # Reading

    def feed(self, after: str, limit: int) -> Feed:
        """Events of all streams in the order of their transactions, up to the oldest that is still open."""
        xid, position = _place(after or "0.0")
        found = self._all("feed", xid, position, limit)
        if not found:
            if xid > self._all("feed_end")[0][0]:
                raise InvalidValue(path="after", reason="the store was restored since; begin anew, or from feed_end")
            return Feed((), after or "0.0")
        *_, xid, position = found[-1]
        return Feed(tuple(Event(*each[:-2]) for each in found), f"{xid}.{position}")

    def feed_end(self) -> str:
        """The place after everything that can be given now."""
        [(xid, position)] = self._all("feed_end")
        return f"{xid}.{position}"

    def _ask(self, statement: str, values: Any) -> list[Sequence[Any]]:
        """Ask on a connection that was kept, and on a new one if that was lost meanwhile."""
        try:
            return self._asked(statement, values)
        except psycopg.OperationalError:
            self._readers.clear()
        try:
            return self._asked(statement, values)
        except psycopg.OperationalError as error:
            raise ConnectionLost(reason=_first_line(error)) from error

    def _asked(self, statement: str, values: Any) -> list[Sequence[Any]]:
        by_name = isinstance(values, dict)
        bound = dict(zip(values, safe(values.values()), strict=True)) if by_name else safe(values)
        with self._readers.one() as db:
            return [plain(found) for found in query(db, statement, bound or None)]

    def _bound(self, name: str, value: Any) -> Any:
        match name:
            case "statuses":
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
    """Nobody knows what became of it."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class _Collided(Exception):
    """It was undone because it collided with another."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _place(text: str) -> tuple[int, int]:
    xid, _, position = text.partition(".")
    return int(xid), int(position)


def _heard(db: Connection, stop: Flag) -> bool:
    """Whether a notification came within a slice of time; those that came together are heard once."""
    heard = False
    for _ in db.notifies(timeout=SLICE, stop_after=1):
        heard = True
    return heard and not stop.is_set()


def _gone(error: Exception) -> ConnectionLost | StaleServer:
    return error if isinstance(error, StaleServer) else ConnectionLost(reason=_first_line(error))


def _first_line(error: Exception) -> str:
    reason = error.reason if isinstance(error, ConnectionLost) else str(error)
    return reason.splitlines()[0] if reason else type(error).__name__
