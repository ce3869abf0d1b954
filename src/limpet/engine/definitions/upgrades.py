"""Types that move on: what was stored under an older version of one becomes one of today when it is read.

The version stands beside the data, never inside it. An upgrade is a plain function over JSON, from one version to the
next; what is stored is not changed.
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
"""The versions of types, by name; those that are not named are 1."""
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
    """Say which version of a type this is, and how the JSON of each older one becomes the next: `upgrades={1: fn}`.

    For the types of inputs, results and data of agents and tools, at the top or inside. The name is the class's own,
    unless said; it is stored, and must not change.
    """
    if set(upgrades) != set(range(1, version)):
        wanted = f"upgrades from 1 to {version - 1}" if version > 1 else "none"
        reason = f"version {version} needs {wanted}, and has {sorted(upgrades) or 'none'}"
        raise DefinitionError(what=name or "A version", reason=reason)

    def declare(cls: type[T]) -> type[T]:
        _declared[cls] = _Version(name or cls.__name__, version, dict(upgrades))
        return cls

    return declare


def versions_of(hint: Any) -> Versions:
    """The versions of all types in an annotation that are not at their first."""
    try:
        return _versions_of(hint)
    except TypeError:  # an annotation that has no hash
        return _versions_of.__wrapped__(hint)


@lru_cache(maxsize=1024)
def _versions_of(hint: Any) -> Versions:
    found: dict[str, int] = {}
    seen: dict[str, type] = {}
    for cls in _classes(hint, set()):
        declared = _declared.get(cls)
        if declared is not None and declared.number > 1:
            if seen.setdefault(declared.name, cls) is not cls:
                raise DefinitionError(what=declared.name, reason="two types of this name are in one annotation")
            found[declared.name] = declared.number
    return found


def check_known(stored: Versions, known: Versions) -> None:
    """Refuse what a newer version of the code has written."""
    for name, number in stored.items():
        if number > known.get(name, 1):
            reason = f"it was written with version {number} of {name}, and {known.get(name, 1)} is the newest known"
            raise InvalidValue(path="$", reason=reason)


def upgraded(hint: Any, plain: Any, stored: Versions, fits: Callable[[Any, Any], bool]) -> Any:
    """A value as today's types have it; what contains comes before what it contains, so that parts are where they are.

    `fits` says which of several types a value is of.
    """
    return _Upgrading(stored, fits).value(hint, plain)


class _Upgrading:
    def __init__(self, stored: Versions, fits: Callable[[Any, Any], bool]) -> None:
        self._stored, self._fits = stored, fits

    def value(self, hint: Any, plain: Any) -> Any:
        hint = _bare(hint)
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
        """The first that it is of, by then; the only one, whatever comes of it."""
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
            plain = self._step_by_step(declared, plain)
        if not isinstance(plain, dict):
            return plain
        found = dict(plain)
        for kind, names in _fields(cls):
            for name in names:
                if name in found:
                    found[name] = self.value(kind, found[name])
        return found

    def _step_by_step(self, declared: _Version, plain: Any) -> Any:
        for number in range(self._stored.get(declared.name, 1), declared.number):
            try:
                plain = declared.upgrades[number](plain)
            except Exception as error:
                reason = f"{declared.name} could not be upgraded from version {number}: {type(error).__name__}: {error}"
                raise InvalidValue(path="$", reason=reason) from error
        return plain


def _bare(hint: Any) -> Any:
    return _bare(get_args(hint)[0]) if get_origin(hint) is Annotated else hint


def _classes(hint: Any, seen: set[Any]) -> Iterator[type]:
    """Every class in an annotation, and in the fields of those."""
    hint = _bare(hint)
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
    """The fields of a record: what each is, and what it may be called in JSON."""
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
    """Whether a class is a record, of any kind but pydantic's."""
    is_named_tuple = issubclass(cls, tuple) and hasattr(cls, "_fields")
    return is_named_tuple or dataclasses.is_dataclass(cls) or is_typeddict(cls) or issubclass(cls, msgspec.Struct)
