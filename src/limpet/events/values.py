"""User data in the log: strict, plain JSON as canonical bytes.

msgspec alone would silently change some values (NaN into null, bytes into text, tuples into lists). `canonical`
therefore checks the value first and refuses anything that would not come back unchanged. There is no fallback codec,
and no content of user data has a special meaning.
"""

import hashlib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from gc import get_referents
from math import isfinite
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from limpet.errors import InvalidValue

__all__ = [
    "MAX_DEPTH",
    "Payload",
    "canonical",
    "canonical_if_json",
    "check_finite",
    "decode",
    "digest",
    "encode",
    "inline",
    "not_json",
    "parse",
]

MAX_DEPTH = 64
# Python may refuse to parse integers of more than 640 digits; 2,048 bits have 617.
MAX_INTEGER_BITS = 2048

_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder()
_SCALARS: frozenset[type] = frozenset({str, int, float, bool, type(None)})
_WITHOUT_FLOAT = _SCALARS - {float}
_WITHOUT_NUMBERS = _SCALARS - {float, int}
_CONTAINERS = frozenset({dict, list})
# Digits of an integer that may have more than MAX_INTEGER_BITS. A look at every 23rd byte rules them out for most
# values, but not for long lists of fractions.
LONG_INTEGER = 600
_EVERY = 23
_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_ZEROS, _SOME_ZEROS = b"0" * LONG_INTEGER, b"0" * (LONG_INTEGER // _EVERY)
# Members of a dict that are checked one by one first.
FEW = 16
# Bytes of JSON from which checking all values of one depth together is faster than checking each.
LARGE = 400
# Whether the collector visits the values of a dict, and its keys as well unless all of them are `str`.
_VISITS_OTHER_KEYS = (len(get_referents({"": 0})), len(get_referents({0: 0}))) == (1, 2)

# `encode` is for Limpet's own structs, whose fields are typed. User data goes through `canonical`.
encode = _encoder.encode
# `decode` is for what `canonical` returned. Other JSON goes through `parse`.
decode = _decoder.decode


class Payload(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """User data in an event. It wraps the value, and never puts markers inside it."""

    json: Raw | UnsetType = UNSET
    """The value as canonical JSON."""
    blob: str | UnsetType = UNSET
    """Or the id of a blob, which is named by content."""
    bytes: int = 0
    """Size of the blob's content, in bytes."""
    versions: dict[str, int] = {}
    """Versions of the user's types in the value, by name, where they are not the first."""

    def __post_init__(self) -> None:
        if (self.json is UNSET) == (self.blob is UNSET):
            raise ValueError("a payload is either inline or a blob")

    def __hash__(self) -> int:
        """Hash the content only; versions matter for equality."""
        return hash(self.blob if isinstance(self.json, UnsetType) else bytes(self.json))

    @property
    def is_inline(self) -> bool:
        """Whether the value is inline, not in a blob."""
        return not isinstance(self.json, UnsetType)

    @property
    def size(self) -> int:
        """Size of the JSON in bytes, inline or in a blob."""
        return self.bytes if isinstance(self.json, UnsetType) else len(bytes(self.json))

    def under(self, versions: Mapping[str, int]) -> "Payload":
        """Return a copy that records these versions of types."""
        return replace(self, versions=dict(versions)) if versions else self

    def value(self) -> Any:
        """Return the value of an inline payload. Raises InvalidValue if it is in a blob."""
        if isinstance(self.json, UnsetType):
            raise InvalidValue(path="$", reason=f"the value is in blob {self.blob}, not inline")
        return _decoder.decode(self.json)


def inline(value: object) -> Payload:
    """Return the value as an inline payload."""
    return Payload(json=Raw(canonical(value)))


def canonical(value: object) -> bytes:
    """Return the canonical encoding of a value. Raises InvalidValue if JSON cannot represent it unchanged."""
    try:
        data = _encoder.encode(value)
    except Exception:  # of the encoder, or of a user's object that it asks
        _check_whole(value)  # raises, with the place of what is wrong
        raise
    kinds = _WITHOUT_FLOAT if len(data) < LONG_INTEGER else _WITHOUT_NUMBERS
    if type(value) in kinds:
        return data
    if type(value) is dict and len(value) <= FEW:  # such as the arguments of most steps
        for key, item in value.items():
            if type(item) not in kinds or type(key) is not str:
                break
        else:
            return data
    if not _is_strict(value, data):
        _check_whole(value)
    return data


def canonical_if_json(value: object) -> bytes | None:
    """Return the canonical encoding of a value that obviously is strict JSON already; None for any other."""
    try:
        data = _encoder.encode(value)
        return data if _is_strict(value, data) else None
    except Exception:  # noqa: BLE001 - of the encoder, or of a user's object that it asks
        return None


def _is_strict(value: object, data: bytes) -> bool:
    """Return whether a value obviously comes back unchanged from its encoding; if not, `_check` finds out.

    The value was encoded, so it has no cycle, and its text has no lone surrogate. A number that is not finite was
    encoded as null.
    """
    is_long = len(data) >= LONG_INTEGER
    if is_long and _SOME_ZEROS in data[::_EVERY].translate(_AS_ZEROS) and _ZEROS in data.translate(_AS_ZEROS):
        return False
    has_null = data.rfind(b"null") >= 0
    if len(data) >= LARGE and _VISITS_OTHER_KEYS:
        return _is_strict_by_depth(value, has_null=has_null)
    return _is_strict_each(value, _WITHOUT_FLOAT if has_null else _SCALARS)


def _is_strict_by_depth(value: object, *, has_null: bool) -> bool:
    """Return whether a large value is strict. All values of one depth are checked together, by few calls."""
    level, types = [value], {type(value)}
    for _ in range(MAX_DEPTH):
        if not types <= _CONTAINERS:
            return False
        items = get_referents(*level)
        if len(items) != sum(map(len, level)):  # type: ignore[arg-type] # These are containers.
            return False  # Some keys are not `str`, or a dict belongs to an object, which has its values.
        found = set(map(type, items))
        if has_null and float in found and not all(isfinite(item) for item in items if type(item) is float):
            return False
        types = found - _SCALARS
        if not types:
            return True
        level = items if len(types) == len(found) else [item for item in items if type(item) in types]
    return False


def _is_strict_each(value: object, kinds: AbstractSet[type]) -> bool:  # noqa: C901 - calls would cost more
    """Return whether a value is strict, and has only scalars of these kinds, or finite floats."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[object] = []
        for each in level:
            if type(each) is dict:
                for key, item in each.items():
                    if type(key) is not str:
                        return False
                    if type(item) not in kinds:
                        inner.append(item)
            elif type(each) is list:
                inner += [item for item in each if type(item) not in kinds]
            elif type(each) not in kinds and not (type(each) is float and isfinite(each)):
                return False
        if not inner:
            return True
        level = inner
    return False


def parse(data: bytes | str) -> Any:
    """Parse JSON under the rules of `canonical`. Raises InvalidValue."""
    try:
        value = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidValue(path="$", reason=f"not valid JSON ({error})") from error
    _check_whole(value)
    return value


def digest(value: object) -> str:
    """Return the SHA-256 of the canonical bytes, in hex."""
    return hashlib.sha256(canonical(value)).hexdigest()


def check_finite(field: str, number: float | None) -> None:
    """Raise InvalidValue for a number that JSON would turn into null."""
    if isinstance(number, float) and not isfinite(number):
        raise InvalidValue(path=f"$.{field}", reason=f"{number} is not a JSON number")


def _check_whole(value: object) -> None:
    try:
        _check(value, 0)
    except InvalidValue as error:
        error.path = f"${error.path}"
        raise


def not_json(value: object) -> str:
    """Return why a value cannot be stored."""
    how = "; decode it to str, or store it with `run.artifact`" if isinstance(value, bytes | bytearray) else ""
    return f"{type(value).__module__}.{type(value).__qualname__} is not a JSON type{how}"


def _check(value: object, depth: int) -> None:
    if type(value) is str:
        _check_text(value)
    elif type(value) is dict:
        _check_object(value, depth + 1)
    elif type(value) is list:
        _check_array(value, depth + 1)
    elif type(value) is int or type(value) is float:
        _check_number(value)
    elif value is not None and type(value) is not bool:
        raise InvalidValue(path="", reason=not_json(value))


def _check_array(items: list[object], depth: int) -> None:
    _check_depth(depth)
    index = 0
    try:
        for index, item in enumerate(items):  # noqa: B007 - the index of a refused item
            _check(item, depth)
    except InvalidValue as error:
        error.path = f"[{index}]{error.path}"
        raise


def _check_object(members: dict[object, object], depth: int) -> None:
    _check_depth(depth)
    key: object = ""
    try:
        for key, item in members.items():
            _check_key(key)
            _check(item, depth)
    except InvalidValue as error:
        is_plain = type(key) in (str, int, float, bool, type(None))
        name = repr(key) if is_plain else f"<{type(key).__qualname__}>"  # A user's own repr may run any code.
        name = key if type(key) is str and key.isidentifier() else name
        error.path = f".{name}{error.path}"
        raise


def _check_number(number: float) -> None:
    if isinstance(number, int):
        if number.bit_length() > MAX_INTEGER_BITS:
            raise InvalidValue(path="", reason=f"the integer has more than {MAX_INTEGER_BITS} bits")
    elif not isfinite(number):
        raise InvalidValue(path="", reason=f"{number} is not a JSON number")


def _check_key(key: object) -> None:
    if type(key) is not str:
        raise InvalidValue(path="", reason="the key is not a str")
    _check_text(key)


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InvalidValue(path="", reason=f"nested more than {MAX_DEPTH} levels deep")


def _check_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidValue(path="", reason="contains a lone surrogate") from error
