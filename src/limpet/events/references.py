"""Which blobs an event refers to: found by the types of its fields, so that a new kind cannot be forgotten."""

from collections.abc import Iterator
from functools import cache
from typing import Any, get_args, get_type_hints

from msgspec import Struct, UnsetType

from limpet.events.values import Payload
from limpet.events.vocabulary import AnyBody

__all__ = ["blobs_of"]


def blobs_of(body: AnyBody) -> list[str]:
    """The ids of the blobs that a body refers to, in order, each once."""
    return list(dict.fromkeys(_blobs(body)))


def _blobs(value: Any) -> Iterator[str]:
    if type(value) is Payload:
        if not isinstance(value.blob, UnsetType):
            yield value.blob
    elif isinstance(value, Struct):
        for name in _carriers(type(value)):
            yield from _blobs(getattr(value, name))
    elif isinstance(value, dict | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _blobs(each)


@cache
def _carriers(kind: type[Struct]) -> tuple[str, ...]:
    """The fields of a struct that may hold a payload."""
    return tuple(name for name, hint in get_type_hints(kind).items() if _may_carry(hint))


@cache
def _may_carry(hint: Any) -> bool:
    if hint is Payload:
        return True
    if isinstance(hint, type) and issubclass(hint, Struct):
        return bool(_carriers(hint))
    return any(_may_carry(each) for each in get_args(hint))
