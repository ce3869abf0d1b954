"""Versioned types: a value stored under an older version of a type is upgraded when it is read.

The version is stored beside the data, never inside it. An upgrade is a plain function over JSON, from one version to
the next. Stored data is not changed.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

import msgspec
from typing_extensions import is_typeddict

from limpet.arguments import defining
from limpet.errors import DefinitionError, InvalidValue

__all__ = ["NOTHING", "Versions", "check_known", "has_fields", "upgraded", "versioned", "versions_of"]

T = TypeVar("T")
Versions = Mapping[str, int]
"""Versions of types by name; a missing name means version 1."""
NOTHING: Versions = MappingProxyType({})
Upgrade = Callable[[Any], Any]


class _Version(NamedTuple):
    name: str
    number: int
    upgrades: Mapping[int, Upgrade]


_declared: "WeakKeyDictionary[type, _Version]" = WeakKeyDictionary()


@defining
def versioned(
    version: int, *, upgrades: Mapping[int, Upgrade], name: str | None = None
) -> Callable[[type[T]], type[T]]:
    """Declare the version of a type, and how to upgrade the JSON of each older version to the next: `upgrades={1: fn}`.

    It works for the types of inputs, results and data of agents and tools, and for types nested in them. `name`
    defaults to the name of the class. It is stored, so it must not change.
    """
    if set(upgrades) != set(range(1, version)):
        wanted = f"upgrades from 1 to {version - 1}" if version > 1 else "none"
        reason = f"version {version} needs {wanted}, not {sorted(upgrades) or 'none'}"
        raise DefinitionError(what=name or "a version", reason=reason)

    def declare(cls: type[T]) -> type[T]:
        _declared[cls] = _Version(name or cls.__name__, version, dict(upgrades))
        return cls

    return declare


def versions_of(hint: Any) -> Versions:
    """Return the versions above 1 of all types in an annotation."""
    try:
        return _versions_of(hint)
    except TypeError:  # an annotation without a hash
        return _versions_of.__wrapped__(hint)


@lru_cache(maxsize=1024)
def _versions_of(hint: Any) -> Versions:
    found: dict[str, int] = {}
    seen: dict[str, type] = {}
    for cls in _classes(hint, set()):
        declared = _declared.get(cls)
        if declared is not None and declared.number > 1:
            if seen.setdefault(declared.name, cls) is not cls:
                raise DefinitionError(what=declared.name, reason="one annotation contains two types with this name")
            found[declared.name] = declared.number
    return found


def check_known(stored: Versions, known: Versions) -> None:
    """Raise InvalidValue if newer code wrote the value."""
    for name, number in stored.items():
        if number > known.get(name, 1):
            reason = f"written with version {number} of {name}; this code has version {known.get(name, 1)}"
            raise InvalidValue(path="$", reason=reason)


def upgraded(hint: Any, plain: Any, stored: Versions, fits: Callable[[Any, Any], bool]) -> Any:
    """Return a stored value upgraded to the current types.

    Outer types are upgraded before inner ones, so that fields are in place. `fits` tells which type of a union a value
    has.
    """
    return _Upgrader(stored, fits).value(hint, plain)


class _Upgrader:
    def __init__(self, stored: Versions, fits: Callable[[Any, Any], bool]) -> None:
        self._stored, self._fits = stored, fits

    def value(self, hint: Any, plain: Any) -> Any:
        hint = _without_annotated(hint)
        if plain is None or not versions_of(hint):
            return plain
        if get_origin(hint) in (Union, UnionType):
            return self._one_of([each for each in get_args(hint) if each is not NoneType], plain)
        if isinstance(hint, type) and isinstance(plain, dict):
            return self._record(hint, plain)
        args = get_args(hint)
        if isinstance(plain, dict) and len(args) == 2:
            return {key: self.value(args[1], each) for key, each in plain.items()}
        if isinstance(plain, list) and args:
            fixed = get_origin(hint) is tuple and args[-1] is not ...
            kinds = args if fixed else (args[0],) * len(plain)
            return [self.value(kind, each) for kind, each in zip(kinds, plain, strict=False)]
        return plain

    def _one_of(self, hints: list[Any], plain: Any) -> Any:
        """Upgrade as the first type of a union that the result fits, or as its only type."""
        for hint in hints:
            try:
                found = self.value(hint, plain)
            except InvalidValue:
                if len(hints) == 1:
                    raise
                continue
            if len(hints) == 1 or self._fits(hint, found):
                return found
        return plain

    def _record(self, cls: type, plain: Any) -> Any:
        declared = _declared.get(cls)
        if declared is not None:
            plain = self._apply_upgrades(declared, plain)
        if not isinstance(plain, dict):
            return plain
        found = dict(plain)
        for kind, names in _fields(cls):
            for name in names:
                if name in found:
                    found[name] = self.value(kind, found[name])
        return found

    def _apply_upgrades(self, declared: _Version, plain: Any) -> Any:
        for number in range(self._stored.get(declared.name, 1), declared.number):
            try:
                plain = declared.upgrades[number](plain)
            except Exception as error:
                reason = f"upgrading {declared.name} from version {number} failed: {type(error).__name__}: {error}"
                raise InvalidValue(path="$", reason=reason) from error
        return plain


def _without_annotated(hint: Any) -> Any:
    return _without_annotated(get_args(hint)[0]) if get_origin(hint) is Annotated else hint


def _classes(hint: Any, seen: set[Any]) -> Iterator[type]:
    """Yield every class in an annotation, and in the fields of those classes."""
    hint = _without_annotated(hint)
    if isinstance(hint, type) and not get_args(hint):
        if hint in seen:
            return
        seen.add(hint)
        yield hint
        for kind, _ in _fields(hint):
            yield from _classes(kind, seen)
    for each in get_args(hint):
        yield from _classes(each, seen)


def _fields(cls: type) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Yield the fields of a record: the type of each, and its possible names in JSON."""
    if hasattr(cls, "__pydantic_validator__") and hasattr(cls, "model_fields"):
        for name, field in cls.model_fields.items():
            alias = field.alias if isinstance(field.alias, str) else name
            yield field.annotation, tuple({name, alias})
    elif issubclass(cls, msgspec.Struct):
        hints = get_type_hints(cls)
        for each in msgspec.structs.fields(cls):
            yield hints[each.name], (each.encode_name,)
    elif has_fields(cls):
        for name, kind in get_type_hints(cls).items():
            yield kind, (name,)


def has_fields(cls: type) -> bool:
    """Return whether a class is a record other than a pydantic model."""
    is_named_tuple = issubclass(cls, tuple) and hasattr(cls, "_fields")
    return is_named_tuple or dataclasses.is_dataclass(cls) or is_typeddict(cls) or issubclass(cls, msgspec.Struct)
