"""Pieces of large values and artifacts, for clients that cannot receive them as a whole.

A piece is cut from the redacted whole. Pieces that are redacted one by one would neither fit together nor be safe: a
credential that is cut in two matches no pattern.
"""

import asyncio
from typing import NamedTuple

from limpet.errors import InvalidArgument, InvalidValue, NotFound
from limpet.events import canonical
from limpet.events.values import parse
from limpet.redaction import hide_secrets, hide_secrets_in
from limpet.service.resolve import run_of
from limpet.stores import Store
from limpet.view import View

__all__ = [
    "DEFAULT_PIECE",
    "MAX_CHARACTER",
    "MAX_REDACTED",
    "CutText",
    "RawPart",
    "ValuePiece",
    "cut_text",
    "read_part",
    "read_text",
    "value_piece",
    "whole_characters",
]

DEFAULT_PIECE = 12_000
MAX_CHARACTER = 4
"""Maximum length of a character in UTF-8, in bytes."""
MAX_REDACTED = 16 * 1024 * 1024
"""Maximum size of content that can be redacted as a whole, in bytes."""


class CutText(NamedTuple):
    """A part of a text."""

    text: str
    bytes: int
    """Size of the whole text."""
    next: int | None
    """Offset of the next part."""


class RawPart(NamedTuple):
    """Some bytes of a blob."""

    data: bytes
    size: int
    """Size of the whole blob."""


class ValuePiece(View, frozen=True, kw_only=True):
    """A piece of a value, as JSON text."""

    blob: str
    """Id of the value."""
    bytes: int
    """Size of the whole JSON text: without credentials, or raw."""
    start: int
    """Offset of this piece."""
    text: str
    """The piece. All pieces together are the value as JSON."""
    next: int | None
    """Offset of the next piece; None at the end."""


async def value_piece(store: Store, run: str, blob: str, *, start: int, limit: int, raw: bool) -> ValuePiece:
    """Return up to `limit` bytes of a large value of a run, as JSON text."""
    if not await _refers(store, run, blob):
        fix = "Pass the `blob` of a value of this run, as `log` or `steps` show it."
        raise NotFound(what="value", id=f"{run}/{blob}", fix=fix)
    if raw:
        part = await read_part(store, blob, start, limit)
        cut = _cut(part.data, start, part.size)
    else:
        whole = await _read_whole(store, blob)
        cut = cut_text(await asyncio.to_thread(_redacted_json, whole), start, limit)
    return ValuePiece(blob=blob, bytes=cut.bytes, start=start, text=cut.text, next=cut.next)


async def read_part(store: Store, blob: str, start: int, limit: int) -> RawPart:
    """Return up to `limit` bytes of a blob. It is read as a whole to check its hash, but not kept in memory."""
    data, size = bytearray(), 0
    async for part in store.read_blob(blob):
        data += part[max(start - size, 0) : max(start + limit - size, 0)]
        size += len(part)
    return RawPart(bytes(data), size)


async def read_text(store: Store, blob: str) -> bytes:
    """Return the whole text of a blob, redacted. Raises InvalidArgument if it is not text."""
    return await asyncio.to_thread(_redacted_text, await _read_whole(store, blob))


def cut_text(whole: bytes, start: int, limit: int) -> CutText:
    """Return up to `limit` bytes of a text from an offset, without cutting a character."""
    return _cut(whole[start : start + limit], start, len(whole))


def whole_characters(piece: bytes, *, is_last: bool) -> str | None:
    """Decode a piece up to its last whole character. Returns None if it is not text."""
    try:
        return piece.decode()
    except UnicodeDecodeError as error:
        is_cut = not is_last and error.start > 0 and len(piece) - error.start < MAX_CHARACTER
        return piece[: error.start].decode() if is_cut else None


def _cut(piece: bytes, start: int, size: int) -> CutText:
    text = whole_characters(piece, is_last=start + len(piece) >= size)
    if text is None:
        raise InvalidArgument(path="start", reason="no character starts there; pass 0, or `next` of the piece before")
    end = start + len(text.encode())
    return CutText(text, size, end if end < size else None)


async def _refers(store: Store, run: str, blob: str) -> bool:
    """Return whether events of a run refer to a blob, or events of a run that it was forked from."""
    row = await run_of(store, run)
    while blob not in await store.references(row.id):
        if row.origin is None:
            return False
        row = await store.get(row.origin)
    return True


async def _read_whole(store: Store, blob: str) -> bytes:
    """Return the content of a blob that is small enough to be redacted."""
    found = bytearray()
    async for part in store.read_blob(blob):
        found += part
        if len(found) > MAX_REDACTED:
            reason = f"more than {MAX_REDACTED // 1024**2} MiB cannot be redacted; pass raw=true"
            raise InvalidArgument(path="raw", reason=reason)
    return bytes(found)


def _redacted_json(data: bytes) -> bytes:
    try:
        return canonical(hide_secrets_in(parse(data)))
    except InvalidValue:
        raise InvalidArgument(path="blob", reason="is not JSON; read an artifact with `artifact`") from None


def _redacted_text(data: bytes) -> bytes:
    try:
        return hide_secrets(data.decode()).encode()
    except UnicodeDecodeError:
        raise InvalidArgument(path="raw", reason="binary content cannot be redacted; pass raw=true") from None
