"""Find the blobs that an event refers to, by the types of its fields, so that new kinds need no extra code."""

from functools import cache
from typing import Any, get_args, get_type_hints

from msgspec import UNSET, Struct

from limpet.events.values import Payload
from limpet.events.vocabulary import AnyBody

__all__ = ["blobs_of"]


def blobs_of(body: AnyBody) -> list[str]:
    """Return the ids of the blobs that a body refers to, in order and without duplicates."""
    found: list[str] = []
    for name in _carriers(type(body)):
        value = getattr(body, name)
        if type(value) is Payload and value.blob is UNSET:  # the usual case
            continue
        _gather(value, found)
    return list(dict.fromkeys(found)) if len(found) > 1 else found


def _gather(value: Any, found: list[str]) -> None:
    if type(value) is Payload:
        if value.blob is not UNSET:
            found.append(value.blob)
    elif isinstance(value, Struct):
        for name in _carriers(type(value)):
            _gather(getattr(value, name), found)
    elif value:
        for each in value.values() if isinstance(value, dict) else value:
            _gather(each, found)


@cache
def _carriers(kind: type[Struct]) -> tuple[str, ...]:
    """Return the fields of a struct that may contain a payload."""
    return tuple(name for name, hint in get_type_hints(kind).items() if _may_carry(hint))


@cache
def _may_carry(hint: Any) -> bool:
    if hint is Payload:
        return True
    if isinstance(hint, type) and issubclass(hint, Struct):
        return bool(_carriers(hint))
    return any(_may_carry(each) for each in get_args(hint))
