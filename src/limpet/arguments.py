"""Arguments of public functions, checked against their annotations at the call: a wrong one is named there and then.

`@checked` on a class does that for each of its public functions. Generic classes of ours (`Agent`, `Tool`) are not
looked at here: whoever takes one says what to do when it is none.
"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, wraps
from reprlib import repr as brief
from types import NoneType, UnionType
from typing import Any, Literal, NewType, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from limpet.errors import InvalidArgument

__all__ = ["brief", "check", "checked"]

C = TypeVar("C", bound=type)
# What every store can hold and compare.
LARGEST = 2**63 - 1


def checked(kind: C) -> C:
    """Have every public function of a class check its arguments."""
    for name, fn in list(vars(kind).items()):
        if inspect.isfunction(fn) and not name.startswith("_") and not _takes_any(fn):
            setattr(kind, name, _wrapped(fn))
    return kind


def check(name: str, value: object, hint: Any) -> None:
    """Refuse a value that is not what an annotation says."""
    if (reason := _fault(value, hint)) is not None:
        raise InvalidArgument(path=name, reason=reason)


def _takes_any(fn: Callable[..., Any]) -> bool:
    """Whether it passes arguments on to a function of the user's, which has its own signature."""
    return any(each.kind is each.VAR_POSITIONAL for each in inspect.signature(fn).parameters.values())


def _wrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(fn):

        @wraps(fn)
        async def called_later(*args: Any, **kwargs: Any) -> Any:
            _check_call(fn, args, kwargs)
            return await fn(*args, **kwargs)

        return called_later

    @wraps(fn)
    def called(*args: Any, **kwargs: Any) -> Any:
        _check_call(fn, args, kwargs)
        return fn(*args, **kwargs)

    return called


def _check_call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    places, hints = _hints(fn)
    for name, value in (*zip(places, args, strict=False), *kwargs.items()):
        if name in hints:
            check(name, value, hints[name])


@cache
def _hints(fn: Callable[..., Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The names of parameters by place, and the annotations of all by name."""
    hints = get_type_hints(fn)
    for each in inspect.signature(fn).parameters.values():
        if each.kind is each.VAR_KEYWORD:
            [more] = get_args(hints.pop(each.name)) or [None]
            hints |= get_type_hints(more) if is_typeddict(more) else {}
    return tuple(inspect.signature(fn).parameters), hints


def _fault(value: object, hint: Any) -> str | None:
    """Why a value is not what an annotation says; none if it is, or if that cannot be told."""
    origin = get_origin(hint)
    check = _CHECKS.get(origin or hint)
    if check is not None:
        return check(value, hint)
    is_class = origin is None and isinstance(hint, type) and hint is not Any
    return _not(value, hint.__name__) if is_class and not isinstance(value, hint) else None


def _fault_of_any(value: object, hint: Any) -> str | None:
    kinds = get_args(hint)
    faults = [_fault(value, each) for each in kinds]
    if None in faults:
        return None
    near = [fault for fault, each in zip(faults, kinds, strict=True) if _is_near(value, each)]
    return near[0] if near else _not(value, " or ".join(map(_name, kinds)))


def _is_near(value: object, hint: Any) -> bool:
    """Whether it is of the right kind, and wrong within."""
    kind = get_origin(hint) or hint
    return isinstance(kind, type) and isinstance(value, kind)


def _fault_of_literal(value: object, hint: Any) -> str | None:
    fits = any(type(value) is type(each) and value == each for each in get_args(hint))
    return None if fits else f"say one of {', '.join(map(repr, get_args(hint)))}"


def _fault_of_many(value: Any, hint: Any) -> str | None:
    kind = get_origin(hint)
    if not isinstance(value, kind) or isinstance(value, str | bytes | bytearray):
        return _not(value, "a mapping" if kind is Mapping else "a list")
    groups = (value.keys(), value.values()) if kind is Mapping else (value,)
    for items, inner in zip(groups, get_args(hint), strict=False):
        for each in items:
            if (fault := _fault(each, inner)) is not None:
                return f"in it, {fault}"
    return None


def _fault_of_text(value: object, _: Any) -> str | None:
    if not isinstance(value, str):
        return _not(value, "str")
    try:
        value.encode()
    except UnicodeEncodeError:
        return "a lone surrogate is not a character"
    return None


def _fault_of_number(value: Any, hint: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int if hint is int else int | float):
        return _not(value, hint.__name__)
    return None if abs(value) <= LARGEST else f"{brief(value)} is not a number below 2**63"


def _fault_of_type(value: object, _: Any) -> str | None:
    is_type = isinstance(value, type | UnionType | NewType) or get_origin(value) is not None
    return None if is_type or value is Any or value is None else _not(value, "a type")


def _fault_of_function(value: object, _: Any) -> str | None:
    return None if callable(value) else _not(value, "a function")


def _not(value: object, wanted: str) -> str:
    return f"it is {'None' if value is None else type(value).__name__}, and must be {wanted}"


def _name(hint: Any) -> str:
    return "None" if hint is NoneType else getattr(hint, "__name__", str(hint))


_CHECKS: Mapping[Any, Callable[[Any, Any], str | None]] = {
    Union: _fault_of_any,
    UnionType: _fault_of_any,
    Literal: _fault_of_literal,
    Sequence: _fault_of_many,
    Collection: _fault_of_many,
    Mapping: _fault_of_many,
    Callable: _fault_of_function,
    type: _fault_of_type,
    str: _fault_of_text,
    int: _fault_of_number,
    float: _fault_of_number,
}
