"""Check the arguments of public functions against their annotations, when they are called.

`@checked` on a class checks each of its public methods. `@defining` checks a function or a class that defines tools,
agents and rules. Limpet's generic classes (`Agent`, `Tool`) are not checked here: each function that takes one raises
its own error.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, wraps
from itertools import chain, repeat
from math import isfinite
from reprlib import repr as short_repr
from types import FunctionType, NoneType, UnionType
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
# The largest integer that every store can store and compare.
LARGEST = 2**63 - 1


def brief(value: object) -> str:
    """Return a short form of a value for messages; a function is shown by its name."""
    if not isinstance(value, FunctionType):
        return short_repr(value)
    return "a lambda" if value.__name__ == "<lambda>" else f"function {value.__name__}"


def checked(kind: type[T]) -> type[T]:
    """Make every public method of a class check its arguments. An invalid one raises InvalidArgument."""
    for name, fn in list(vars(kind).items()):
        if inspect.isfunction(fn) and not name.startswith("_") and not _passes_on(fn):
            setattr(kind, name, _wrapped(fn, lambda path, reason: InvalidArgument(path=path, reason=reason)))
    return kind


def defining(thing: T) -> T:
    """Make a function, or a class's `__init__`, check its arguments. An invalid one raises DefinitionError."""
    name = getattr(thing, "__name__", "").lstrip("_")

    def refuse(path: str, reason: str) -> LimpetError:
        return DefinitionError(what=f"{name}({path}=…)", reason=reason)

    if isinstance(thing, type):
        thing.__init__ = _wrapped(thing.__init__, refuse)  # type: ignore[misc]
        return thing
    wrapped: T = _wrapped(thing, refuse)
    return wrapped


def check(name: str, value: object, hint: Any) -> None:
    """Raise InvalidArgument if a value does not match an annotation."""
    if (reason := _finder(hint)(value)) is not None:
        raise InvalidArgument(path=name, reason=reason)


def _passes_on(fn: Callable[..., Any]) -> bool:
    """Return whether the function passes arguments on to a user's function, which has its own signature."""
    return any(isinstance(each.annotation, ParamSpecArgs) for each in inspect.signature(fn).parameters.values())


def _wrapped(fn: Any, refuse: Refuse) -> Any:
    def check_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        places, rest, options, finders = _finders(fn)
        given = zip(places if rest is None else chain(places, repeat(rest)), args, strict=False)
        for name, value in chain(given, kwargs.items()):
            if name in finders and (reason := finders[name](value)) is not None:
                raise refuse(name, reason)
        if options is not None and (unknown := next((name for name in kwargs if name not in options), None)):
            raise refuse(unknown, f"unknown option; allowed: {', '.join(options) or 'none'}")

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
def _finders(fn: Callable[..., Any]) -> tuple[tuple[str, ...], str | None, list[str] | None, dict[str, "Find"]]:
    """Return the positional parameters, the name of `*args` if any, all names that may be passed by name (None: any
    name), and a check per parameter.
    """
    hints, places, rest = get_type_hints(fn), [], None
    options: list[str] | None = []
    parameters = inspect.signature(fn).parameters.values()
    for each in parameters:
        if each.kind is each.VAR_KEYWORD:
            [more] = get_args(hints.pop(each.name, None)) or [None]
            more = get_origin(more) or more  # a TypedDict, perhaps a generic one
            named = get_type_hints(more) if is_typeddict(more) else None
            options = None if named is None else [*named]
            hints |= named or {}
        elif each.kind is each.VAR_POSITIONAL:
            rest = each.name
        elif each.kind is not each.KEYWORD_ONLY:
            places.append(each.name)
    if options is not None:
        by_name = (each for each in parameters if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD))
        options += [each.name for each in by_name if each.name != "self"]
    return tuple(places), rest, options, {name: _finder(hint) for name, hint in hints.items()}


Fault = str | None
Find = Callable[[Any], Fault]


@cache
def _finder(hint: Any) -> Find:
    """Return a check that gives the reason why a value does not match an annotation, or None if it does.

    Annotations that cannot be checked accept everything.
    """
    origin = get_origin(hint)
    make = _MAKERS.get(origin or hint)
    if make is not None:
        return make(hint)
    is_protocol = getattr(hint, "_is_protocol", False) and not getattr(hint, "_is_runtime_protocol", False)
    if origin is None and isinstance(hint, type) and hint is not Any and not is_protocol:
        return lambda value: None if isinstance(value, hint) else _not(value, hint.__name__)
    return lambda _: None


