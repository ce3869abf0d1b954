"""Arguments and results of a tool in the usual case, prepared when its first step starts."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from msgspec import Struct

from limpet.engine.definitions.types import TypeCodec, seems_json
from limpet.errors import InvalidValue
from limpet.events import Payload, canonical
from limpet.events.values import canonical_if_json, decode
from limpet.secret import MARK
from limpet.stores.blobs import INLINE

__all__ = ["BoundArguments", "PlainCall"]

# The marker of a secret in encoded values.
MARKED = MARK.encode()


class BoundArguments(Struct, frozen=True, gc=False):
    """The arguments of a call."""

    encoded: bytes
    """As canonical JSON, without those that equal a default."""
    passed: dict[str, Any]
    """For the function; it may change them."""

    @property
    def digest(self) -> str:
        """Digest of the encoded arguments."""
        return sha256(self.encoded).hexdigest()


class PlainCall:
    """Converts arguments and results that need nothing special: no secret, no upgrade, no blob."""

    def __init__(self, names: Sequence[str], codecs: Mapping[str, TypeCodec], defaults: Mapping[str, Any]) -> None:
        self._names, self._codecs, self._defaults = names, codecs, defaults
        self._known = codecs.keys() - {"return"}
        self._take_json = all(codecs[name].takes_json for name in self._known)
        self._required = self._known - defaults.keys()
        self._all_by_position = len(names) if self._known == set(names) else -1
        self._result = codecs["return"]

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundArguments | None:
        """Return the arguments; None if they are not plain, or invalid."""
        if len(args) > len(self._names):
            return None
        given = dict(zip(self._names, args, strict=False))
        if kwargs:
            if not kwargs.keys().isdisjoint(given):
                return None
            given.update(kwargs)
        has_all = len(args) == self._all_by_position and not kwargs
        if not has_all and not self._required <= given.keys() <= self._known:
            return None
        try:
            return self._bound(given)
        except InvalidValue:
            return None

    def _bound(self, given: dict[str, Any]) -> BoundArguments | None:
        codecs = self._codecs
        for name, value in given.items():
            if not codecs[name].is_unchanged(value):
                passed, encoded = None, self._encoded(given)
                break
        else:
            passed = self._without_defaults(given)
            encoded = canonical(passed)
        if len(encoded) > INLINE or MARKED in encoded:
            return None
        if passed is None:
            passed = {name: codecs[name].load(plain) for name, plain in decode(encoded).items()}
        return BoundArguments(encoded, passed)

    def _encoded(self, given: dict[str, Any]) -> bytes:
        """Return arguments as they are recorded. Those that are JSON already are encoded once, without conversion."""
        seem_json = self._take_json and all(map(seems_json, given.values()))
        encoded = canonical_if_json(given) if seem_json else None
        if encoded is None:
            plain = {name: self._codecs[name].plain(value) for name, value in given.items()}
            return canonical(self._without_defaults(plain))
        changed = self._without_defaults(given)
        return encoded if len(changed) == len(given) else canonical(changed)

    def _without_defaults(self, plain: dict[str, Any]) -> dict[str, Any]:
        """Return JSON arguments without those that equal a default."""
        defaults = self._defaults
        if defaults.keys().isdisjoint(plain):
            return plain
        return {name: value for name, value in plain.items() if name not in defaults or value != defaults[name]}

    def encode(self, output: object) -> tuple[bytes, bool] | None:
        """Return a result as canonical JSON, perhaps a large one, and whether every replay returns it unchanged.

        None if it is not plain, or cannot be stored.
        """
        is_unchanged = self._result.is_unchanged(output)
        try:
            encoded = canonical(output) if is_unchanged else self._result.encode(output)
        except InvalidValue:
            return None
        return None if MARKED in encoded else (encoded, is_unchanged)

    def load_recorded(self, output: Payload) -> Any:
        """Return a recorded result. Raises InvalidValue if it does not match its type."""
        plain = output.value()
        return plain if self._result.is_unchanged(plain) else self._result.load(plain)

    def load(self, encoded: bytes) -> Any:
        """Return a result as every replay will return it. Raises InvalidValue if it does not match its type."""
        return self._result.load(decode(encoded))
