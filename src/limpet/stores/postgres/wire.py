"""The statement that every step waits for, sent directly: prepared once, with arrays in PostgreSQL's binary format.

Everything else uses psycopg's cursors, which take longer to encode a list than the server takes to store it.
"""

import struct
from collections.abc import Mapping, Sequence
from weakref import WeakSet

import psycopg
from psycopg import pq
from psycopg.errors import error_from_result

from limpet.stores.backend import SchemaViolation
from limpet.stores.postgres.connection import Connection
from limpet.stores.postgres.text import safe_text
from limpet.stores.writes import Extension

__all__ = ["Wire"]

_HEADER = struct.Struct(">iiIii")
_LENGTH = struct.Struct(">i")
_PLACE_AND_NUMBER = struct.Struct(">qq")
_BOOLEAN, _BYTES, _INTEGER, _TEXT = 16, 17, 20, 25
# In an array of fixed-size values, each value is preceded by that size.
_TRUE_OR_FALSE, _HASH = _LENGTH.pack(1), _LENGTH.pack(32)
_INT8 = struct.Struct(">q").pack
_BINARY = pq.Format.BINARY
_DONE = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)


class Wire:
    """Runs statements on a connection, below psycopg's cursors."""

    def __init__(self, statements: Mapping[str, str], *, prepare: bool) -> None:
        self._statements = {name: statements[name].encode() for name in ("extend", "extend_one", "extend_two")}
        self._settings = statements["settings"]
        self._prepare = prepare
        self._prepared: WeakSet[Connection] = WeakSet()

    def run(self, db: Connection, command: str) -> bytes | None:
        """Run a command without result rows; return its status. psycopg would drop its prepared statements after a
        ROLLBACK.
        """
        result = db.pgconn.exec_(command.encode())
        _checked(db, result)
        return result.command_status

    def extend(self, db: Connection, extensions: Sequence[Extension], *, ours: bool) -> dict[int, int]:
        """Extend streams; return the positions (from 1) of the heads that moved, with their stream numbers."""
        name, values = _statement(extensions)
        formats = [_BINARY] * len(values)
        if db in self._prepared and ours:
            result = db.pgconn.exec_prepared(name.encode(), values, formats, _BINARY)
        else:
            result = db.pgconn.exec_params(self._statements[name], values, None, formats, _BINARY)
        _checked(db, result)
        found = {}
        for row in range(result.ntuples):
            place, number = result.get_value(row, 0), result.get_value(row, 1)
            assert place is not None
            assert number is not None
            at, stream = _PLACE_AND_NUMBER.unpack(place + number)
            found[at] = stream
        return found

    def make_ready(self, db: Connection) -> None:
        """Prepare the statements on a new connection, unless a pooler may switch connections."""
        if not self._prepare:
            return
        self.run(db, self._settings)
        for name, statement in self._statements.items():
            _checked(db, db.pgconn.prepare(name.encode(), statement))
        self._prepared.add(db)


def _statement(extensions: Sequence[Extension]) -> tuple[str, list[bytes]]:
    """Return the statement for a batch and its values. A single caller's events need no arrays."""
    if len(extensions) > 1 or len(extensions[0].events) > 2:
        return "extend", _all(extensions)
    try:
        return ("extend_one" if len(extensions[0].events) == 1 else "extend_two"), _few(extensions[0])
    except struct.error as error:
        raise SchemaViolation(f"an integer that no column can store: {error}") from error


def _few(extension: Extension) -> list[bytes]:
    """Return the values of the statements for one or two events: the head first, which is the last event."""
    after, fence, head = extension.after, extension.fence, extension.events[-1]
    values = [
        extension.run.encode(),
        _INT8(after.seq),
        after.hash,
        _INT8(-1 if fence is None else fence),
        _INT8(head.seq),
        head.hash,
        _INT8(head.time),
        _INT8(extension.step),
        b"\1" if extension.settled else b"\0",
    ]
    for event, step in zip(extension.events, extension.steps, strict=True):
        if event is not head:
            values += [_INT8(event.seq), _INT8(event.time)]
        values += [
            event.kind.encode(),
            _INT8(event.version),
            safe_text(event.actor).encode(),
            event.codec.encode(),
            event.key_id.encode(),
            event.body,
        ]
        if event is not head:
            values.append(event.hash)
        values.append(_INT8(_number(step)))
    return values


def _all(extensions: Sequence[Extension]) -> list[bytes]:
    """Return the values of the statement for many events: an array per column."""
    heads = [each.events[-1] for each in extensions]
    places = [place for place, each in enumerate(extensions, start=1) for _ in each.events]
    events = [event for each in extensions for event in each.events]
    return [
        texts([each.run for each in extensions]),
        integers([each.after.seq for each in extensions]),
        hashes([each.after.hash for each in extensions]),
        integers([-1 if each.fence is None else each.fence for each in extensions]),
        integers([head.seq for head in heads]),
        hashes([head.hash for head in heads]),
        integers([head.time for head in heads]),
        integers([each.step for each in extensions]),
        booleans([each.settled for each in extensions]),
        integers(places),
        integers([event.seq for event in events]),
        integers([event.time for event in events]),
        texts([event.kind for event in events]),
        integers([event.version for event in events]),
        texts([safe_text(event.actor) for event in events]),
        texts([event.codec for event in events]),
        texts([event.key_id for event in events]),
        byte_strings([event.body for event in events]),
        hashes([event.hash for event in events]),
        integers([_number(step) for each in extensions for step in each.steps]),
    ]


def _number(step: int | None) -> int:
    """Return -1 for None, since an array without nulls is shorter."""
    return -1 if step is None else step


def integers(values: Sequence[int]) -> bytes:
    """Encode a bigint[]."""
    count = len(values)
    flat = [8] * (2 * count)
    flat[1::2] = values
    try:
        return struct.pack(f">iiIii{'iq' * count}", 1, 0, _INTEGER, count, 1, *flat)
    except struct.error as error:
        raise SchemaViolation(f"an integer that no column can store: {error}") from error


def booleans(values: Sequence[bool]) -> bytes:
    """Encode a boolean[]."""
    return _TRUE_OR_FALSE.join([_header(_BOOLEAN, values), *[b"\1" if value else b"\0" for value in values]])


def hashes(values: Sequence[bytes]) -> bytes:
    """Encode a bytea[] of hashes, which all have the same size."""
    return _HASH.join([_header(_BYTES, values), *values])


def byte_strings(values: Sequence[bytes]) -> bytes:
    """Encode a bytea[]."""
    parts = [_header(_BYTES, values)] * (2 * len(values) + 1)
    parts[1::2] = [_LENGTH.pack(len(value)) for value in values]
    parts[2::2] = values
    return b"".join(parts)


def texts(values: Sequence[str]) -> bytes:
    """Encode a text[]. Most values repeat."""
    known: dict[str, bytes] = {}
    for value in values:
        if value not in known:
            data = value.encode()
            known[value] = _LENGTH.pack(len(data)) + data
    return b"".join([_header(_TEXT, values), *[known[value] for value in values]])


def _header(kind: int, values: Sequence[object]) -> bytes:
    return _HEADER.pack(1, 0, kind, len(values), 1)


def _checked(db: Connection, result: pq.abc.PGresult) -> None:
    if result.status in _DONE:
        return
    if db.pgconn.status != pq.ConnStatus.OK or result.error_field(pq.DiagnosticField.SQLSTATE) is None:
        raise psycopg.OperationalError(db.pgconn.get_error_message())
    raise error_from_result(result)
