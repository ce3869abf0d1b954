"""Tools: functions with a declared effect, which steps call.

`effect` is required, because Limpet cannot know what repeating a function means. A tool registers its name in the
process, so that it can be found by name. The same function may be defined again (a reload, a notebook).
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from functools import cached_property, partial, update_wrapper
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

from msgspec import Struct
from msgspec.structs import replace

from limpet.arguments import brief, defining
from limpet.clock import Duration, microseconds
from limpet.engine.definitions.call_context import is_in_agent
from limpet.engine.definitions.plain_call import PlainCall
from limpet.engine.definitions.traits import EFFECTS, Effect, Traits
from limpet.engine.definitions.types import TypeCodec, codec_of
from limpet.engine.definitions.upgrades import Versions
from limpet.errors import DefinitionError, InvalidArgument, InvalidValue, LimpetError, WrongCall
from limpet.events import Spent
from limpet.policy.retry import READ_RETRY, Retry, as_retry
from limpet.redaction import NOTHING, Redaction
from limpet.secret import MARK
from limpet.stores import Missed, SendCommands

__all__ = [
    "Done",
    "LiveArgument",
    "StepCommand",
    "Tool",
    "check_tool",
    "find_tool",
    "idempotency_key",
    "registered_tools",
    "tool",
]

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)
R_co = TypeVar("R_co", covariant=True)

_tools: dict[str, "Tool[..., Any, Any]"] = {}


class Done(Generic[T]):
    """Return value of a `verify` function: the effect was applied, with this result."""

    def __init__(self, result: T) -> None:
        self.result = result


class LiveArgument(NamedTuple):
    """An argument whose recorded form differs from the value in the code."""

    recorded: Any
    value: Any
    """The value in the code, as it was when the step was called."""


class StepCommand(Protocol):
    """A command to another stream, which is sent in the append that records the step: both are stored, or neither."""

    async def prepare(self, args: Mapping[str, Any], key: str, number: int, /) -> SendCommands:
        """Return the command for the arguments, idempotency key and number of a step. It raises for a wrong one."""

    async def refusal(self, leg: SendCommands, missed: Missed, /) -> LimpetError:
        """Return the error for a command that was refused because of what others wrote."""


class Hooks(Struct):
    """Functions that belong to a tool, with any options."""

    verify: Callable[..., Any] | None = None
    compensate: Callable[..., Any] | None = None


class Tool(Generic[P, T_co, R_co]):
    """A function with a declared effect, which `run.step` calls. Create one with `@limpet.tool`."""

    def __init__(self, fn: Callable[P, R_co], name: str, traits: Traits) -> None:
        self.fn, self.name, self.traits = fn, name, traits
        self.step_name = name
        """Name of its steps in the log."""
        self.kind: Literal["tool", "model", "read"] = "tool"
        """Kind of its steps."""
        self.is_flushed = True
        """Whether a result that must be durable is flushed before its step returns. If not, the caller appends it with
        what follows from it, before anything else uses it.
        """
        self.is_for_store = False
        """Whether the function only calls the store. If the store refuses, the run stops; the step does not fail."""
        self.fresh: tuple[Source, ...] = ()
        """External sources whose data must be fresh when a step starts."""
        self.command: StepCommand | None = None
        """The command that its steps send instead of calling the function."""
        self.hooks = Hooks()
        update_wrapper(self, fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the plain function. Raises WrongCall in an agent's own code, where the result would not be recorded."""
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
        """Return the tool with other options: `name` of its steps in the log, `retry`, and `timeout` of one attempt."""
        longer = self.traits.timeout if timeout is None else microseconds(timeout)
        other = copy(self)
        other.__dict__.pop("plain_call", None)  # depends on the traits
        other.traits = replace(self.traits, retry=as_retry(retry) or self.traits.retry, timeout=longer)
        other.step_name = name or self.step_name
        return other

    def with_call(self, fn: Callable[..., Any], traits: Traits) -> "Tool[P, T_co, R_co]":
        """Return the tool for one step, with another function of the same signature.

        All steps share the properties that follow from the signature.
        """
        for name in _FROM_SIGNATURE:
            getattr(self, name)
        other = copy(self)
        other.fn, other.traits = fn, traits
        other.__dict__.pop("plain_call", None)  # depends on the traits
        return other

    def verify(
        self, fn: Callable[P, Awaitable[Done[T_co] | None] | Done[T_co] | None]
    ) -> Callable[P, Awaitable[Done[T_co] | None] | Done[T_co] | None]:
        """Set the function that finds out whether an attempt without an outcome was applied.

        It gets the arguments of the step. It returns `Done(result)` if the effect was applied and None if it was not,
        and raises if it cannot tell.
        """
        self.hooks.verify = self._check_single("verify", self.hooks.verify, fn)
        return fn

    def compensate(
        self, fn: Callable[Concatenate[T_co | None, P], Awaitable[None] | None]
    ) -> Callable[Concatenate[T_co | None, P], Awaitable[None] | None]:
        """Set the function that undoes the effect when the run fails or is cancelled.

        It gets the step's result (its partial value or None, if there is no result), then the arguments of the step.
        """
        if self.traits.effect == "none" or self.traits.irreversible:
            reason = "the tool has no effect" if self.traits.effect == "none" else "the tool is irreversible"
            raise DefinitionError(what=f"the compensation of {self.name}", reason=reason)
        self.hooks.compensate = self._check_single("compensate", self.hooks.compensate, fn)
        return fn

    def _check_single(self, what: str, before: Callable[..., Any] | None, fn: Callable[..., Any]) -> Callable[..., Any]:
        if before is not None and _origin(before) != _origin(fn):
            raise DefinitionError(what=f"{self.name}.{what}", reason="already defined")
        return fn

    @cached_property
    def is_async(self) -> bool:
        """Whether the tool's function is a coroutine function."""
        return inspect.iscoroutinefunction(self.fn)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """JSON Schema of the tool's arguments."""
        properties: dict[str, Any] = {}
        definitions: dict[str, Any] = {}
        for name, parameter in self._signature.parameters.items():
            found = self._codecs[name].schema()
            definitions.update(found.pop("$defs", {}))
            match parameter.kind:
                case inspect.Parameter.VAR_POSITIONAL:
                    properties[name] = {"type": "array", "items": found}
                case inspect.Parameter.VAR_KEYWORD:
                    properties[name] = {"type": "object", "additionalProperties": found}
                case _:
                    properties[name] = found
        various = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        required = [
            name
            for name in properties
            if name in self._required and self._signature.parameters[name].kind not in various
        ]
        schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        return {**schema, "$defs": definitions} if definitions else schema

    @cached_property
    def result_schema(self) -> dict[str, Any]:
        """JSON Schema of the tool's result."""
        return self._codecs["return"].schema()

    # Arguments and results, as JSON and back

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.fn)

    @cached_property
    def _codecs(self) -> Mapping[str, TypeCodec]:
        """Codecs of all parameters and of the result; resolved on first use, when all annotations can be."""
        hints = get_type_hints(self.fn)
        return {name: codec_of(hints.get(name, Any)) for name in (*self._signature.parameters, "return")}

    def bind(
        self, args: Sequence[object], kwargs: Mapping[str, object], redaction: Redaction = NOTHING
    ) -> dict[str, Any]:
        """Return the arguments as JSON by name, without those that equal a default.

        So a new parameter with a default changes no recorded call.
        """
        plain = self._plain if self._plain_names is None else self._plain_alone
        given = {name: plain(name, value) for name, value in self._bound(args, kwargs).items()}
        defaults = self._defaults
        changed = {name: value for name, value in given.items() if name not in defaults or value != defaults[name]}
        recorded: dict[str, Any] = redaction.value(changed)
        return recorded

    def live(
        self, args: Sequence[object], kwargs: Mapping[str, object], redaction: Redaction = NOTHING
    ) -> dict[str, LiveArgument]:
        """Return the arguments that are recorded differently: they contain a secret, or text that is redacted."""
        found: dict[str, LiveArgument] = {}
        for name, value in self._bound(args, kwargs).items():
            plain = self._plain(name, value)
            recorded = redaction.value({name: plain})[name]
            if recorded != plain or _has_mark(plain):
                found[name] = LiveArgument(recorded, _copied(value))
        return found

    def _bound(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Mapping[str, Any]:
        """Return the arguments by name. Simple signatures are handled here, because `inspect` is slow."""
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
            by_options = sorted(kwargs.keys() & {"name", "retry", "timeout"} - self._signature.parameters.keys())
            how = f"; write run.step({self.name}.options({by_options[0]}=…), …)" if by_options else ""
            raise TypeError(f"{self.name}: {error}; it takes {self._signature}{how}") from None

    def unbind(
        self, given: Mapping[str, Any], live: Mapping[str, LiveArgument] = MappingProxyType({})
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments for the function from recorded, perhaps edited, arguments.

        An argument in `live` is passed as it is in the code, unless its recorded form was edited.
        """
        if not live and self._plain_names is not None and self._required <= given.keys() <= self._known:
            return (), {name: self._load_alone(name, value) for name, value in given.items()}
        real = {
            name: _copied(each.value) for name, each in live.items() if given.get(name, each.recorded) == each.recorded
        }
        bound = self._signature.bind_partial()
        bound.arguments.update({name: self._load(name, value) for name, value in given.items() if name not in real})
        bound.arguments.update(real)
        return bound.args, bound.kwargs

    def passed(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call of the function, by name."""
        return dict(self._signature.bind(*args, **kwargs).arguments)

    def plain_result(self, value: object) -> Any:
        """Return a result as JSON; the caller checks it when it stores it."""
        return self._codecs["return"].plain(value)

    def encode_result(self, value: object) -> bytes:
        """Return a result as canonical JSON. Raises InvalidValue if JSON cannot represent it."""
        return self._codecs["return"].encode(value)

    def load_result(self, value: Any, versions: Versions | None = None) -> Any:
        """Return a recorded result as the annotated type."""
        return self._codecs["return"].load(value, versions)

    def renew(self, given: dict[str, Any], versions: Versions) -> dict[str, Any]:
        """Return arguments that were stored with these versions of types, upgraded to the current ones."""
        if not versions and not self.args_versions:
            return given
        return {name: self._codecs[name].upgrade(value, versions) for name, value in given.items()}

    @cached_property
    def result_versions(self) -> Versions:
        """Versions of the types in the result that are above 1."""
        return self._codecs["return"].versions

    @cached_property
    def args_versions(self) -> Versions:
        """Versions of the types in the arguments that are above 1."""
        names = [name for name in self._codecs if name != "return"]
        return {each: number for name in names for each, number in self._codecs[name].versions.items()}

    @cached_property
    def _plain_names(self) -> tuple[str, ...] | None:
        """The parameters that can be positional, if every parameter can also be passed by name; otherwise None."""
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
        """Defaults of the parameters, as JSON."""
        given = self._known - self._required
        return {name: self._plain(name, self._signature.parameters[name].default) for name in given}

    @cached_property
    def has_secret_default(self) -> bool:
        """Whether a default contains a secret, so that a passed secret could look like the default."""
        return any(_has_mark(each) for each in self._defaults.values())

    @cached_property
    def plain_call(self) -> PlainCall | None:
        """How a step calls the tool if nothing else is in its way; None if its steps always need more than a call."""
        traits = self.traits
        needs_more = traits.max_spend or traits.fresh or traits.invalidates or traits.timeout is not None
        if needs_more or traits.effect == "transaction" or self.kind != "tool" or self._plain_names is None:
            return None
        if self.args_versions or self.result_versions or self.has_secret_default:
            return None
        return PlainCall(self._plain_names, self._codecs, self._defaults)

    @property
    def returns(self) -> str:
        """Annotation of the result, as it is written."""
        return self._codecs["return"].annotation

    def _plain_alone(self, name: str, value: Any) -> Any:
        try:
            return self._codecs[name].plain(value)
        except InvalidValue as error:
            raise self._invalid(name, error) from error

    def _load_alone(self, name: str, value: Any) -> Any:
        try:
            return self._codecs[name].load(value)
        except InvalidValue as error:
            raise self._invalid(name, error) from error

    def _invalid(self, name: str, error: InvalidValue) -> InvalidArgument:
        """Return the error of a value as that of an argument."""
        fix = f"{self.name} was not called. It takes {name}: {self._codecs[name].annotation}."
        return InvalidArgument(path=f"{name}{error.path[1:]}", reason=error.reason, fix=fix)

    def _plain(self, name: str, value: Any) -> Any:
        match self._signature.parameters[name].kind:
            case inspect.Parameter.VAR_POSITIONAL:
                return [self._plain_alone(name, each) for each in value]
            case inspect.Parameter.VAR_KEYWORD:
                return {key: self._plain_alone(name, each) for key, each in value.items()}
            case _:
                return self._plain_alone(name, value)

    def _load(self, name: str, value: Any) -> Any:
        match self._signature.parameters[name].kind:
            case inspect.Parameter.VAR_POSITIONAL:
                return tuple(self._load_alone(name, each) for each in value)
            case inspect.Parameter.VAR_KEYWORD:
                return {key: self._load_alone(name, each) for key, each in value.items()}
            case _:
                return self._load_alone(name, value)


# Properties of a tool that follow from the signature of its function.
_FROM_SIGNATURE = (
    "is_async",
    "_signature",
    "_codecs",
    "args_versions",
    "result_versions",
    "_plain_names",
    "_known",
    "_required",
    "_defaults",
    "has_secret_default",
)


class Source(Protocol):
    """An external source, as far as tools need it."""

    @property
    def name(self) -> str:
        """Name of the source."""


class _Define(Protocol):
    """Decorator that turns a function into a tool."""

    @overload
    def __call__(self, fn: Callable[P, Awaitable[T]], /) -> Tool[P, T, Awaitable[T]]: ...

    @overload
    def __call__(self, fn: Callable[P, T], /) -> Tool[P, T, T]: ...


class _Declare(Protocol):
    """Signature of `tool` for users: `effect` is required."""

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
        """Return a decorator that turns a function into a tool.

        `effect` declares what repeating the function means: "none" (a read or a computation), "idempotent" (safe to
        repeat with the same key), "once" (not safe to repeat) or "transaction" (writes to the store's own database).
        `name` defaults to the function's name. `risk` is the label that approval rules match. `retry` is a number of
        attempts or a `Retry`; by default, a tool with effect "none" is tried three times, and others once. `timeout` is
        the limit of one attempt; there is none by default. `not_applied` names error classes that mean that
        nothing was applied. `irreversible` forbids a compensation. `max_tokens` and `max_cost` are reserved from the
        budget before each attempt. A step needs fresh data from the sources in `fresh`, and makes the data from those
        in `invalidates` out of date.
        """


def _declare(*bare: object, effect: Any = None, name: Any = None, **more: Any) -> _Define:
    if not isinstance(effect, str) or effect not in EFFECTS:
        choices = ", ".join(f"{each!r} ({meaning})" for each, meaning in EFFECTS.items())
        problem = "missing effect" if effect is None else f"unknown effect {effect!r}"
        what = name or next((getattr(each, "__name__", "a tool") for each in bare), "a tool")
        raise DefinitionError(what=what, reason=f"{problem}; pass effect= with one of {choices}")
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
            raise DefinitionError(what=name or "a tool", reason=f"{brief(each)} is not an @limpet.external(ttl=…)")
    most = Spent(tokens=max_tokens or 0, cost=max_cost or 0.0) if max_tokens or max_cost else None
    traits = Traits(
        effect=effect,
        retry=as_retry(retry) or (READ_RETRY if effect == "none" else None),
        timeout=None if timeout is None else microseconds(timeout),
        max_spend=most,
        fresh=tuple(each.name for each in fresh),
        invalidates=tuple(each.name for each in invalidates),
        risk=risk,
        not_applied=not_applied,
        irreversible=irreversible,
    )

    def define(fn: Callable[..., Any], /) -> Tool[..., Any, Any]:
        check_function("a tool", fn, name)
        made: Tool[..., Any, Any] = Tool(fn, name or fn.__name__, traits)
        made.fresh = tuple(fresh)
        _register(made)
        return made

    return cast("_Define", define)


tool: _Declare = _declare
OPTIONS = tuple(each for each in inspect.signature(_Declare.__call__).parameters if each != "self")


def _check_options(name: str | None, bare: Sequence[object], more: Mapping[str, Any]) -> None:
    """Raise DefinitionError for unknown options."""
    if wrong := [*map(repr, bare), *(f"{each}=" for each in more if each not in OPTIONS)]:
        hook = wrong[0].rstrip("=")
        how = f"; decorate a function with @{name or 'the_tool'}.{hook}" if hook in Hooks.__annotations__ else ""
        reason = f"unknown option {wrong[0]}; allowed: {', '.join(OPTIONS)}{how}"
        raise DefinitionError(what=name or "a tool", reason=reason)


def check_function(what: str, fn: object, name: str | None) -> None:
    """Raise DefinitionError if `fn` is not a function, or has no name to be recorded under."""
    if not callable(fn):
        raise DefinitionError(what=what, reason=f"{brief(fn)} is not a function")
    is_annotated = hasattr(fn, "__annotations__") or inspect.isroutine(fn)
    if not is_annotated or isinstance(fn, partial):
        reason = f"{brief(fn)} has no annotations of its own; write a function with def that calls it"
        raise DefinitionError(what=name or what, reason=reason)
    if not name and getattr(fn, "__name__", "<lambda>") == "<lambda>":
        raise DefinitionError(what=what, reason=f"{brief(fn)} has no name for the log; use def, or pass name=")


def find_tool(name: str) -> Tool[..., Any, Any] | None:
    """Return the tool that is registered under a name in this process, or None."""
    return _tools.get(name)


def registered_tools() -> list[Tool[..., Any, Any]]:
    """Return all tools that are registered in this process."""
    return list(_tools.copy().values())  # another thread may be importing tools


def check_tool(given: object) -> None:
    """Raise DefinitionError if an object is not a tool."""
    if not isinstance(given, Tool):
        reason = "not a tool; decorate the function with @limpet.tool(effect=...)"
        raise DefinitionError(what=f"a step of {brief(given)}", reason=reason)


def _register(made: Tool[..., Any, Any]) -> None:
    if made.traits.effect == "transaction" and made.is_async:
        raise DefinitionError(what=made.name, reason='effect="transaction" needs a plain function, not an async one')
    before = _tools.get(made.name)
    if before is not None and _origin(before.fn) != _origin(made.fn):
        other = ".".join(_origin(before.fn))
        raise DefinitionError(what=made.name, reason=f"the name is already used by {other}; pass name= to one of them")
    _tools[made.name] = made


def _copied(value: Any) -> Any:
    """Copy lists, tuples and dicts, also inside each other. Other objects stay the same, since some refuse a copy."""
    if type(value) is dict:
        return {key: _copied(each) for key, each in value.items()}
    return type(value)(map(_copied, value)) if type(value) in (list, tuple) else value


def _has_mark(plain: Any) -> bool:
    """Return whether a JSON value contains a secret."""
    if isinstance(plain, dict):
        return any(map(_has_mark, plain)) or any(map(_has_mark, plain.values()))
    return any(map(_has_mark, plain)) if isinstance(plain, list) else plain == MARK


def _origin(fn: Callable[..., Any]) -> tuple[str, str]:
    return fn.__module__, fn.__qualname__


def idempotency_key(run: str, number: int, name: str, args: str) -> str:
    """Return the key of a step, the same on every attempt and resume. Its format is frozen. `args` is a digest."""
    return f"{run}:step_{number}:{name}:{args[:16]}"
