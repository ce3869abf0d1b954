"""Reaching a server: its address, what must be true of it, and what its errors mean."""

import re
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg.types.numeric import Int8BinaryDumper

from limpet.errors import (
    ConnectionLost,
    LimpetError,
    StaleServer,
    StoreBusy,
    StoreRefused,
    StoreUnavailable,
    invalid_url,
)

__all__ = [
    "Address",
    "Connection",
    "Lent",
    "Server",
    "ServerIdentity",
    "again",
    "collided",
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
        theirs, ours = [], dict[str, str]()
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name in ("schema", "listen", "prepare"):
                ours[name] = value
            else:
                theirs.append((name, value))
        schema, prepare, listen = ours.get("schema", "limpet"), ours.get("prepare", "yes"), ours.get("listen", "")
        somewhere = parts.netloc or "host" in dict(theirs)
        heard = listen in ("", "no") or listen.startswith(("postgresql://", "postgres://"))
        if not somewhere or not heard or _SCHEMA.fullmatch(schema) is None or prepare not in ("yes", "no"):
            raise invalid_url(f"{parts.scheme}:…" if "password" in url or "@" in url else url)
        rest = urlencode(theirs, quote_via=quote)
        server = urlunsplit(("postgresql", parts.netloc, parts.path, rest, ""))
        if not parts.netloc:  # urlunsplit leaves the slashes out
            server = server.replace("postgresql:/", "postgresql:///", 1)
        return cls(server, schema, listen, prepare == "yes")


class ServerIdentity(NamedTuple):
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
        self._seen: ServerIdentity | None = None
        self._lock = Lock()

    @property
    def timeline(self) -> int:
        """The furthest that was seen."""
        return self._seen.timeline if self._seen else 0

    def connect(self, *, ours: bool = True) -> Connection:
        """A new connection to a server that takes durable writes and is not behind what was seen."""
        db = connect(self._address.server, prepare=self._address.prepare, ours=ours)
        try:
            self._check(query(db, self._hello)[0])
        except BaseException:
            db.close()
            raise
        return db

    def answers(self) -> bool:
        """Whether a server is there that could take connections; what it then refuses is the address or the role."""
        return psycopg.pq.PGconn.ping(self._address.server.encode()) == psycopg.pq.Ping.OK

    def _check(self, found: tuple[Any, ...]) -> None:
        standby, wal_file, system, durability, version, encoding = found
        if version < OLDEST_SERVER:
            raise StoreUnavailable(reason=f"PostgreSQL {version // 10000} is too old: 14 or newer is needed")
        if standby:
            raise ConnectionLost(reason="the server is a standby, and takes no writes")
        if durability == "off":
            raise StoreUnavailable(reason="synchronous_commit is off: set it to on for this role or database")
        if encoding != "UTF8":
            raise StoreUnavailable(reason=f"the database's encoding is {encoding}: make one with UTF8")
        standing = ServerIdentity(system, int(wal_file[:8], 16))
        with self._lock:
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
        client_encoding="UTF8",
        keepalives_idle=30,
        keepalives_interval=10,
        keepalives_count=3,
        tcp_user_timeout=20_000,
    )
    db.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    if ours:
        db.adapters.register_dumper(int, Int8BinaryDumper)  # one type for all integers: one plan for each statement
    return db


class Lent(psycopg.Connection[tuple[Any, ...]]):
    """A connection for a caller's own writes, over one of ours: what is set on this object stays on this object."""

    def close(self) -> None:
        """It is not the caller's to close."""

    def __del__(self, *_: object) -> None:
        """Nor is it closed when the caller lets it go."""


def leave_as_new(db: Connection) -> None:
    """After a caller has used a connection: nothing of what it set, made or listened to is there for the next one."""
    try:
        db.execute("DISCARD ALL")
    except psycopg.Error:
        db.close()  # what was committed is committed; the next one gets a new connection


def query(db: Connection, statement: str, values: Any = None) -> list[tuple[Any, ...]]:
    """Run a statement, and give what it returned."""
    cursor = db.cursor(binary=True)
    cursor.execute(statement.encode(), values)
    return cursor.fetchall() if cursor.description is not None else []


def is_lost(error: psycopg.Error) -> bool:
    """Whether nobody knows what became of the last statement, or the server takes no writes any more."""
    if error.diag.severity_nonlocalized in ("FATAL", "PANIC"):  # its last words; the connection ends with them
        return True
    if error.sqlstate is None:  # the server never answered, unless the driver refused the values and sent nothing
        return not isinstance(error, psycopg.DataError | psycopg.ProgrammingError | psycopg.NotSupportedError)
    return error.sqlstate.startswith(("08", "57P", "58")) or isinstance(error, psycopg.errors.ReadOnlySqlTransaction)


def again(error: psycopg.Error) -> bool:
    """Whether a transaction of ours was undone only because it collided with another."""
    if isinstance(error, psycopg.errors.UniqueViolation):
        return error.diag.constraint_name in _SAME_TIME
    return collided(error)


def collided(error: BaseException) -> bool:
    """Whether the server broke a knot of transactions by undoing this one."""
    return isinstance(error, psycopg.errors.DeadlockDetected | psycopg.errors.SerializationFailure)


# Somebody else made a stream or a blob of the same name a moment ago: looking again finds it.
_SAME_TIME = ("streams_id_key", "blobs_id_key")


def translated(error: psycopg.Error) -> LimpetError:
    """PostgreSQL's errors as ours, where the connection is still there: nothing was written."""
    state = error.sqlstate or ""
    is_busy = state.startswith(("40", "53", "55")) or isinstance(error, psycopg.errors.QueryCanceled)
    return StoreBusy(reason=_words(error)) if is_busy else StoreRefused(reason=_words(error))


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
