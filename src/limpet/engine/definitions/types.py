"""Values as agents and tools declare them: to JSON and back, by annotation.

msgspec does what it can: plain types, dataclasses, TypedDicts, its own structs, dates. pydantic does its own models; it
takes long to import, so this module alone imports it, when a declared type needs it. What is declared nowhere must be
plain JSON, and comes back as it is: the strict walk of `canonical` refuses the rest. A secret, ours or pydantic's, is a
mark in JSON, and comes back without what it holds.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial
from inspect import Parameter
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from limpet.engine.definitions.json_schema import faults
from limpet.engine.definitions.upgrades import Versions, check_known, has_fields, upgraded, versions_of
from limpet.errors import DefinitionError, InvalidValue
from limpet.events import canonical
from limpet.secret import MARK, SCHEMA, Secret, hidden, is_secret

__all__ = ["TypeCodec", "codec_of"]

# Left as they are, so that the strict walk refuses them: JSON has no bytes.
_NOT_JSON = (bytes, bytearray, memoryview)
_UNDECLARED = (Any, object, Parameter.empty)
# As they are, they are JSON.
_PLAIN = (str, int, float, bool, type(None))
# What pydantic shows of its own secrets.
_STARS = "*" * 10


class TypeCodec:
    """How values of one annotation become JSON, and come back."""

    def __init__(self, hint: Any) -> None:
        self._hint = hint
        self._adapter = _adapter(hint) if _has_model(hint) else None
        self.versions: Versions = versions_of(hint)
        """The versions of the types in it that are not at their first."""

    def dump(self, value: object) -> Any:
        """The value as plain JSON; raises InvalidValue for what JSON cannot carry."""
        plain = self.plain(value)
        canonical(plain)
        return plain

    def plain(self, value: object) -> Any:
        """The same for whoever stores it, and checks it then."""
        if self._adapter is None and type(value) in _PLAIN:
            return value
        try:
            return self._plain(value)
        except InvalidValue:
            raise
        except Exception as error:  # msgspec's and pydantic's own, and whatever a user's model raises
            raise InvalidValue(path="$", reason=_reason(error)) from error

    def load(self, plain: Any, versions: Versions | None = None) -> Any:
        """The value of the declared type; raises InvalidValue for what is not one.

        `versions` are those of the types that it was stored with; without them it is of today.
        """
        if versions is not None:
            plain = self.renew(plain, versions)
        if self._hint in _UNDECLARED or (type(plain) is self._hint and self._hint in _PLAIN):
            return plain
        try:
            if self._adapter is not None:  # as JSON, where a date is text but a number is not
                return self._adapter.validate_json(canonical(plain), strict=True, by_alias=True, by_name=True)
            return msgspec.convert(plain, self._hint, strict=True, str_keys=True, dec_hook=_from_json)
        except InvalidValue:
            raise
        except Exception as error:  # msgspec's and pydantic's own, and whatever a user's model raises
            raise InvalidValue(path="$", reason=_reason(error)) from error

    def renew(self, plain: Any, versions: Versions) -> Any:
        """What was stored with these versions of types, as today's have it: JSON still."""
        if not versions and not self.versions:  # as most are
            return plain
        check_known(versions, self.versions)
        return upgraded(self._hint, plain, versions, _fits)

    def faults(self, plain: Any) -> tuple[str, ...]:
        """Everything that is wrong with a value that does not load, each with its path."""
        try:
            self.load(plain)
        except InvalidValue as error:
            found = _each(error.__cause__) if self._adapter is not None else faults(plain, self.schema())
            return tuple(found) or (f"$: {error.reason}",)
        return ()

    def schema(self) -> dict[str, Any]:
        """What its values look like, as JSON Schema."""
        if self._hint in _UNDECLARED:
            return {}
        if self._adapter is not None:
            found: dict[str, Any] = self._adapter.json_schema(by_alias=False)
            return found
        try:
            return msgspec.json.schema(self._hint, schema_hook=_schema_of)
        except TypeError as error:
            reason = str(error)
            if "Secret" in reason:
                reason = "a secret that is a default stands in the code: use a default factory"
            raise DefinitionError(what=f"{self._hint}", reason=reason) from error

    def _plain(self, value: object) -> Any:
        if self._adapter is not None:
            dump = partial(self._adapter.dump_python, value, by_alias=False, warnings="error")
            return _marked(dump(mode="json"), dump)
        if self._hint in _UNDECLARED and not _is_record(value):
            return hidden(value)
        plain = msgspec.to_builtins(
            value, builtin_types=_NOT_JSON, str_keys=True, enc_hook=_as_json, order="deterministic"
        )
        return _as_lists(plain)


