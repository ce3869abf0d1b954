"""Tools: functions with a declared effect, which steps call.

`effect` must be said, because nobody else can know it: what does repeating this function mean? A tool registers its
name in the process, so that it is found again by it; the same function may be defined again (a reload, a notebook).
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, update_wrapper
from types import MappingProxyType
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    get_type_hints,
    overload,
)

from limpet.arguments import brief, defining
from limpet.clock import Duration, microseconds
from limpet.engine.definitions.call_context import is_in_agent
from limpet.engine.definitions.traits import EFFECTS, Effect, Traits
from limpet.engine.definitions.types import TypeCodec, codec_of
from limpet.engine.definitions.upgrades import Versions
from limpet.errors import DefinitionError, WrongCall
from limpet.events import Spent
from limpet.policy.retry import Retry, patience
from limpet.redaction import NOTHING, Redaction
from limpet.secret import MARK

__all__ = ["Done", "LiveArgument", "Tool", "check_tool", "find_tool", "idempotency_key", "registered_tools", "tool"]

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)
R_co = TypeVar("R_co", covariant=True)

_tools: dict[str, "Tool[..., Any, Any]"] = {}


class Done(Generic[T]):
    """It was applied, and this was its result."""

    def __init__(self, result: T) -> None:
        self.result = result


class LiveArgument(NamedTuple):
    """An argument that the log does not hold as the code gave it."""

    recorded: Any
    value: Any
    """The very object that the code gave."""


@dataclass
class Hooks:
    """What belongs to a tool, however it is called."""

    verify: Callable[..., Any] | None = None
    compensate: Callable[..., Any] | None = None


class Tool(Generic[P, T_co, R_co]):
    """A function with a declared effect."""

    def __init__(self, fn: Callable[P, R_co], name: str, traits: Traits) -> None:
        self.fn, self.name, self.traits = fn, name, traits
        self.step_name = name
        """What its steps are called in the log."""
        self.kind: Literal["tool", "model", "read"] = "tool"
        """What its steps are."""
        self.fresh: tuple[Source, ...] = ()
        """What it must not go by when that is old."""
        self.hooks = Hooks()
        update_wrapper(self, fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """The plain function, outside of an agent's own code."""
        if is_in_agent():
            reason = f"Tool {self.name} was called directly in agent code, so its result would not be recorded"
            fix = f"Write `await run.step({self.name}, ...)`. Direct calls are fine inside tools and outside runs."
            raise WrongCall(reason=reason, fix=fix)
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}, effect {self.traits.effect!r}>"

    @defining
    def options(
        self, *, name: str | None = None, retry: Retry | int | None = None, timeout: Duration | None = None
    ) -> "Tool[P, T_co, R_co]":
        """The same tool, called otherwise: under another name in the log, more patiently, for longer."""
        longer = self.traits.timeout if timeout is None else microseconds(timeout)
        other: Tool[P, T_co, R_co] = Tool(
            self.fn, self.name, replace(self.traits, retry=patience(retry) or self.traits.retry, timeout=longer)
        )
        other.step_name, other.hooks, other.kind = name or self.step_name, self.hooks, self.kind
        other.fresh = self.fresh
        return other

    def verify(
        self, fn: Callable[P, Awaitable[Done[T_co] | None] | Done[T_co] | None]
    ) -> Callable[P, Awaitable[Done[T_co] | None] | Done[T_co] | None]:
        """Say how to find out whether an attempt without an answer was applied: `Done(result)`, or None if not."""
        self.hooks.verify = self._once("verify", self.hooks.verify, fn)
        return fn

    def compensate(
        self, fn: Callable[Concatenate[T_co | None, P], Awaitable[None] | None]
    ) -> Callable[Concatenate[T_co | None, P], Awaitable[None] | None]:
        """Say how it is undone; the result comes first, None when it is not known."""
        if self.traits.effect == "none" or self.traits.irreversible:
            reason = "it has no effect" if self.traits.effect == "none" else "it is irreversible"
            raise DefinitionError(what=f"The compensation of {self.name}", reason=reason)
        self.hooks.compensate = self._once("compensate", self.hooks.compensate, fn)
        return fn

    def _once(self, what: str, before: Callable[..., Any] | None, fn: Callable[..., Any]) -> Callable[..., Any]:
        if before is not None and _origin(before) != _origin(fn):
            raise DefinitionError(what=f"{self.name}.{what}", reason="there is one already")
        return fn

    @cached_property
    def is_async(self) -> bool:
        """Whether its function is a coroutine function."""
        return inspect.iscoroutinefunction(self.fn)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """What it takes, as JSON Schema."""
        properties: dict[str, Any] = {}
        definitions: dict[str, Any] = {}
        for name, parameter in self._signature.parameters.items():
            found = self._shapes[name].schema()
            definitions.update(found.pop("$defs", {}))
            match parameter.kind:
                case inspect.Parameter.VAR_POSITIONAL:
                    properties[name] = {"type": "array", "items": found}
                case inspect.Parameter.VAR_KEYWORD:
                    properties[name] = {"type": "object", "additionalProperties": found}
                case _:
                    properties[name] = found
        required = [name for name in properties if name in self._required]
        schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        return {**schema, "$defs": definitions} if definitions else schema

    @cached_property
    def result_schema(self) -> dict[str, Any]:
        """What it gives, as JSON Schema."""
        return self._shapes["return"].schema()

    # Arguments and results, as JSON and back

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.fn)

    @cached_property
    def _shapes(self) -> Mapping[str, TypeCodec]:
        """Of every parameter and of the result; looked up late, when all names are there."""
        hints = get_type_hints(self.fn)
        return {name: codec_of(hints.get(name, Any)) for name in (*self._signature.parameters, "return")}

    def bind(
        self, args: Sequence[object], kwargs: Mapping[str, object], redaction: Redaction = NOTHING
    ) -> dict[str, Any]:
        """The arguments as JSON by their names, less those that are as by default: a new default changes nothing."""
        plain = self._plain if self._plain_names is None else self._plain_alone
        given = {name: plain(name, value) for name, value in self._bound(args, kwargs).items()}
        defaults = self._defaults
        told = {name: value for name, value in given.items() if name not in defaults or value != defaults[name]}
        recorded: dict[str, Any] = redaction.value(told)
        return recorded

    def live(
        self, args: Sequence[object], kwargs: Mapping[str, object], redaction: Redaction = NOTHING
    ) -> dict[str, LiveArgument]:
        """The arguments that are not recorded as they are: with a secret in them, or with what looks like one."""
        found: dict[str, LiveArgument] = {}
        for name, value in self._bound(args, kwargs).items():
            plain = self._plain(name, value)
            recorded = redaction.value({name: plain})[name]
            if recorded != plain or _has_mark(plain):
                found[name] = LiveArgument(recorded, value)
        return found

    def _bound(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Mapping[str, Any]:
        """The arguments by their names; written out for plain signatures, because `inspect` takes its time."""
        names = self._plain_names
        if names is not None and len(args) <= len(names):
            found = dict(zip(names, args, strict=False))
            if not (kwargs.keys() & found.keys()):
                found.update(kwargs)
                if self._required <= found.keys() <= self._known:
                    return found
        try:
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None

    def unbind(
        self, given: Mapping[str, Any], live: Mapping[str, LiveArgument] = MappingProxyType({})
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """How the function is called with arguments that were bound, and perhaps edited since.

        What the log does not hold comes from the code itself, unless somebody put something else there.
        """
        if not live and self._plain_names is not None and self._required <= given.keys() <= self._known:
            return (), {name: self._shapes[name].load(value) for name, value in given.items()}
        real = {name: each.value for name, each in live.items() if given.get(name, each.recorded) == each.recorded}
        bound = self._signature.bind_partial()
        bound.arguments.update({name: self._load(name, value) for name, value in given.items() if name not in real})
        bound.arguments.update(real)
        return bound.args, bound.kwargs

    def plain_result(self, value: object) -> Any:
        """A result as JSON, which whoever stores it checks."""
        return self._shapes["return"].plain(value)

    def load_result(self, value: Any, versions: Versions | None = None) -> Any:
        """A result as its annotation says."""
        return self._shapes["return"].load(value, versions)

    def renew(self, given: dict[str, Any], versions: Versions) -> dict[str, Any]:
        """Arguments that were stored with these versions of types, as today's have them."""
        if not versions and not self.args_versions:
            return given
        return {name: self._shapes[name].renew(value, versions) for name, value in given.items()}

    @cached_property
    def result_versions(self) -> Versions:
        """The versions of the types of its result that are not at their first."""
        return self._shapes["return"].versions

    @cached_property
    def args_versions(self) -> Versions:
        """The same for its arguments."""
        names = [name for name in self._shapes if name != "return"]
        return {each: number for name in names for each, number in self._shapes[name].versions.items()}

    @cached_property
    def _plain_names(self) -> tuple[str, ...] | None:
        """What can be given by place, if every parameter can be given by name."""
        kinds = {name: parameter.kind for name, parameter in self._signature.parameters.items()}
        if not set(kinds.values()) <= {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}:
            return None
        return tuple(name for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD)

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self._signature.parameters)

    @cached_property
    def _required(self) -> frozenset[str]:
        empty = inspect.Parameter.empty
        return frozenset(name for name, each in self._signature.parameters.items() if each.default is empty)

    @cached_property
    def _defaults(self) -> Mapping[str, Any]:
        """What parameters are by default, as JSON."""
        given = self._known - self._required
        return {name: self._plain(name, self._signature.parameters[name].default) for name in given}

    @cached_property
    def has_secret_default(self) -> bool:
        """Whether a secret that is given may look like the default."""
        return any(_has_mark(each) for each in self._defaults.values())

    def _plain_alone(self, name: str, value: Any) -> Any:
        return self._shapes[name].plain(value)

    def _plain(self, name: str, value: Any) -> Any:
        match self._signature.parameters[name].kind:
            case inspect.Parameter.VAR_POSITIONAL:
                return [self._shapes[name].plain(each) for each in value]
            case inspect.Parameter.VAR_KEYWORD:
                return {key: self._shapes[name].plain(each) for key, each in value.items()}
            case _:
                return self._plain_alone(name, value)

    def _load(self, name: str, value: Any) -> Any:
        match self._signature.parameters[name].kind:
            case inspect.Parameter.VAR_POSITIONAL:
                return tuple(self._shapes[name].load(each) for each in value)
            case inspect.Parameter.VAR_KEYWORD:
                return {key: self._shapes[name].load(each) for key, each in value.items()}
            case _:
                return self._shapes[name].load(value)


class Source(Protocol):
    """A source outside, as far as tools know it."""

    @property
    def name(self) -> str:
        """Its name."""


class _Define(Protocol):
    """What makes a function a tool."""

    @overload
    def __call__(self, fn: Callable[P, Awaitable[T]], /) -> Tool[P, T, Awaitable[T]]: ...

    @overload
    def __call__(self, fn: Callable[P, T], /) -> Tool[P, T, T]: ...


class _Declare(Protocol):
    """`tool`, as its users see it: the effect must be said."""

    def __call__(  # noqa: PLR0913 - all by name, and few at a time
        self,
        *,
        effect: Effect,
        name: str | None = None,
        risk: str | None = None,
        retry: Retry | int | None = None,
        timeout: Duration | None = None,
        not_applied: tuple[type[BaseException], ...] = (),
        irreversible: bool = False,
        max_tokens: int | None = None,
        max_cost: float | None = None,
        fresh: Sequence["Source"] = (),
        invalidates: Sequence["Source"] = (),
    ) -> _Define:
        """Make a function a tool."""


def _declare(*bare: object, effect: Any = None, name: Any = None, **more: Any) -> _Define:
    if not isinstance(effect, str) or effect not in EFFECTS:
        choices = "; ".join(f"{each!r}, {meaning}" for each, meaning in EFFECTS.items())
        said = "is not said" if effect is None else f"is {effect!r}"
        what = name or next((getattr(each, "__name__", "A tool") for each in bare), "A tool")
        raise DefinitionError(what=what, reason=f"its effect {said}: say one of {choices}")
    _check_options(name, bare, more)
    return _tool(effect=cast("Effect", effect), name=name, **more)


@defining
def _tool(  # noqa: PLR0913 - all by name
    *,
    effect: Effect,
    name: str | None = None,
    retry: Retry | int | None = None,
    timeout: Duration | None = None,
    max_tokens: int | None = None,
    max_cost: float | None = None,
    fresh: Sequence["Source"] = (),
    invalidates: Sequence["Source"] = (),
    risk: str | None = None,
    not_applied: tuple[type[BaseException], ...] = (),
    irreversible: bool = False,
) -> _Define:
    for each in (*fresh, *invalidates):
        if not isinstance(getattr(each, "name", None), str):
            raise DefinitionError(what=name or "A tool", reason=f"{brief(each)} is no source: @limpet.external(ttl=…)")
    most = Spent(tokens=max_tokens or 0, cost=max_cost or 0.0) if max_tokens or max_cost else None
    traits = Traits(
        effect=effect,
        retry=patience(retry),
        timeout=None if timeout is None else microseconds(timeout),
        most=most,
        fresh=tuple(each.name for each in fresh),
        invalidates=tuple(each.name for each in invalidates),
        risk=risk,
        not_applied=not_applied,
        irreversible=irreversible,
    )

    def define(fn: Callable[..., Any], /) -> Tool[..., Any, Any]:
        check_function("A tool", fn, name)
        made: Tool[..., Any, Any] = Tool(fn, name or fn.__name__, traits)
        made.fresh = tuple(fresh)
        _register(made)
        return made

    return cast("_Define", define)


tool: _Declare = _declare
OPTIONS = tuple(each for each in inspect.signature(_Declare.__call__).parameters if each != "self")


def _check_options(name: str | None, bare: Sequence[object], more: Mapping[str, Any]) -> None:
    """Refuse what is no option."""
    if wrong := [*map(repr, bare), *(f"{each}=" for each in more if each not in OPTIONS)]:
        hook = wrong[0].rstrip("=")
        how = f"; put @{name or 'its_name'}.{hook} on a function of its own" if hook in Hooks.__annotations__ else ""
        reason = f"there is no option {wrong[0]}: there are {', '.join(OPTIONS)}{how}"
        raise DefinitionError(what=name or "A tool", reason=reason)


def check_function(what: str, fn: object, name: str | None) -> None:
    """Refuse what cannot be called, or has no name to be recorded under."""
    if not callable(fn):
        raise DefinitionError(what=what, reason=f"{brief(fn)} is no function")
    if not name and getattr(fn, "__name__", "<lambda>") == "<lambda>":
        raise DefinitionError(what=what, reason=f"{brief(fn)} has no name to be recorded under: use def, or say name=")


def find_tool(name: str) -> Tool[..., Any, Any] | None:
    """The tool that is registered under a name in this process."""
    return _tools.get(name)


def registered_tools() -> list[Tool[..., Any, Any]]:
    """All tools that are registered in this process."""
    return list(_tools.copy().values())  # another thread may be importing tools


def check_tool(given: object) -> None:
    """Refuse what is no tool, where one is wanted."""
    if not isinstance(given, Tool):
        reason = "it is no tool: put @limpet.tool(effect=...) on the function"
        raise DefinitionError(what=f"A step of {brief(given)}", reason=reason)


def _register(made: Tool[..., Any, Any]) -> None:
    if made.traits.effect == "transaction" and made.is_async:
        raise DefinitionError(what=made.name, reason="a transaction is a plain function: it waits for nothing else")
    before = _tools.get(made.name)
    if before is not None and _origin(before.fn) != _origin(made.fn):
        other = ".".join(_origin(before.fn))
        raise DefinitionError(what=made.name, reason=f"{other} is a tool of that name already; give one of them name=")
    _tools[made.name] = made


def _has_mark(plain: Any) -> bool:
    """Whether a secret is somewhere in some JSON."""
    if isinstance(plain, dict):
        return any(map(_has_mark, plain)) or any(map(_has_mark, plain.values()))
    return any(map(_has_mark, plain)) if isinstance(plain, list) else plain == MARK


def _origin(fn: Callable[..., Any]) -> tuple[str, str]:
    return fn.__module__, fn.__qualname__


def idempotency_key(run: str, number: int, name: str, args: str) -> str:
    """The key of an action, the same on every attempt and resume; its form is frozen. `args` is their digest."""
    return f"{run}:step_{number}:{name}:{args[:16]}"
