"""Encryption at rest: AES-256-GCM-SIV with data keys, which are wrapped by a master key that is never stored.

Every body, chunk and hidden text is bound to its place, so that moving it elsewhere is detected. Text that must be
findable is encrypted deterministically (the SIV mode is made for this); everything else gets a fresh nonce. Rotation
adds a data key for new data and wraps all keys again. Stored data is not rewritten.
"""

import base64
import binascii
import hmac
import os
from collections.abc import Callable, Collection, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from limpet.errors import ExtraMissing, LimpetError, WrongKeys
from limpet.events.codec import DEFLATED, Hasher, Packed, deflated, inflated
from limpet.stores.rows import KeyRow

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

__all__ = ["Cipher", "MasterKeys", "rotated"]

CIPHER = "aes-256-gcm-siv"
KEY_BYTES = 32
NONCE_BYTES = 12
FIXED_NONCE = bytes(NONCE_BYTES)


class MasterKeys:
    """A source of master keys, called whenever keys are needed. The first key wraps; the others only unwrap."""

    def __init__(self, source: Callable[[], bytes | Sequence[bytes]]) -> None:
        self._source = source

    @classmethod
    def from_text(cls, text: str) -> "MasterKeys":
        """Parse keys of 32 bytes each, in base64 or hex, separated by commas or white space."""
        keys = [_key(word) for word in text.replace(",", " ").split()]
        return cls(lambda: keys)

    @classmethod
    def from_file(cls, path: str | Path) -> "MasterKeys":
        """Read keys from a file with one key per line, whenever keys are needed."""
        return cls(lambda: cls.from_text(_text_of(Path(path)))._keys())

    @classmethod
    def from_env(cls, name: str) -> "MasterKeys":
        """Read keys from an environment variable, whenever keys are needed."""
        return cls(lambda: cls.from_text(os.environ.get(name, ""))._keys())

    def current(self) -> tuple[str, bytes]:
        """Return the id and the bytes of the key that wraps."""
        key = self._keys()[0]
        return _master_id(key), key

    def find(self, id: str) -> bytes | None:
        """Return the master key with an id, or None."""
        return {_master_id(key): key for key in self._keys()}.get(id)

    def _keys(self) -> Sequence[bytes]:
        try:
            given = self._source()
        except LimpetError:
            raise
        except Exception as error:
            raise WrongKeys(reason=f"cannot load the master keys ({type(error).__name__}: {error})") from error
        keys = [given] if isinstance(given, bytes) else list(given)
        if not keys:
            raise WrongKeys(reason="no master key was given")
        if any(len(key) != KEY_BYTES for key in keys):
            raise WrongKeys(reason=f"a master key must have {KEY_BYTES} bytes")
        return keys