def codec_of(hint: Any) -> TypeCodec:
    """The shape of an annotation, whose names are resolved; none means plain JSON."""
    try:
        return _cached(hint)
    except TypeError:  # an annotation that has no hash
        return TypeCodec(hint)


@lru_cache(maxsize=1024)
def _cached(hint: Any) -> TypeCodec:
    return TypeCodec(hint)


def _fits(hint: Any, plain: Any) -> bool:
    try:
        codec_of(hint).load(plain)
    except InvalidValue:
        return False
    return True


def _adapter(hint: Any) -> Any:
    from pydantic import TypeAdapter  # noqa: PLC0415 - it takes 300 ms, and most programs have it by now

    return TypeAdapter(hint)


def _has_model(hint: Any, seen: frozenset[Any] = frozenset()) -> bool:
    """Whether something that only pydantic knows is somewhere in an annotation."""
    if _is_model(hint) or _is_pydantics(hint) or _is_choice(hint):
        return True
    if isinstance(hint, type) and hint not in seen and has_fields(hint):
        return any(_has_model(each, seen | {hint}) for each in get_type_hints(hint).values())
    return any(_has_model(each, seen) for each in get_args(hint))


def _is_model(hint: Any) -> bool:
    return isinstance(hint, type) and hasattr(hint, "__pydantic_validator__")


def _is_pydantics(hint: Any) -> bool:
    """Whether it is one of pydantic's own types, such as its secrets."""
    return isinstance(hint, type) and hint.__module__.partition(".")[0] == "pydantic"


def _is_choice(hint: Any) -> bool:
    """Whether it is a secret or something else, which msgspec cannot tell apart."""
    kinds = [each for each in get_args(hint) if each is not NoneType] if get_origin(hint) in (Union, UnionType) else []
    return len(kinds) > 1 and any(is_secret(each) for each in kinds)


def _is_record(value: object) -> bool:
    """Whether a value that nobody declared has fields of its own, and so is an object in JSON."""
    kind = type(value)
    return _is_model(kind) or dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)


def _as_lists(value: Any) -> Any:
    """The same with lists for tuples, which msgspec leaves as they are: a declared tuple comes back as one."""
    if isinstance(value, dict):
        return {key: _as_lists(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_lists(each) for each in value]
    return value


def _as_json(value: Any) -> Any:
    """What msgspec does not know: our secrets, and pydantic's models."""
    if isinstance(value, Secret):
        return MARK
    if _is_model(type(value)):
        dump = partial(value.model_dump, warnings="error")
        return _marked(dump(mode="json"), dump)
    raise InvalidValue(path="$", reason=f"{type(value).__module__}.{type(value).__qualname__} is not a JSON type")


def _from_json(kind: Any, value: Any) -> Any:
    if is_secret(kind):
        return Secret.loaded(value)
    raise InvalidValue(path="$", reason=f"{getattr(kind, '__qualname__', kind)} cannot be made from JSON")


def _schema_of(kind: Any) -> dict[str, Any]:
    if is_secret(kind):
        return dict(SCHEMA)
    raise NotImplementedError


def _marked(plain: Any, dump: Callable[..., Any]) -> Any:
    """What pydantic dumped, with our mark for its secrets, too: its stars would come back as a value."""
    return _with_marks(plain, dump(mode="python")) if _STARS.encode() in msgspec.json.encode(plain) else plain


def _with_marks(plain: Any, value: Any) -> Any:
    if plain == _STARS and _is_pydantics(type(value)):
        return MARK
    if isinstance(plain, dict) and isinstance(value, Mapping) and len(plain) == len(value):
        return {key: _with_marks(*each) for key, *each in zip(plain, plain.values(), value.values(), strict=True)}
    if isinstance(plain, list) and isinstance(value, Collection) and len(plain) == len(value):
        return [_with_marks(*each) for each in zip(plain, value, strict=True)]
    return plain


def _each(error: Any) -> list[str]:
    """What pydantic found, each with its path."""
    if not hasattr(error, "errors"):
        return []
    return [f"{_path(found['loc'])}: {found['msg']}" for found in error.errors(include_url=False, include_input=False)]


def _path(place: Sequence[str | int]) -> str:
    return "$" + "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in place)


def _reason(error: BaseException) -> str:
    """In one line, without what was given: pydantic would repeat it."""
    text = "; ".join(_each(error)) or str(error)
    return " ".join(text.split())[:500] or type(error).__name__
