"""Conversion of declared types to JSON and back, by annotation.

msgspec converts plain types, dataclasses, TypedDicts, its own structs and dates. pydantic converts its own models. It
is slow to import, so only this module imports it, when a declared type needs it. A value without a declared type must
be plain JSON, and is returned unchanged; `canonical` refuses anything else. A secret, ours or pydantic's, becomes a
marker in JSON, and loads without its value.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial
from inspect import Parameter, formatannotation
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from limpet.engine.definitions.schema_check import PYTHON_NAMES, faults, kind_of
from limpet.engine.definitions.upgrades import Versions, check_known, has_fields, upgraded, versions_of
from limpet.errors import DefinitionError, InvalidValue, place_of
from limpet.events import canonical
from limpet.events.values import canonical_if_json, decode, not_json
from limpet.secret import MARK, SCHEMA, Secret, hidden, is_secret

__all__ = ["TYPED", "TypeCodec", "codec_of", "seems_json"]

# Not converted, so that `canonical` refuses them: JSON has no bytes.
_NOT_JSON = (bytes, bytearray, memoryview)
_UNDECLARED = (Any, object, Parameter.empty)
# Types whose values are JSON already.
_PLAIN = (str, int, float, bool, type(None))
_JSON = (*_PLAIN, dict, list)
TYPED = "Pass a value of the declared type; as JSON, with the same names and types."
# The text that pydantic shows for its own secrets.
_STARS = "*" * 10


class TypeCodec:
    """Converts values of one annotation to JSON and back."""

    def __init__(self, hint: Any) -> None:
        self._hint = hint
        self._adapter = _adapter(hint) if _has_model(hint) else None
        self._is_secret = all(map(is_secret, _kinds(hint)))
        self._unchanged = frozenset() if self._adapter is not None else _unchanged(hint)
        self.versions: Versions = versions_of(hint)
        """Versions of the types in the annotation that are above 1."""

    @property
    def takes_json(self) -> bool:
        """Whether a value that is JSON already is recorded without conversion.

        A conversion refuses a dict in place of a pydantic model, and text in place of a secret.
        """
        return self._adapter is None and not self._is_secret

    @property
    def name(self) -> str:
        """Name of the annotation, for messages."""
        return getattr(self._hint, "__name__", str(self._hint))

    def is_unchanged(self, value: object) -> bool:
        """Return whether a value is plain JSON of the declared type, so that neither `plain` nor `load` changes it."""
        return type(value) in self._unchanged

    def dump(self, value: object) -> Any:
        """Return a value as plain JSON. Raises InvalidValue if JSON cannot represent it."""
        plain = self.plain(value)
        canonical(plain)
        return plain

    def plain(self, value: object) -> Any:
        """Return a value as JSON, usually a copy, without the final check; the caller checks it when it stores it."""
        if type(value) in _PLAIN and self.takes_json:
            return value
        data = self._encoded_if_json(value)
        return self._converted(value) if data is None else decode(data)

    def encode(self, value: object) -> bytes:
        """Return a value as canonical JSON. Raises InvalidValue if JSON cannot represent it."""
        data = self._encoded_if_json(value)
        return canonical(self._converted(value)) if data is None else data

    def _encoded_if_json(self, value: object) -> bytes | None:
        """Return a list or dict that is JSON already as canonical JSON; None for a value that must be converted."""
        if type(value) in (dict, list) and self.takes_json and seems_json(value):
            return canonical_if_json(value)
        return None

    def _converted(self, value: object) -> Any:
        try:
            return self._plain(value)
        except InvalidValue:
            raise
        except Exception as error:  # errors of msgspec, of pydantic, or of a user's model
            raise _invalid(error) from error

    def load(self, plain: Any, versions: Versions | None = None) -> Any:
        """Return a value of the declared type. Raises InvalidValue if the JSON does not match it.

        `versions` are the versions of the types that the value was stored with. None means the current ones.
        """
        if versions is not None:
            plain = self.upgrade(plain, versions)
        if self._hint in _UNDECLARED or (type(plain) is self._hint and self._hint in _PLAIN):
            return plain
        try:
            if self._adapter is not None:  # as JSON, strict mode accepts a date as text, but not a number as text
                return self._adapter.validate_json(canonical(plain), strict=True, by_alias=True, by_name=True)
            return msgspec.convert(plain, self._hint, strict=True, str_keys=True, dec_hook=_from_json)
        except InvalidValue:
            raise
        except Exception as error:  # errors of msgspec, of pydantic, or of a user's model
            raise _invalid(error) from error

    def upgrade(self, plain: Any, versions: Versions) -> Any:
        """Upgrade JSON that was stored with these versions of types to the current ones."""
        if not versions and not self.versions:  # the usual case
            return plain
        check_known(versions, self.versions)
        return upgraded(self._hint, plain, versions, _fits)

    @property
    def annotation(self) -> str:
        """The annotation for people: without the names of modules."""
        return re.sub(r"\b(?:[A-Za-z_]\w*\.)+(?=\w)", "", formatannotation(self._hint))

    def faults(self, plain: Any, name: str = "value") -> tuple[str, ...]:
        """Return all mismatches of a value, each with its place; an empty tuple if it loads.

        `name` is that of the whole value.
        """
        try:
            self.load(plain)
        except InvalidValue as error:
            if self._adapter is None:
                return tuple(faults(plain, self.schema(), name)) or (error.at(name),)
            return tuple(f"{place_of(path, name)}: {why}" for path, why in _each(error.__cause__)) or (error.at(name),)
        return ()

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the annotation."""
        if self._hint in _UNDECLARED:
            return {}
        if self._adapter is not None:
            found: dict[str, Any] = self._adapter.json_schema(by_alias=False)
            return found
        try:
            return msgspec.json.schema(self._hint, schema_hook=_schema_of)
        except TypeError as error:
            *_, reason = str(error).splitlines()  # the lines before are about arguments of msgspec
            if "Secret" in reason:
                reason = "a secret must not be a default value; use a default factory"
            raise DefinitionError(what=f"{self._hint}", reason=reason) from error

    def _plain(self, value: object) -> Any:
        if self._adapter is not None:
            dump = partial(self._adapter.dump_python, value, by_alias=False, warnings="error")
            return _marked(dump(mode="json"), dump)
        if self._is_secret and type(value) in (str, bytes):
            reason = f"expected Secret, got {kind_of(value)}; pass limpet.Secret(…), or the log would contain it"
            raise InvalidValue(path="$", reason=reason, fix=TYPED)
        if self._hint in _UNDECLARED and not _is_record(value):
            return hidden(value)
        plain = msgspec.to_builtins(
            value, builtin_types=_NOT_JSON, str_keys=True, enc_hook=_as_json, order="deterministic"
        )
        return _as_lists(plain)


