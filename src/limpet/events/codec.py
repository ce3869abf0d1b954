"""How bytes are stored: as they are, compressed, or encrypted. What does it is handed in; here is the plainest one.

A codec's name says what was done, in order (`z+aes`); nothing done is the empty name. `z` is deflated, without a frame
around it: what is stored has a hash of its own. It was `zlib`, with the frame. `about` says what the bytes are and
where they belong (`event:run-7:12`): an encrypted body that was moved elsewhere does not open.
"""

import zlib
from collections.abc import Collection
from hashlib import sha256
from typing import NamedTuple, Protocol

from limpet.errors import WrongKeys

__all__ = ["DEFLATED", "PLAIN", "Codec", "Hasher", "Packed", "Plain", "deflated", "inflated"]

# What a codec is called that deflates, and how its bytes are framed: not at all, and as it was before.
DEFLATED = "z"
FRAMES = {DEFLATED: -zlib.MAX_WBITS, "zlib": zlib.MAX_WBITS}
# Below this, compressing costs more than it saves.
SMALLEST_DEFLATED = 512


class Packed(NamedTuple):
    """Bytes as they are stored."""

    codec: str
    key_id: str
    data: bytes


class Hasher(Protocol):
    """What names content, as it comes."""

    def update(self, data: bytes, /) -> None:
        """More of it."""

    def hexdigest(self) -> str:
        """The name of what has come so far."""


class Codec(Protocol):
    """What packs bytes for a store, and unpacks them again."""

    @property
    def is_private(self) -> bool:
        """Whether what it packs cannot be read without a key."""

    def learn(self, keys: Collection[str]) -> None:
        """Look up keys that are not at hand yet; this may block."""

    def hasher(self) -> Hasher:
        """What names blobs by their content."""

    def pack(self, data: bytes, about: str, *, deflate: bool = False) -> Packed:
        """The bytes as they are to be stored; deflated if that is asked for and pays."""

    def unpack(self, packed: Packed, about: str) -> bytes:
        """The bytes as they were; raises WrongKeys, or ValueError for what does not belong there."""

    def hide(self, text: str, about: str, *, findable: bool = False) -> str:
        """Text for a row that is made from events; the same text looks the same if it must be findable."""

    def reveal(self, hidden: str, about: str) -> str:
        """The text that was hidden; raises WrongKeys or ValueError."""


class Plain:
    """Stores bytes as they are, and compresses where asked to."""

    is_private = False

    def __init__(self, *, compress: bool = False) -> None:
        self._compress = compress

    def learn(self, keys: Collection[str]) -> None:
        """There are none."""

    def hasher(self) -> Hasher:
        """SHA-256."""
        return sha256()

    def pack(self, data: bytes, about: str, *, deflate: bool = False) -> Packed:  # noqa: ARG002 - nothing is bound
        """The bytes, compressed if that is asked for and pays."""
        if (deflate or self._compress) and (small := deflated(data)) is not None:
            return Packed(DEFLATED, "", small)
        return Packed("", "", data)

    def unpack(self, packed: Packed, about: str) -> bytes:  # noqa: ARG002
        """The bytes as they were."""
        if packed.key_id:
            raise WrongKeys(reason=f"the data is encrypted with key {packed.key_id!r}, which was not given")
        return inflated(packed.codec, packed.data)

    def hide(self, text: str, about: str, *, findable: bool = False) -> str:  # noqa: ARG002
        """The text as it is."""
        return text

    def reveal(self, hidden: str, about: str) -> str:  # noqa: ARG002
        """The text as it is."""
        return hidden


PLAIN = Plain()


def deflated(data: bytes) -> bytes | None:
    """The bytes compressed, if that saves at least a sixteenth."""
    if len(data) < SMALLEST_DEFLATED:
        return None
    small = zlib.compress(data, 1, FRAMES[DEFLATED])
    return small if len(small) <= len(data) - len(data) // 16 else None


def inflated(codec: str, data: bytes) -> bytes:
    """The bytes as they were before they were compressed, if they were."""
    if codec == "":
        return data
    if codec not in FRAMES:
        raise ValueError(f"no codec {codec!r} is known")
    try:
        return zlib.decompress(data, FRAMES[codec])
    except zlib.error as error:
        raise ValueError(f"it cannot be inflated ({error})") from error
