"""Agents: named, versioned functions. An agent has no state of its own; all state is in the run's log."""

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property, update_wrapper
from typing import Any, Generic, Literal, TypeVar, get_args, get_type_hints

from msgspec import Struct, ValidationError, convert, to_builtins
from msgspec.structs import asdict

from limpet.arguments import brief, defining
from limpet.clock import Duration, microseconds
from limpet.engine.definitions.types import TypeCodec, codec_of
from limpet.engine.definitions.upgrades import Versions
from limpet.errors import ContractError, DefinitionError, InvalidArgument, InvalidValue
from limpet.events import Limits, canonical, digest
from limpet.policy.checkpoint import Strategy
from limpet.policy.escalation import Escalate
from limpet.policy.risk import Approvals

__all__ = ["Agent", "AgentOptions", "Budget", "Exclusive", "check_agent", "limits_of"]

In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)
Exclusive = Literal["session", "user"]
_JSON = codec_of(Any)


@defining
class Budget:
    """Limits on what a run may use: steps, running time, model tokens, cost. None means no limit.

    Limpet checks the limits before each step; called agents get a part of them. `max_wall_time` counts the time while a
    worker drives the run, not while it is parked. `max_artifact_bytes_in_context` bounds all tool results in one
    prompt together.
    When a limit is reached, the run fails (`exhausted="fail"`) or asks a person to extend the budget (`"ask"`).
    """

    def __init__(
        self,
        *,
        max_steps: int | None = None,
        max_wall_time: Duration | None = None,
        max_llm_tokens: int | None = None,
        max_cost: float | None = None,
        max_artifact_bytes_in_context: int | None = None,
        exhausted: Literal["fail", "ask"] = "fail",
    ) -> None:
        if exhausted not in ("fail", "ask"):
            raise DefinitionError(what="a budget", reason=f"exhausted must be 'fail' or 'ask', not {exhausted!r}")
        self.limits = Limits(
            max_steps=max_steps,
            max_wall_time_ms=None if max_wall_time is None else -(-microseconds(max_wall_time) // 1000),
            max_llm_tokens=max_llm_tokens,
            max_cost=max_cost,
            max_artifact_bytes_in_context=max_artifact_bytes_in_context,
            exhausted=exhausted,
        )


class _BudgetJson(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_steps: int | None = None
    max_wall_time: str | int | float | None = None
    max_wall_time_ms: int | None = None
    max_llm_tokens: int | None = None
    max_cost: float | None = None
    max_artifact_bytes_in_context: int | None = None
    exhausted: Literal["fail", "ask"] = "fail"


def limits_of(given: Budget | Mapping[str, Any]) -> Limits:
    """Return the limits of a budget, which may be JSON. Raises InvalidArgument."""
    if isinstance(given, Budget):
        return given.limits
    try:
        found = convert(dict(given), _BudgetJson, strict=False)
    except ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        raise InvalidArgument(path=f"budget.{path}".rstrip(".`"), reason=f"{reason[:1].lower()}{reason[1:]}") from error
    fields = {name: value for name, value in asdict(found).items() if name != "max_wall_time"}
    if found.max_wall_time is not None:
        fields["max_wall_time_ms"] = Budget(max_wall_time=found.max_wall_time).limits.max_wall_time_ms
    return Limits(**fields)


class AgentOptions(Struct, frozen=True, kw_only=True):
    """Options of an agent, as passed to `@limpet.agent`. Durations are in microseconds."""

    version: str = "1"
    accepts: tuple[str, ...] = ()
    """Older versions of the agent whose runs this code may execute."""
    steps: int | None = None
    deadline: int | None = None
    budget: Limits | None = None
    approvals: Approvals | None = None
    escalate: Escalate | None = None
    checkpoint: Strategy = "every_step"
    exclusive: Exclusive | None = None
    max_age: int | None = None
    """Maximum idle time; a run that was idle for longer waits for an operator."""
    concurrency: int | None = None
    """Maximum number of runs that are driven at the same time, over all workers."""
    data: Callable[[], Any] | None = None
    """Makes `run.state.data` of a run that has none yet."""


class Agent(Generic[In_contra, Out_co]):
    """A named, versioned function that Limpet executes as durable runs. Create one with `@limpet.agent`."""

    def __init__(self, fn: Callable[..., Any], name: str, rules: AgentOptions) -> None:
        self.fn, self.name, self.rules = fn, name, rules
        self.llm: Any = None
        """Definition of the LLM agent; None if the agent is a plain function."""
        self.calls: tuple[Agent[Any, Any], ...] = ()
        """Agents that its model may call or hand off to."""
        parameters = list(inspect.signature(fn).parameters)
        if not 1 <= len(parameters) <= 2:
            raise DefinitionError(what=name, reason="the function must take the run and at most one input")
        self._input_name = parameters[1] if len(parameters) == 2 else None
        update_wrapper(self, fn)

    @property
    def version(self) -> str:
        """Version of the agent's code."""
        return self.rules.version

    @property
    def is_async(self) -> bool:
        """Whether the agent's function is a coroutine function."""
        return inspect.iscoroutinefunction(self.fn)

    @property
    def takes_input(self) -> bool:
        """Whether the agent's function takes an input besides its run."""
        return self._input_name is not None

    def __repr__(self) -> str:
        return f"<agent {self.name} {self.version}>"

    def __call__(self, *_: object, **__: object) -> None:
        """Raise DefinitionError: agents are started with `app.run` or `run.call`, not called."""
        reason = "agents are started, not called: use app.run(agent, input) or run.call(...)"
        raise DefinitionError(what=f"a call of {self.name}", reason=reason)

    @cached_property
    def _hints(self) -> Mapping[str, Any]:
        return get_type_hints(self.fn)

    @cached_property
    def input_codec(self) -> TypeCodec:
        """Codec of the agent's input."""
        return codec_of(self._hints.get(self._input_name, Any) if self._input_name else type(None))

    @cached_property
    def output_codec(self) -> TypeCodec:
        """Codec of the agent's result."""
        return codec_of(self._hints.get("return", Any))

    @cached_property
    def data_codec(self) -> TypeCodec:
        """Codec of `run.state.data`: the S of `Run[S]`."""
        run = next(iter(inspect.signature(self.fn).parameters))
        found = get_args(self._hints.get(run))
        return codec_of(found[0] if found else dict[str, Any])

    def dump_input(self, value: object) -> Any:
        """Return an input as JSON. Raises ContractError if it does not match the contract."""
        return self._dump("input", self.input_codec, value)

    def dump_json(self, value: object) -> Any:
        """Check an input that is already JSON, from a caller without the Python types. Raises ContractError."""
        plain = _JSON.dump(value)
        try:
            loaded = self.input_codec.load(plain)
        except InvalidValue as error:
            raise self._contract_error(
                "input", error, self.input_codec.faults(plain, self._name_of("input"))
            ) from error
        return self.dump_input(loaded)

    def load_input(self, plain: Any, versions: Versions | None = None) -> Any:
        """Load a stored or received input. Raises ContractError if it does not match the contract."""
        return self._load("input", self.input_codec, plain, versions)

    def load_output(self, plain: Any, versions: Versions | None = None) -> Any:
        """Load a stored or received result. Raises ContractError if it does not match the contract."""
        return self._load("result", self.output_codec, plain, versions)

    def _load(self, what: str, codec: TypeCodec, plain: Any, versions: Versions | None) -> Any:
        try:
            upgraded = plain if versions is None else codec.upgrade(plain, versions)
        except InvalidValue as error:
            raise self._contract_error(what, error, ()) from error
        try:
            return codec.load(upgraded)
        except InvalidValue as error:
            raise self._contract_error(what, error, codec.faults(upgraded, self._name_of(what))) from error

    def dump_output(self, value: object) -> Any:
        """Return a result as JSON. Raises ContractError if it does not match the contract."""
        return self._dump("result", self.output_codec, value)

    def _dump(self, what: str, codec: TypeCodec, value: object) -> Any:
        try:
            plain = codec.dump(value)
        except InvalidValue as error:
            faults = codec.faults(value, self._name_of(what)) if _is_json(value) else ()
            raise self._contract_error(what, error, faults) from error
        try:
            codec.load(plain)
        except InvalidValue as error:
            raise self._contract_error(what, error, codec.faults(plain, self._name_of(what))) from error
        return plain

    def _name_of(self, what: str) -> str:
        """Return the name of the input or result, for messages."""
        return (self._input_name or what) if what == "input" else what

    def _contract_error(self, what: str, error: InvalidValue, faults: tuple[str, ...]) -> ContractError:
        faults = faults or (error.at(self._name_of(what)),)
        return ContractError(agent=self.name, what=what, reason="; ".join(faults[:5])[:500], faults=faults)

    def contract(self) -> dict[str, Any]:
        """Return the contract: input and output as JSON Schema, and the limits of its runs."""
        rules = self.rules
        limits = rules.budget
        codecs = {"input": self.input_codec, "output": self.output_codec}
        versions = {name: dict(codec.versions) for name, codec in codecs.items() if codec.versions}
        return {
            **({"versions": versions} if versions else {}),
            "agent": self.name,
            "version": self.version,
            "input": self.input_codec.schema(),
            "output": self.output_codec.schema(),
            "rules": {
                "steps": rules.steps,
                "deadline_us": rules.deadline,
                "budget": None if limits is None else to_builtins(limits),
                "exclusive": rules.exclusive,
            },
        }

    @cached_property
    def contract_hash(self) -> str:
        """Hash that identifies the contract in logs."""
        return digest(self.contract())


def _is_json(value: object) -> bool:
    """Return whether a value is plain JSON."""
    try:
        canonical(value)
    except InvalidValue:
        return False
    return True


def check_agent(given: object) -> None:
    """Raise DefinitionError if an object is not an agent."""
    if not isinstance(given, Agent):
        reason = "not an agent; decorate the function with @limpet.agent()"
        raise DefinitionError(what=f"a run of {brief(given)}", reason=reason)
