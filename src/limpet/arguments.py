"""Arguments of public functions, checked against their annotations at the call: a wrong one is named there and then.

`@checked` on a class does that for each of its public functions; `@defining` on a function or a class, for what defines
tools, agents and rules. Generic classes of ours (`Agent`, `Tool`) are not looked at here: whoever takes one says what
to do when it is none.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, wraps
from itertools import chain, repeat
from reprlib import repr as brief
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NewType,
    ParamSpecArgs,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from limpet.errors import DefinitionError, InvalidArgument, LimpetError

__all__ = ["brief", "check", "checked", "defining"]

T = TypeVar("T")
Refuse = Callable[[str, str], LimpetError]
# What every store can hold and compare.
LARGEST = 2**63 - 1


def checked(kind: type[T]) -> type[T]:
    """Have every public function of a class check its arguments; a wrong one raises InvalidArgument."""
    for name, fn in list(vars(kind).items()):
        if inspect.isfunction(fn) and not name.startswith("_") and not _passes_on(fn):
            setattr(kind, name, _wrapped(fn, lambda path, reason: InvalidArgument(path=path, reason=reason)))
    return kind


def defining(thing: T) -> T:
    """Have a function, or the making of a class's objects, check its arguments; a wrong one raises DefinitionError."""
    name = getattr(thing, "__name__", "").lstrip("_")

    def refuse(path: str, reason: str) -> LimpetError:
        return DefinitionError(what=f"{name}({path}=…)", reason=reason)

    if isinstance(thing, type):
        thing.__init__ = _wrapped(thing.__init__, refuse)  # type: ignore[misc]
        return thing
    wrapped: T = _wrapped(thing, refuse)
    return wrapped


def check(name: str, value: object, hint: Any) -> None:
    """Refuse a value that is not what an annotation says."""
    if (reason := _fault(value, hint)) is not None:
        raise InvalidArgument(path=name, reason=reason)


def _passes_on(fn: Callable[..., Any]) -> bool:
    """Whether it passes arguments on to a function of the user's, which has its own signature."""
    return any(isinstance(each.annotation, ParamSpecArgs) for each in inspect.signature(fn).parameters.values())


def _wrapped(fn: Any, refuse: Refuse) -> Any:
    def check_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        places, rest, hints = _hints(fn)
        for name, value in chain(zip(chain(places, repeat(rest)), args, strict=False), kwargs.items()):
            if name in hints and (reason := _fault(value, hints[name])) is not None:
                raise refuse(name, reason)

    @wraps(fn)
    async def called_later(*args: Any, **kwargs: Any) -> Any:
        check_call(args, kwargs)
        return await fn(*args, **kwargs)

    @wraps(fn)
    def called(*args: Any, **kwargs: Any) -> Any:
        check_call(args, kwargs)
        return fn(*args, **kwargs)

    return called_later if inspect.iscoroutinefunction(fn) else called


@cache
def _hints(fn: Callable[..., Any]) -> tuple[tuple[str, ...], str, dict[str, Any]]:
    """The names of parameters by place, of what takes all further places, and the annotations of all by name."""
    hints, places, rest = get_type_hints(fn), [], ""
    for each in inspect.signature(fn).parameters.values():
        if each.kind is each.VAR_KEYWORD:
            [more] = get_args(hints.pop(each.name, None)) or [None]
            hints |= get_type_hints(more) if is_typeddict(more) else {}
        elif each.kind is each.VAR_POSITIONAL:
            rest = each.name
        elif each.kind is not each.KEYWORD_ONLY:
            places.append(each.name)
    return tuple(places), rest, hints


def _fault(value: object, hint: Any) -> str | None:
    """Why a value is not what an annotation says; none if it is, or if that cannot be told."""
    origin = get_origin(hint)
    check = _CHECKS.get(origin or hint)
    if check is not None:
        return check(value, hint)
    is_class = (
        origin is None and isinstance(hint, type) and hint is not Any and not getattr(hint, "_is_protocol", False)
    )
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
    kinds = [type(each) for each in get_args(hint)] if kind is Literal else [kind]
    return any(isinstance(each, type) and isinstance(value, each) for each in kinds)


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


def _fault_of_items(value: Any, hint: Any) -> str | None:
    """Of something that may be gone through once only: looked into if that does no harm."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | bytearray):
        return _not(value, "a list")
    return _fault_of_many(value, Collection[get_args(hint)]) if isinstance(value, Collection) else None  # type: ignore[misc]


def _fault_of_tuple(value: Any, hint: Any) -> str | None:
    if not isinstance(value, tuple):
        return _not(value, "a tuple")
    inner = get_args(hint)
    hints = repeat(inner[0]) if inner[1:] == (...,) else inner
    return next((fault for pair in zip(value, hints, strict=False) if (fault := _fault(*pair)) is not None), None)


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


def _fault_of_type(value: object, hint: Any) -> str | None:
    above = next(iter(get_args(hint)), None)
    if isinstance(above, type) and above is not Any:
        is_below = isinstance(value, type) and issubclass(value, above)
        return None if is_below else _not(value, f"a class of {above.__name__}")
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
    Iterable: _fault_of_items,
    tuple: _fault_of_tuple,
    Callable: _fault_of_function,
    type: _fault_of_type,
    str: _fault_of_text,
    int: _fault_of_number,
    float: _fault_of_number,
}