def _any(hint: Any) -> Find:
    kinds = get_args(hint)
    finders = [_finder(each) for each in kinds]
    by_type = {get_origin(kind) or kind: each for kind, each in zip(kinds, finders, strict=True)}
    wanted = " or ".join(map(_name, kinds))

    def find(value: Any) -> Fault:
        likely = by_type.get(type(value))
        if likely is not None and likely(value) is None:  # The usual case: no other check has to explain itself.
            return None
        faults = []
        for each in finders:
            if (fault := each(value)) is None:
                return None
            faults.append(fault)
        near = [fault for fault, kind in zip(faults, kinds, strict=True) if _is_near(value, kind)]
        return near[0] if near else _not(value, wanted)

    return find


def _is_near(value: object, hint: Any) -> bool:
    """Return whether a value has the right type, and only its content is wrong."""
    kind = get_origin(hint) or hint
    kinds = [type(each) for each in get_args(hint)] if kind is Literal else [kind]
    return any(isinstance(each, type) and isinstance(value, each) for each in kinds)


def _literal(hint: Any) -> Find:
    allowed = get_args(hint)
    wanted = f"must be one of {', '.join(map(repr, allowed))}"
    return lambda value: None if any(type(value) is type(each) and value == each for each in allowed) else wanted


def _many(hint: Any) -> Find:
    kind, finders = get_origin(hint), [_finder(each) for each in get_args(hint)]

    def find(value: Any) -> Fault:
        if not isinstance(value, kind) or isinstance(value, str | bytes | bytearray):
            return _not(value, "a mapping" if kind is Mapping else "a list")
        if not isinstance(value, Collection):
            return None  # An iterator can be consumed only once, so its items are not checked here.
        groups: tuple[Iterable[Any], ...] = (value.keys(), value.values()) if isinstance(value, Mapping) else (value,)
        for items, inner in zip(groups, finders, strict=False):
            for each in items:
                if (fault := inner(each)) is not None:
                    return f"an item is invalid: {fault}"
        return None

    return find


def _tuple(hint: Any) -> Find:
    inner = get_args(hint)
    finders = [_finder(each) for each in inner if each is not ...]
    is_endless = len(finders) < len(inner)

    def find(value: Any) -> Fault:
        if not isinstance(value, tuple):
            return _not(value, "a tuple")
        each_its_own = repeat(finders[0]) if is_endless else finders
        return next((fault for one, each in zip(value, each_its_own, strict=False) if (fault := each(one))), None)

    return find


def _text(_: Any) -> Find:
    def find(value: Any) -> Fault:
        if not isinstance(value, str):
            return _not(value, "str")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                return "contains a lone surrogate"
        return None

    return find


def _number(hint: Any) -> Find:
    def find(value: Any) -> Fault:
        if isinstance(value, bool) or not isinstance(value, int if hint is int else int | float):
            return _not(value, hint.__name__)
        if isinstance(value, float):
            return None if isfinite(value) else f"{value} is not a finite number"
        return None if hint is float or abs(value) <= LARGEST else f"{brief(value)} has more than 64 bits"

    return find


def _type(hint: Any) -> Find:
    above = next(iter(get_args(hint)), None)

    def find(value: Any) -> Fault:
        if isinstance(above, type) and above is not Any:
            is_below = isinstance(value, type) and issubclass(value, above)
            return None if is_below else _not(value, f"a subclass of {above.__name__}")
        is_type = isinstance(value, type | UnionType | NewType) or get_origin(value) is not None
        return None if is_type or value is Any or value is None else _not(value, "a type")

    return find


def _function(_: Any) -> Find:
    return lambda value: None if callable(value) else _not(value, "a function")


def _not(value: object, wanted: str) -> str:
    found = f"must be {wanted}, not {'None' if value is None else type(value).__name__}"
    is_number = isinstance(value, int) and not isinstance(value, bool) and "str" in wanted.split(" or ")
    return f"{found}; pass the string {str(value)!r}" if is_number else found


def _name(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    return "None" if hint is NoneType else getattr(hint, "__name__", str(hint))


_MAKERS: Mapping[Any, Callable[[Any], Find]] = {
    Union: _any,
    UnionType: _any,
    Literal: _literal,
    Sequence: _many,
    Collection: _many,
    Mapping: _many,
    Iterable: _many,
    tuple: _tuple,
    Callable: _function,
    type: _type,
    str: _text,
    int: _number,
    float: _number,
}