def seems_json(value: object) -> bool:
    """Return whether a value may be JSON, judged by its type and that of a list's first item.

    This only saves time: `canonical_if_json` decides.
    """
    first = value[0] if type(value) is list and value else None
    return type(value) in _JSON and type(first) in _JSON


def codec_of(hint: Any) -> TypeCodec:
    """Return the codec of a resolved annotation; `Any` means plain JSON."""
    try:
        return _cached(hint)
    except TypeError:  # an annotation without a hash
        return TypeCodec(hint)


@lru_cache(maxsize=1024)
def _cached(hint: Any) -> TypeCodec:
    return TypeCodec(hint)


def _unchanged(hint: Any) -> frozenset[type]:
    """Return the plain types whose values an annotation accepts as they are."""
    if hint in _UNDECLARED:
        return frozenset(_PLAIN)
    kinds = [NoneType if each is None else each for each in get_args(hint)] if _is_union(hint) else [hint]
    return frozenset(kinds) if all(each in _PLAIN for each in kinds) else frozenset()


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType)


def _fits(hint: Any, plain: Any) -> bool:
    try:
        codec_of(hint).load(plain)
    except InvalidValue:
        return False
    return True


def _adapter(hint: Any) -> Any:
    from pydantic import TypeAdapter  # noqa: PLC0415 - the import takes 300 ms, so it waits until a type needs it

    return TypeAdapter(hint)


def _has_model(hint: Any, seen: frozenset[Any] = frozenset()) -> bool:
    """Return whether an annotation contains something that only pydantic can convert."""
    if _is_model(hint) or _is_pydantics(hint) or _is_choice(hint):
        return True
    if isinstance(hint, type) and hint not in seen and has_fields(hint):
        return any(_has_model(each, seen | {hint}) for each in get_type_hints(hint).values())
    return any(_has_model(each, seen) for each in get_args(hint))


def _is_model(hint: Any) -> bool:
    return isinstance(hint, type) and hasattr(hint, "__pydantic_validator__")


def _is_pydantics(hint: Any) -> bool:
    """Return whether a type is one of pydantic's own, such as its secrets."""
    return isinstance(hint, type) and hint.__module__.partition(".")[0] == "pydantic"


def _is_choice(hint: Any) -> bool:
    """Return whether an annotation is a union of a secret and other types, which msgspec cannot distinguish."""
    kinds = _kinds(hint)
    return len(kinds) > 1 and any(is_secret(each) for each in kinds)


