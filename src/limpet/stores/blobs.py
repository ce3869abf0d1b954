"""Blobs: large content, named by its hash, and stored once for all references.

Content of up to one chunk is sent with the append that refers to it. Larger content is uploaded first, chunk by chunk
under a temporary name, and gets its name after the last chunk. Blobs without references are collected after an hour.
"""

from collections.abc import Iterator
from typing import NamedTuple

from limpet.errors import BlobDamaged
from limpet.events import Codec, Packed

__all__ = [
    "CHUNK",
    "INLINE",
    "MESSAGE_INLINE",
    "Blob",
    "BlobRow",
    "is_name",
    "pack_blob",
    "pack_chunk",
    "unpack_chunk",
    "whole_blob",
]

INLINE = 8 * 1024
"""Maximum size, in bytes, of JSON that stays in its event."""
MESSAGE_INLINE = 256
"""The same limit for messages and model calls: larger ones are stored once for all events that contain them."""
CHUNK = 1024 * 1024


class Blob(NamedTuple):
    """Content on its way to a store."""

    id: str
    size: int
    chunks: tuple[Packed, ...]


class BlobRow(NamedTuple):
    """A stored blob."""

    id: str
    size: int
    chunks: int
    name: str
    """The name that its chunks were packed under: its id, or the upload's name."""


def is_name(blob: str) -> bool:
    """Return whether this can name a complete blob; unfinished ones are named `upload:…`."""
    return ":" not in blob


def pack_blob(codec: Codec, data: bytes) -> Blob:
    """Return content in memory as a blob."""
    hasher = codec.hasher()
    hasher.update(data)
    name = hasher.hexdigest()
    return Blob(name, len(data), tuple(pack_chunk(codec, name, place, part) for place, part in enumerate(_parts(data))))


def pack_chunk(codec: Codec, name: str, place: int, data: bytes) -> Packed:
    """Pack one chunk, bound to its name and index."""
    return codec.pack(data, f"blob:{name}:{place}", deflate=True)


def unpack_chunk(codec: Codec, row: BlobRow, place: int, packed: Packed) -> bytes:
    """Unpack one chunk. Raises BlobDamaged."""
    try:
        return codec.unpack(packed, f"blob:{row.name}:{place}")
    except ValueError as error:
        raise BlobDamaged(blob=row.id, reason=str(error)) from error


def whole_blob(codec: Codec, row: BlobRow, chunk: Packed) -> bytes:
    """Return the content of a blob of one chunk. Raises BlobDamaged."""
    data, hasher = unpack_chunk(codec, row, 0, chunk), codec.hasher()
    hasher.update(data)
    if hasher.hexdigest() != row.id or len(data) != row.size:
        raise BlobDamaged(blob=row.id, reason="the content does not match its name")
    return data


def _parts(data: bytes) -> Iterator[bytes]:
    if len(data) <= CHUNK:
        yield data
        return
    for start in range(0, len(data), CHUNK):
        yield data[start : start + CHUNK]
