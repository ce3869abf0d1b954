"""Conditions on JSON, as people type them: `cents>100`, `order.id=o-1`, `to~example`."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from limpet.errors import InvalidArgument

__all__ = ["Condition", "all_of", "condition"]

Condition = Callable[[Any], bool]
FORM = re.compile(r"([\w.-]++)\s*+(<=|>=|!=|=|<|>|~)(.*)", re.DOTALL)
MOST, LONGEST = 20, 1_000
ORDER = ("<", "<=", ">", ">=")
NOWHERE: Any = object()


def all_of(texts: Sequence[str]) -> Condition:
    """Whether all of some conditions hold."""
    if len(texts) > MOST or any(len(text) > LONGEST for text in texts):
        raise InvalidArgument(path="where", reason=f"at most {MOST} conditions, of {LONGEST} characters, are looked at")
    each = [condition(text) for text in texts]
    return lambda value: all(holds(value) for holds in each)


def condition(text: str) -> Condition:
    """Whether one holds: a path, how it is compared (`~` for contains), and JSON or plain text."""
    found = FORM.fullmatch(text.strip())
    if found is None:
        reason = f"{text!r} is no condition: say a name, one of = != < <= > >= ~, and a value, such as cents>100"
        raise InvalidArgument(path="where", reason=reason)
    path, how = found[1].split("."), found[2]
    wanted = found[3].strip() if how == "~" else _value(found[3].strip())

    def holds(value: Any) -> bool:
        at = _at(value, path)
        if at is NOWHERE or (how in ORDER and not _have_order(at, wanted)):
            return False
        return HOW[how](at, wanted)

    return holds


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _at(value: Any, path: Sequence[str]) -> Any:
    for name in path:
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return NOWHERE
    return value


def _is_same(one: Any, other: Any) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _have_order(one: Any, other: Any) -> bool:
    """Whether there is an order between them: both are numbers, or texts."""
    return any(isinstance(one, kind) and isinstance(other, kind) for kind in (int | float, str))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


HOW: Mapping[str, Callable[[Any, Any], bool]] = {
    "~": lambda found, wanted: str(wanted).casefold() in _text(found).casefold(),
    "=": _is_same,
    "!=": lambda found, wanted: not _is_same(found, wanted),
    "<": lambda found, wanted: bool(found < wanted),
    "<=": lambda found, wanted: bool(found <= wanted),
    ">": lambda found, wanted: bool(found > wanted),
    ">=": lambda found, wanted: bool(found >= wanted),
}
