"""Codecs, which pack bytes for a store: unchanged, compressed or encrypted. `Plain` does not encrypt.

A codec's name lists what was done, in order (`z+aes`); it is empty if nothing was done. `z` is raw DEFLATE without a
frame, since stored bytes have a hash of their own; older data has `zlib`, with the frame. `about` identifies the bytes
and where they belong (`event:run-7:12`), so that an encrypted body cannot be decrypted in another place.
"""

import zlib
from collections.abc import Collection
from hashlib import sha256
from typing import NamedTuple, Protocol

from limpet.errors import WrongKeys

__all__ = ["DEFLATED", "PLAIN", "Codec", "Hasher", "Packed", "Plain", "deflated", "inflated"]

# Name of the codec that deflates, and the window bits by name: raw now, with a zlib frame in older data.
DEFLATED = "z"
FRAMES = {DEFLATED: -zlib.MAX_WBITS, "zlib": zlib.MAX_WBITS}
# Below this size, compression costs more than it saves.
SMALLEST_DEFLATED = 512


class Packed(NamedTuple):
    """Bytes as stored."""

    codec: str
    key_id: str
    data: bytes


class Hasher(Protocol):
    """An incremental hash that names content."""

    def update(self, data: bytes, /) -> None:
        """Add data."""

    def hexdigest(self) -> str:
        """Return the name of the data so far."""


class Codec(Protocol):
    """Packs bytes for a store, and unpacks them."""

    @property
    def is_private(self) -> bool:
        """Whether packed bytes cannot be read without a key."""

    def learn(self, keys: Collection[str]) -> None:
        """Load keys that are not in memory yet. May block."""

    def hasher(self) -> Hasher:
        """Return a new hash, which names blobs by content."""

    def pack(self, data: bytes, about: str, *, deflate: bool = False) -> Packed:
        """Return the bytes as stored; deflated if asked for and worthwhile."""

    def unpack(self, packed: Packed, about: str) -> bytes:
        """Return the original bytes. Raises WrongKeys, or ValueError for bytes that do not belong there."""

    def hide(self, text: str, about: str, *, findable: bool = False) -> str:
        """Return text for a row derived from events. With `findable`, equal texts give equal results."""

    def reveal(self, hidden: str, about: str) -> str:
        """Return the original text. Raises WrongKeys or ValueError."""


class Plain:
    """Stores bytes unchanged, or compressed if asked to."""

    is_private = False

    def __init__(self, *, compress: bool = False) -> None:
        self._compress = compress

    def learn(self, keys: Collection[str]) -> None:
        """Do nothing: this codec has no keys."""

    def hasher(self) -> Hasher:
        """Return a SHA-256 hash."""
        return sha256()

    def pack(self, data: bytes, about: str, *, deflate: bool = False) -> Packed:  # noqa: ARG002 - nothing is encrypted
        """Return the bytes, compressed if asked for and worthwhile."""
        if (deflate or self._compress) and (small := deflated(data)) is not None:
            return Packed(DEFLATED, "", small)
        return Packed("", "", data)

    def unpack(self, packed: Packed, about: str) -> bytes:  # noqa: ARG002
        """Return the original bytes."""
        if packed.key_id:
            raise WrongKeys(reason=f"the data is encrypted with key {packed.key_id!r}, which was not given")
        return inflated(packed.codec, packed.data)

    def hide(self, text: str, about: str, *, findable: bool = False) -> str:  # noqa: ARG002
        """Return the text unchanged."""
        return text

    def reveal(self, hidden: str, about: str) -> str:  # noqa: ARG002
        """Return the text unchanged."""
        return hidden


PLAIN = Plain()


def deflated(data: bytes) -> bytes | None:
    """Return the compressed bytes, or None if that saves less than a sixteenth."""
    if len(data) < SMALLEST_DEFLATED:
        return None
    # A window for this much data only: the memory of a full one takes longer to get than a message to compress.
    bits = min(len(data).bit_length(), zlib.MAX_WBITS)
    compressor = zlib.compressobj(1, zlib.DEFLATED, -bits, min(bits - 5, zlib.DEF_MEM_LEVEL))
    small = compressor.compress(data) + compressor.flush()
    return small if len(small) <= len(data) - len(data) // 16 else None


def inflated(codec: str, data: bytes) -> bytes:
    """Return the bytes as they were before compression, if they were compressed. Raises ValueError."""
    if codec == "":
        return data
    if codec not in FRAMES:
        raise ValueError(f"unknown codec {codec!r}")
    try:
        return zlib.decompress(data, FRAMES[codec])
    except zlib.error as error:
        raise ValueError(f"cannot be decompressed ({error})") from error
