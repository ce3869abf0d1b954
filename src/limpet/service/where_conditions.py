"""Conditions on JSON values: `cents>100`, `order.id=o-1`, `to~example`."""

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
MISSING: Any = object()


def all_of(texts: Sequence[str]) -> Condition:
    """Return a condition that is true if all of these are."""
    if len(texts) > MOST or any(len(text) > LONGEST for text in texts):
        raise InvalidArgument(path="where", reason=f"at most {MOST} conditions of {LONGEST} characters")
    each = [condition(text) for text in texts]
    return lambda value: all(holds(value) for holds in each)


def condition(text: str) -> Condition:
    """Parse a condition: a path, an operator (`~` means contains), and JSON or plain text."""
    found = FORM.fullmatch(text.strip())
    if found is None:
        reason = f"invalid condition {text!r}; write a name, one of = != < <= > >= ~, and a value, such as cents>100"
        raise InvalidArgument(path="where", reason=reason)
    path, how = found[1].split("."), found[2]
    expected = found[3].strip() if how == "~" else _value(found[3].strip())

    def holds(value: Any) -> bool:
        at = _at(value, path)
        if at is MISSING or (how in ORDER and not _have_order(at, expected)):
            return False
        return OPERATORS[how](at, expected)

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
            return MISSING
    return value


def _is_same(one: Any, other: Any) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _have_order(one: Any, other: Any) -> bool:
    """Return whether two values can be ordered: both are numbers, or both are texts."""
    return any(isinstance(one, kind) and isinstance(other, kind) for kind in (int | float, str))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "~": lambda found, expected: str(expected).casefold() in _text(found).casefold(),
    "=": _is_same,
    "!=": lambda found, expected: not _is_same(found, expected),
    "<": lambda found, expected: bool(found < expected),
    "<=": lambda found, expected: bool(found <= expected),
    ">": lambda found, expected: bool(found > expected),
    ">=": lambda found, expected: bool(found >= expected),
}
