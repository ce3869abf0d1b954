"""Statements with typed parameters, and their values in PostgreSQL's binary format.

Every parameter in statements.sql has a cast, so the type of each value is known before there is one. psycopg would look
at each value, and takes longer to encode a list than the server takes to store it.
"""

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Any

from limpet.stores.backend import SchemaViolation

__all__ = ["Statement", "booleans", "byte_strings", "compiled", "hashes", "int8", "integers", "texts"]

_NUMBERS = count(1)
_PARAMETER = re.compile(r"%(?:\((\w+)\))?b::(\w+(?:\[\])?)")
_HEADER = struct.Struct(">iiIii")
_LENGTH = struct.Struct(">i")
_BOOLEAN, _BYTES, _INTEGER, _TEXT, _INT4, _FLOAT8 = 16, 17, 20, 25, 23, 701
# In an array of fixed-size values, each value is preceded by that size.
_TRUE_OR_FALSE, _HASH = _LENGTH.pack(1), _LENGTH.pack(32)
_NULL = _LENGTH.pack(-1)

int8 = struct.Struct(">q").pack
"""Encode a bigint."""
_float8 = struct.Struct(">d").pack


class Statement:
    """A statement with numbered parameters, which can encode values for them."""

    __slots__ = ("_encoders", "_names", "name", "text")

    def __init__(self, text: str) -> None:
        self.name = b"limpet_%d" % next(_NUMBERS)
        """The name under which connections prepare it, unique in this process."""
        self._names: list[str] = []
        self._encoders: list[Callable[[Any], bytes]] = []
        self.text = _PARAMETER.sub(self._numbered, text).encode()

    def _numbered(self, found: re.Match[str]) -> str:
        """Return a parameter as a number and a cast. The same name has the same number."""
        name, type = found.groups()
        if name is None or name not in self._names:
            self._names.append(name or "")
            self._encoders.append(_ENCODERS[type])
        place = self._names.index(name) + 1 if name else len(self._names)
        return f"${place}::{type}"

    def encode(self, values: Sequence[Any] | Mapping[str, Any]) -> list[bytes | None]:
        """Encode the values. Raises SchemaViolation for a number that no column can store."""
        if isinstance(values, Mapping):
            values = [values[name] for name in self._names]
        try:
            return [
                None if value is None else encode(value) for encode, value in zip(self._encoders, values, strict=True)
            ]
        except struct.error as error:
            raise SchemaViolation(f"an integer that no column can store: {error}") from error


@lru_cache(maxsize=1_000)
def compiled(text: str) -> Statement:
    """Return a statement; the same one for the same text."""
    return Statement(text)


def integers(values: Sequence[int | None]) -> bytes:
    """Encode a bigint[]."""
    if None in values:
        return _array(_INTEGER, [None if value is None else int8(value) for value in values])
    flat: list[Any] = [8] * (2 * len(values))
    flat[1::2] = values
    return struct.pack(f">iiIii{'iq' * len(values)}", 1, 0, _INTEGER, len(values), 1, *flat)


def booleans(values: Sequence[bool | None]) -> bytes:
    """Encode a boolean[]."""
    if None in values:
        return _array(_BOOLEAN, [None if value is None else _boolean(value) for value in values])
    return _TRUE_OR_FALSE.join([_header(_BOOLEAN, values), *[_boolean(value) for value in values]])


def hashes(values: Sequence[bytes]) -> bytes:
    """Encode a bytea[] of hashes, which all have the same size."""
    return _HASH.join([_header(_BYTES, values), *values])


def byte_strings(values: Sequence[bytes | None]) -> bytes:
    """Encode a bytea[]."""
    return _array(_BYTES, values)


def texts(values: Sequence[str | None]) -> bytes:
    """Encode a text[]. Most values repeat."""
    known: dict[str | None, bytes] = {None: _NULL}
    for value in values:
        if value is not None and value not in known:
            data = value.encode()
            known[value] = _LENGTH.pack(len(data)) + data
    return b"".join([_header(_TEXT, values), *[known[value] for value in values]])


def _int4s(values: Sequence[int | None]) -> bytes:
    return _array(_INT4, [None if value is None else _LENGTH.pack(value) for value in values])


def _float8s(values: Sequence[float | None]) -> bytes:
    return _array(_FLOAT8, [None if value is None else _float8(value) for value in values])


def _boolean(value: object) -> bytes:
    return b"\1" if value else b"\0"


def _array(kind: int, values: Sequence[bytes | None]) -> bytes:
    parts = [_header(kind, values)]
    for value in values:
        parts += [_NULL] if value is None else [_LENGTH.pack(len(value)), value]
    return b"".join(parts)


def _header(kind: int, values: Sequence[object]) -> bytes:
    return _HEADER.pack(1, None in values, kind, len(values), 1)


_ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "bigint": int8,
    "int": _LENGTH.pack,
    "text": str.encode,
    "bytea": bytes,
    "boolean": _boolean,
    "float8": _float8,
    "bigint[]": integers,
    "int[]": _int4s,
    "text[]": texts,
    "bytea[]": byte_strings,
    "boolean[]": booleans,
    "float8[]": _float8s,
}
