"""Blobs: big content, named by what it is, stored once however often it is referred to.

Content of up to one chunk travels with the append that refers to it. More is sent ahead, chunk by chunk, under a name
of its own, and gets its real name when the last chunk is there; what nobody refers to is collected after an hour.
"""

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Raw

from limpet.errors import BlobDamaged
from limpet.events import Codec, Packed, Payload, canonical

__all__ = [
    "CHUNK",
    "INLINE",
    "SAID",
    "Blob",
    "BlobRow",
    "is_name",
    "pack_blob",
    "pack_canonical",
    "pack_chunk",
    "pack_value",
    "unpack_chunk",
    "whole_blob",
]

INLINE = 8 * 1024
"""Up to this many bytes of JSON stay in their event."""
SAID = 256
"""The same for what is said: more than that is stored once, however many events hold it."""
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
    """What its chunks were packed as: its id, or the name under which it was sent."""


def is_name(blob: str) -> bool:
    """Whether this can be the name of a whole blob: one that is still on its way is called `upload:…`."""
    return ":" not in blob


def pack_value(codec: Codec, value: object, *, inline: int = INLINE) -> tuple[Payload, tuple[Blob, ...]]:
    """A value as a payload, with the blob that it refers to if it is big."""
    return pack_canonical(codec, canonical(value), inline=inline)


def pack_canonical(codec: Codec, data: bytes, *, inline: int = INLINE) -> tuple[Payload, tuple[Blob, ...]]:
    """The same for a value that is encoded already."""
    if len(data) <= inline:
        return Payload(json=Raw(data)), ()
    blob = pack_blob(codec, data)
    return Payload(blob=blob.id, bytes=blob.size), (blob,)


def pack_blob(codec: Codec, data: bytes) -> Blob:
    """Content that is in memory, as a blob."""
    hasher = codec.hasher()
    hasher.update(data)
    name = hasher.hexdigest()
    return Blob(name, len(data), tuple(pack_chunk(codec, name, place, part) for place, part in enumerate(_parts(data))))


def pack_chunk(codec: Codec, name: str, place: int, data: bytes) -> Packed:
    """One chunk, bound to its name and place."""
    return codec.pack(data, f"blob:{name}:{place}", deflate=True)


def unpack_chunk(codec: Codec, row: BlobRow, place: int, packed: Packed) -> bytes:
    """One chunk as it was."""
    try:
        return codec.unpack(packed, f"blob:{row.name}:{place}")
    except ValueError as error:
        raise BlobDamaged(blob=row.id, reason=str(error)) from error


def whole_blob(codec: Codec, row: BlobRow, chunk: Packed) -> bytes:
    """What a blob of one chunk holds."""
    data, hasher = unpack_chunk(codec, row, 0, chunk), codec.hasher()
    hasher.update(data)
    if hasher.hexdigest() != row.id or len(data) != row.size:
        raise BlobDamaged(blob=row.id, reason="its content does not fit its name")
    return data


def _parts(data: bytes) -> Iterator[bytes]:
    if len(data) <= CHUNK:
        yield data
        return
    for start in range(0, len(data), CHUNK):
        yield data[start : start + CHUNK]