class Cipher:
    """A codec that encrypts, with the keys of one store."""

    is_private = True

    def __init__(
        self,
        masters: MasterKeys,
        load: Callable[[], Sequence[KeyRow]],
        *,
        compress: bool = False,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._masters, self._load, self._compress, self._random = masters, load, compress, random
        self._keys: dict[str, AESGCMSIV] = {}
        self._newest = self._index = ""
        self._naming = b""
        self._unwrap_keys()

    def learn(self, keys: Collection[str]) -> None:
        """Load keys that another process has added."""
        if any(key not in self._keys for key in keys):
            self._unwrap_keys()

    def hasher(self) -> Hasher:
        """Return a keyed hash, whose names reveal nothing about the content without the key."""
        return hmac.new(self._naming, digestmod=sha256)

    def pack(self, data: bytes, about: str, *, deflate: bool = False) -> Packed:
        """Return the bytes encrypted and bound to their place; compressed first if asked for and worthwhile."""
        small = deflated(data) if deflate or self._compress else None
        codec = CIPHER if small is None else f"{DEFLATED}+{CIPHER}"
        nonce = self._random(NONCE_BYTES)
        sealed = self._keys[self._newest].encrypt(nonce, data if small is None else small, _bound(codec, about))
        return Packed(codec, self._newest, nonce + sealed)

    def unpack(self, packed: Packed, about: str) -> bytes:
        """Return the original bytes. Raises ValueError for unencrypted bytes, since this store writes none."""
        how, _, cipher = packed.codec.rpartition("+")
        if cipher != CIPHER:
            raise ValueError("not encrypted, but this store is")
        nonce, sealed = packed.data[:NONCE_BYTES], packed.data[NONCE_BYTES:]
        return inflated(how, _opened(self._key(packed.key_id), nonce, sealed, _bound(packed.codec, about)))

    def hide(self, text: str, about: str, *, findable: bool = False) -> str:
        """Return encrypted text with the id of its key."""
        id, nonce = (self._index, FIXED_NONCE) if findable else (self._newest, self._random(NONCE_BYTES))
        sealed = self._keys[id].encrypt(nonce, text.encode(), _bound("hidden", about))
        return f"{id}.{base64.urlsafe_b64encode(nonce + sealed).decode()}"

    def reveal(self, hidden: str, about: str) -> str:
        """Return the original text. Raises WrongKeys or ValueError."""
        id, dot, text = hidden.partition(".")
        if not dot:
            raise ValueError("not encrypted, but this store is")
        data = base64.urlsafe_b64decode(text)
        if base64.urlsafe_b64encode(data).decode() != text:
            raise ValueError("not in canonical base64")
        key = self._key(id)
        return _opened(key, data[:NONCE_BYTES], data[NONCE_BYTES:], _bound("hidden", about)).decode()

    def _key(self, id: str) -> "AESGCMSIV":
        if id not in self._keys:
            self._unwrap_keys()
        if id not in self._keys:
            raise WrongKeys(reason=f"the data is encrypted with key {id!r}, which was not given")
        return self._keys[id]

    def _unwrap_keys(self) -> None:
        """Unwrap the store's keys that are not in memory yet."""
        for row in self._load():
            if row.id in self._keys:
                continue
            key = _unwrapped(row, self._masters)
            self._keys[row.id] = _aead(key)
            if row.purpose == "index":
                self._naming, self._index = hmac.digest(key, b"limpet.blob.1", "sha256"), row.id
            else:
                self._newest = row.id


def rotated(
    before: Sequence[KeyRow], masters: MasterKeys, now: int, random: Callable[[int], bytes] = os.urandom
) -> tuple[KeyRow, ...]:
    """Return the keys of a store plus a new data key, all wrapped by the current master key; the first keys if it has
    none.
    """
    created = max((now, *(row.created + 1 for row in before)))
    keys = [(row, _unwrapped(row, masters)) for row in before]
    if not before:
        keys.append((KeyRow(random(8).hex(), "index", "", b"", created), random(KEY_BYTES)))
    keys.append((KeyRow(random(8).hex(), "data", "", b"", created), random(KEY_BYTES)))
    return tuple(_wrapped(row, key, masters, random(NONCE_BYTES)) for row, key in keys)


def _wrapped(row: KeyRow, key: bytes, masters: MasterKeys, nonce: bytes) -> KeyRow:
    master, wrapping = masters.current()
    sealed = _aead(wrapping).encrypt(nonce, key, _bound(f"key:{row.purpose}", row.id))
    return row._replace(master=master, wrapped=nonce + sealed)


def _unwrapped(row: KeyRow, masters: MasterKeys) -> bytes:
    wrapping = masters.find(row.master)
    if wrapping is None:
        raise WrongKeys(reason=f"key {row.id} is wrapped with master key {row.master}, which was not given")
    nonce, sealed = row.wrapped[:NONCE_BYTES], row.wrapped[NONCE_BYTES:]
    try:
        return _opened(_aead(wrapping), nonce, sealed, _bound(f"key:{row.purpose}", row.id))
    except ValueError as error:
        raise WrongKeys(reason=f"key {row.id} is damaged") from error


def _opened(key: "AESGCMSIV", nonce: bytes, sealed: bytes, bound: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an optional dependency

    try:
        return key.decrypt(nonce, sealed, bound)
    except (InvalidTag, ValueError) as error:
        raise ValueError("cannot be decrypted: changed, or moved from another place") from error


def _aead(key: bytes) -> "AESGCMSIV":
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise ExtraMissing(extra="encryption") from error
    return AESGCMSIV(key)


def _bound(what: str, about: str) -> bytes:
    return f"limpet.1\0{what}\0{about}".encode()


def _master_id(key: bytes) -> str:
    return sha256(b"limpet.master.1\0" + key).hexdigest()[:16]


def _key(word: str) -> bytes:
    try:
        return bytes.fromhex(word) if len(word) == 2 * KEY_BYTES else base64.b64decode(word, altchars=b"-_")
    except (ValueError, binascii.Error) as error:
        raise WrongKeys(reason="a master key is neither base64 nor hex") from error


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise WrongKeys(reason=f"the key file {path} cannot be read") from error