def _kinds(hint: Any) -> list[Any]:
    """Return the types of a union except None, or the one type."""
    return [each for each in get_args(hint) if each is not NoneType] if _is_union(hint) else [hint]


def _is_record(value: object) -> bool:
    """Return whether a value without a declared type has fields, and is an object in JSON."""
    kind = type(value)
    return _is_model(kind) or dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)


def _as_lists(value: Any) -> Any:
    """Return JSON with lists in place of tuples, which msgspec keeps; a declared tuple loads as a tuple."""
    if isinstance(value, dict):
        return {key: _as_lists(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_lists(each) for each in value]
    return value


def _as_json(value: Any) -> Any:
    """Convert types that msgspec does not know: Limpet's secrets, and pydantic models."""
    if isinstance(value, Secret):
        return MARK
    if _is_model(type(value)):
        dump = partial(value.model_dump, warnings="error")
        return _marked(dump(mode="json"), dump)
    raise InvalidValue(path="$", reason=not_json(value))


def _from_json(kind: Any, value: Any) -> Any:
    if is_secret(kind):
        return Secret.loaded(value)
    raise InvalidValue(path="$", reason=f"{getattr(kind, '__qualname__', kind)} cannot be loaded from JSON")


def _schema_of(kind: Any) -> dict[str, Any]:
    if is_secret(kind):
        return dict(SCHEMA)
    raise NotImplementedError


def _marked(plain: Any, dump: Callable[..., Any]) -> Any:
    """Replace pydantic's text for secrets in its dump by Limpet's marker; as text it would load as a value."""
    return _with_marks(plain, dump(mode="python")) if _STARS.encode() in msgspec.json.encode(plain) else plain


def _with_marks(plain: Any, value: Any) -> Any:
    if plain == _STARS and _is_pydantics(type(value)):
        return MARK
    if isinstance(plain, dict) and isinstance(value, Mapping) and len(plain) == len(value):
        return {key: _with_marks(*each) for key, *each in zip(plain, plain.values(), value.values(), strict=True)}
    if isinstance(plain, list) and isinstance(value, Collection) and len(plain) == len(value):
        return [_with_marks(*each) for each in zip(plain, value, strict=True)]
    return plain


def _invalid(error: BaseException) -> InvalidValue:
    """Return the error for a value that msgspec or pydantic refused. If it has several faults, the reason has all."""
    (path, reason), *others = _each(error) or [_split(str(error) or type(error).__name__)]
    text = "; ".join([reason, *(f"{place_of(where, 'value')}: {why}" for where, why in others)])
    return InvalidValue(path=path, reason=" ".join(text.split())[:500], fix=TYPED)


def _each(error: Any) -> list[tuple[str, str]]:
    """Return pydantic's errors, each with its path. They do not contain the input, only its type."""
    if not hasattr(error, "errors"):
        return []
    return [(_path(found["loc"]), _pydantic_reason(found)) for found in error.errors(include_url=False)]


def _pydantic_reason(found: Mapping[str, Any]) -> str:
    if found["type"] == "missing":
        return "missing"
    said = str(found["msg"])
    expected = _PYDANTIC_NAMES.get(found["type"]) or said.removeprefix("Input should be ")
    return said if expected == said else f"expected {expected}, got {kind_of(found['input'])}"


def _path(place: Sequence[str | int]) -> str:
    return "$" + "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in place)


_PYDANTIC_NAMES: Mapping[str, str] = {
    "int_type": "int",
    "string_type": "str",
    "bool_type": "bool",
    "float_type": "float",
    "list_type": "list",
    "dict_type": "dict",
}
_NOT_DUMPED = re.compile(r"Pydantic.*Expected `([^`]*)`.*input_type=(\w+)", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")


def _split(text: str) -> tuple[str, str]:
    """Return the path and the reason in a text of msgspec, such as "Expected `int`, got `str` - at `$.cents`".

    Of pydantic's warnings when it dumps a value, only the types are kept, because they contain the value.
    """
    if refused := _NOT_DUMPED.match(text):
        return "$", f"expected {_python_names(refused[1])}, got {refused[2]}"
    reason, _, path = text.partition(" - at `")
    path = path.removesuffix("`") or "$"
    if missing := _MISSING.fullmatch(reason):
        return f"{path}.{missing[1]}", "missing"
    if unknown := _UNKNOWN.fullmatch(reason):
        return f"{path}.{unknown[1]}", "unknown"
    if reason.startswith("Expected `"):
        reason = re.sub("`([^`]*)`", lambda found: _python_names(found[1]), reason)
        return path, f"e{reason[1:]}"
    return path, reason


def _python_names(kinds: str) -> str:
    return " or ".join(PYTHON_NAMES.get(kind.strip(), kind.strip()) for kind in kinds.split("|"))
