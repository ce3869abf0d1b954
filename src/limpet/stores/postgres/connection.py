"""Connect to a server: its address, checks of the server, and the meaning of its errors."""

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
    "STANDBY",
    "Address",
    "CallerConnection",
    "Connection",
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
STANDBY = "the server is a standby, which accepts no writes"
Connection = psycopg.Connection[tuple[Any, ...]]
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}")


class Address(NamedTuple):
    """The address of a store: `postgresql://user@host/database?schema=limpet&listen=no&prepare=no`."""

    server: str
    schema: str = "limpet"
    listen: str = ""
    """Where to listen for changes: "" for the same server, another URL, or `no` to only poll."""
    prepare: bool = True
    """Whether statements may be prepared. Not behind a pooler that does not support them."""

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Parse a URL. Raises InvalidArgument."""
        parts = urlsplit(url)
        theirs, ours = [], dict[str, str]()
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name in ("schema", "listen", "prepare"):
                ours[name] = value
            else:
                theirs.append((name, value))
        schema, prepare, listen = ours.get("schema", "limpet"), ours.get("prepare", "yes"), ours.get("listen", "")
        somewhere = parts.netloc or "host" in dict(theirs)
        listens = listen in ("", "no") or listen.startswith(("postgresql://", "postgres://"))
        if not somewhere or not listens or _SCHEMA.fullmatch(schema) is None or prepare not in ("yes", "no"):
            raise invalid_url(f"{parts.scheme}:…" if "password" in url or "@" in url else url)
        rest = urlencode(theirs, quote_via=quote)
        server = urlunsplit(("postgresql", parts.netloc, parts.path, rest, ""))
        if not parts.netloc:  # urlunsplit omits the slashes.
            server = server.replace("postgresql:/", "postgresql:///", 1)
        return cls(server, schema, listen, prepare == "yes")


class ServerIdentity(NamedTuple):
    """Identity of a server: its database system and its timeline."""

    system: str
    timeline: int

    def __str__(self) -> str:
        return f"timeline {self.timeline} of system {self.system or 'unknown'}"


class Server:
    """A server, with the newest timeline that this process has seen. A former primary that returns is refused."""

    def __init__(self, address: Address, hello: str) -> None:
        self._address = address
        self._hello = hello
        self._seen: ServerIdentity | None = None
        self._lock = Lock()

    @property
    def timeline(self) -> int:
        """The newest timeline seen."""
        return self._seen.timeline if self._seen else 0

    def connect(self, *, ours: bool = True, standby: bool = False) -> Connection:
        """Connect to a server that accepts durable writes and is not behind what was seen, or also to a standby."""
        db = connect(self._address.server, ours=ours)
        try:
            self._check(query(db, self._hello)[0], standby=standby)
        except BaseException:
            db.close()
            raise
        return db

    def answers(self) -> bool:
        """Return whether a server accepts connections. If so, a failed connection is due to the address or the role."""
        return psycopg.pq.PGconn.ping(self._address.server.encode()) == psycopg.pq.Ping.OK

    def _check(self, found: tuple[Any, ...], *, standby: bool = False) -> None:
        is_standby, wal_file, system, durability, version, encoding = found
        if version < OLDEST_SERVER:
            raise StoreUnavailable(reason=f"PostgreSQL {version // 10000} is too old: 14 or newer is needed")
        if is_standby and not standby:
            raise ConnectionLost(reason=STANDBY)
        if durability == "off" and not is_standby:
            raise StoreUnavailable(reason="synchronous_commit is off: set it to on for this role or database")
        if encoding != "UTF8":
            raise StoreUnavailable(reason=f"the database's encoding is {encoding}: create one with UTF8")
        standing = ServerIdentity(system, int(wal_file[:8], 16))
        with self._lock:
            seen = self._seen or standing
            is_behind = standing.timeline < seen.timeline and not is_standby
            if standing.system != seen.system or is_behind:
                raise StaleServer(found=str(standing), seen=str(seen))
            self._seen = seen if is_standby else standing


def connect(server: str, *, ours: bool = True) -> Connection:
    """Connect with autocommit. A connection for callers keeps psycopg's defaults."""
    db = psycopg.connect(
        server,
        autocommit=True,
        prepare_threshold=None,
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
        db.adapters.register_dumper(int, Int8BinaryDumper)  # One type for all integers gives one plan per statement.
    return db


class CallerConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection for a caller's own writes, over one of Limpet's. Settings of this object do not affect the other."""

    def close(self) -> None:
        """Do nothing: the caller must not close the connection."""

    def __del__(self, *_: object) -> None:
        """Do nothing: the connection stays open when the caller drops this object."""


def leave_as_new(db: Connection) -> None:
    """Reset a connection after a caller has used it: settings, temporary objects and listeners."""
    try:
        db.execute("DISCARD ALL")
    except psycopg.Error:
        db.close()  # The commit is done; the next caller gets a new connection.


def query(db: Connection, statement: str, values: Any = None) -> list[tuple[Any, ...]]:
    """Run a statement and return its rows."""
    cursor = db.cursor(binary=True)
    cursor.execute(statement.encode(), values)
    return cursor.fetchall() if cursor.description is not None else []


def is_lost(error: psycopg.Error) -> bool:
    """Return whether the outcome of the last statement is unknown, or the server no longer accepts writes."""
    if error.diag.severity_nonlocalized in ("FATAL", "PANIC"):  # The server closes the connection after this.
        return True
    if error.sqlstate is None:  # The server never answered, unless the driver refused the values and sent nothing.
        return not isinstance(error, psycopg.DataError | psycopg.ProgrammingError | psycopg.NotSupportedError)
    return error.sqlstate.startswith(("08", "57P", "58")) or isinstance(error, psycopg.errors.ReadOnlySqlTransaction)


def again(error: psycopg.Error) -> bool:
    """Return whether Limpet's transaction was rolled back only because it collided with another."""
    if isinstance(error, psycopg.errors.UniqueViolation):
        return error.diag.constraint_name in _SAME_TIME
    return collided(error)


def collided(error: BaseException) -> bool:
    """Return whether the server rolled back a transaction to resolve a deadlock or a serialization conflict."""
    return isinstance(error, psycopg.errors.DeadlockDetected | psycopg.errors.SerializationFailure)


# Another process has just created a stream or a blob with the same name; a retry finds it.
_SAME_TIME = ("streams_id_key", "blobs_id_key")


def translated(error: psycopg.Error) -> LimpetError:
    """Translate a PostgreSQL error on a working connection; nothing was written."""
    state = error.sqlstate or ""
    is_busy = state.startswith(("40", "53", "55")) or isinstance(error, psycopg.errors.QueryCanceled)
    return StoreBusy(reason=_words(error)) if is_busy else StoreRefused(reason=_words(error))


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
