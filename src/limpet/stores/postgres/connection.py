"""Reaching a server: its address, what must be true of it, and what its errors mean."""

import re
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg.rows import tuple_row
from psycopg.types.numeric import Int8BinaryDumper

from limpet.errors import ConnectionLost, InvalidUrl, LimpetError, StaleServer, StoreBusy, StoreUnavailable

__all__ = [
    "Address",
    "Connection",
    "Server",
    "Standing",
    "again",
    "connect",
    "is_lost",
    "leave_as_new",
    "query",
    "translated",
]

OLDEST_SERVER = 140000
Connection = psycopg.Connection[tuple[Any, ...]]
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}")


class Address(NamedTuple):
    """Where a store is: `postgresql://user@host/database?schema=limpet&listen=no&prepare=no`."""

    server: str
    schema: str = "limpet"
    listen: str = ""
    """Where to listen for changes: nothing for the same server, an address of its own, or `no` to poll alone."""
    prepare: bool = True
    """Whether statements may be prepared: not behind a pooler that does not know them."""

    @classmethod
    def parse(cls, url: str) -> "Address":
        """The address that a URL gives."""
        parts = urlsplit(url)
        theirs, ours = [], {}
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name in ("schema", "listen", "prepare"):
                ours[name] = value
            else:
                theirs.append((name, value))
        schema, prepare = ours.get("schema", "limpet"), ours.get("prepare", "yes")
        if not parts.netloc or _SCHEMA.fullmatch(schema) is None or prepare not in ("yes", "no"):
            raise InvalidUrl(url=f"{parts.scheme}:…" if parts.password else url)
        server = urlunsplit(parts._replace(scheme="postgresql", query=urlencode(theirs)))
        return cls(server, schema, ours.get("listen", ""), prepare == "yes")


class Standing(NamedTuple):
    """Where a server stands: which database it is a copy of, and on which timeline."""

    system: str
    timeline: int

    def __str__(self) -> str:
        return f"timeline {self.timeline} of system {self.system or 'unknown'}"


class Server:
    """A server and the furthest that this process has seen it: an old primary that comes back is refused."""

    def __init__(self, address: Address, hello: str) -> None:
        self._address = address
        self._hello = hello
        self._seen: Standing | None = None

    def connect(self, *, ours: bool = True) -> Connection:
        """A new connection to a server that takes durable writes and is not behind what was seen."""
        db = connect(self._address.server, prepare=self._address.prepare, ours=ours)
        try:
            self._check(query(db, self._hello)[0])
        except BaseException:
            db.close()
            raise
        return db

    def _check(self, found: tuple[Any, ...]) -> None:
        standby, wal_file, system, durability, version = found
        if version < OLDEST_SERVER:
            raise StoreUnavailable(reason=f"PostgreSQL {version // 10000} is too old: 14 or newer is needed")
        if standby:
            raise ConnectionLost(reason="the server is a standby, and takes no writes")
        if durability == "off":
            raise StoreUnavailable(reason="synchronous_commit is off: set it to on for this role or database")
        standing = Standing(system, int(wal_file[:8], 16))
        seen = self._seen or standing
        if standing.system != seen.system or standing.timeline < seen.timeline:
            raise StaleServer(found=str(standing), seen=str(seen))
        self._seen = standing


def connect(server: str, *, prepare: bool = True, ours: bool = True) -> Connection:
    """A connection on which every statement is a transaction, unless one is begun; theirs is as psycopg makes it."""
    db = psycopg.connect(
        server,
        autocommit=True,
        prepare_threshold=5 if prepare and ours else None,
        connect_timeout=10,
        application_name="limpet",
        keepalives_idle=30,
        keepalives_interval=10,
        keepalives_count=3,
        tcp_user_timeout=20_000,
    )
    if ours:
        db.adapters.register_dumper(int, Int8BinaryDumper)  # one type for all integers: one plan for each statement
    return db


def leave_as_new(db: Connection) -> None:
    """After a caller has used a connection: nothing of what it set, made or listened to is there for the next one."""
    db.row_factory, db.cursor_factory = tuple_row, psycopg.Cursor
    try:
        db.execute("DISCARD ALL")
    except psycopg.Error:
        db.close()  # what was committed is committed; the next one gets a new connection


def query(db: Connection, statement: str, values: Any = None) -> list[tuple[Any, ...]]:
    """Run a statement, and give what it returned; whatever a caller has made of the connection's own cursors."""
    cursor = psycopg.Cursor(db, row_factory=tuple_row)
    cursor.format = psycopg.pq.Format.BINARY
    cursor.execute(statement.encode(), values)
    return cursor.fetchall() if cursor.description is not None else []


def is_lost(db: Connection, error: psycopg.Error) -> bool:
    """Whether nobody knows what became of the last statement, or the server takes no writes any more."""
    if db.closed or isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return True
    return error.diag.severity_nonlocalized in ("FATAL", "PANIC")  # its last words; the connection ends with them


def again(error: psycopg.Error) -> bool:
    """Whether the transaction was undone only because it collided with another."""
    if isinstance(error, psycopg.errors.UniqueViolation):
        return error.diag.constraint_name in _SAME_TIME
    return isinstance(error, psycopg.errors.DeadlockDetected | psycopg.errors.SerializationFailure)


# Somebody else made a stream, a blob or a schema of the same name a moment ago: looking again finds it.
_SAME_TIME = ("streams_id_key", "blobs_id_key", "pg_namespace_nspname_index")


def translated(error: BaseException) -> LimpetError:
    """PostgreSQL's errors as ours, where the connection is still there: nothing was written."""
    if isinstance(error, psycopg.OperationalError):
        return StoreBusy(reason=_words(error))
    return StoreUnavailable(reason=_words(error))


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
