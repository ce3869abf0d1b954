"""Agents: named, versioned functions. Stateless logic; all state is in the run's log."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, update_wrapper
from typing import Any, Generic, Literal, TypeVar, get_args, get_type_hints

from msgspec import to_builtins

from limpet.arguments import brief, defining
from limpet.clock import Duration, microseconds
from limpet.engine.definitions.types import TypeCodec, codec_of
from limpet.engine.definitions.upgrades import Versions
from limpet.errors import ContractError, DefinitionError, InvalidValue
from limpet.events import Limits, canonical, digest
from limpet.policy.checkpoint import Strategy
from limpet.policy.escalation import Escalate
from limpet.policy.risk import Approvals

__all__ = ["Agent", "AgentOptions", "Budget", "Exclusive", "check_agent"]

In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)
Exclusive = Literal["session", "user"]
_JSON = codec_of(Any)


@defining
class Budget:
    """What a run may use up: steps, running time, tokens, money."""

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
            raise DefinitionError(what="A budget", reason=f"exhausted={exhausted!r}: say 'fail' or 'ask'")
        self.limits = Limits(
            max_steps=max_steps,
            max_wall_time_ms=None if max_wall_time is None else -(-microseconds(max_wall_time) // 1000),
            max_llm_tokens=max_llm_tokens,
            max_cost=max_cost,
            max_artifact_bytes_in_context=max_artifact_bytes_in_context,
            exhausted=exhausted,
        )


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """What an agent says about its runs."""

    version: str = "1"
    accepts: tuple[str, ...] = ()
    """Older versions whose runs this code may take over."""
    steps: int | None = None
    deadline: int | None = None
    budget: Limits | None = None
    approvals: Approvals | None = None
    escalate: Escalate | None = None
    checkpoint: Strategy = "every_step"
    exclusive: Exclusive | None = None
    max_age: int | None = None
    """A run that lay still for longer waits for an operator."""


class Agent(Generic[In_contra, Out_co]):
    """A named, versioned function that makes durable runs."""

    def __init__(self, fn: Callable[..., Any], name: str, rules: AgentOptions) -> None:
        self.fn, self.name, self.rules = fn, name, rules
        self.llm: Any = None
        """What it is made of, if a model drives it."""
        self.calls: tuple[Agent[Any, Any], ...] = ()
        """The agents that its model may call, or hand over to."""
        parameters = list(inspect.signature(fn).parameters)
        if not 1 <= len(parameters) <= 2:
            raise DefinitionError(what=name, reason="an agent takes its run and at most one input")
        self._input_name = parameters[1] if len(parameters) == 2 else None
        update_wrapper(self, fn)

    @property
    def version(self) -> str:
        """Of its code."""
        return self.rules.version

    @property
    def is_async(self) -> bool:
        """Whether its function is a coroutine function."""
        return inspect.iscoroutinefunction(self.fn)

    @property
    def takes_input(self) -> bool:
        """Whether its function takes more than its run."""
        return self._input_name is not None

    def __repr__(self) -> str:
        return f"<agent {self.name} {self.version}>"

    def __call__(self, *_: object, **__: object) -> None:
        """Refused: an agent is started, not called."""
        raise DefinitionError(what=f"A call of {self.name}", reason="start it: app.run(agent, input), or run.call(...)")

    @cached_property
    def _hints(self) -> Mapping[str, Any]:
        return get_type_hints(self.fn)

    @cached_property
    def input_codec(self) -> TypeCodec:
        """What it is given."""
        return codec_of(self._hints.get(self._input_name, Any) if self._input_name else type(None))

    @cached_property
    def output_codec(self) -> TypeCodec:
        """What it returns."""
        return codec_of(self._hints.get("return", Any))

    @cached_property
    def data_codec(self) -> TypeCodec:
        """What lives between its turns: the S of `Run[S]`."""
        run = next(iter(inspect.signature(self.fn).parameters))
        found = get_args(self._hints.get(run))
        return codec_of(found[0] if found else dict[str, Any])

    def dump_input(self, value: object) -> Any:
        """An input as JSON, if it is one; raises ContractError."""
        return self._dump("input", self.input_codec, value)

    def dump_json(self, value: object) -> Any:
        """The same for an input that is JSON already, as whoever does not have the types gives it."""
        plain = _JSON.dump(value)
        try:
            loaded = self.input_codec.load(plain)
        except InvalidValue as error:
            raise self._misfit("input", error, self.input_codec.faults(plain)) from error
        return self.dump_input(loaded)

    def load_input(self, plain: Any, versions: Versions | None = None) -> Any:
        """An input that came from elsewhere; raises ContractError if it is none."""
        return self._load("input", self.input_codec, plain, versions)

    def load_output(self, plain: Any, versions: Versions | None = None) -> Any:
        """A result that came from elsewhere; raises ContractError if it is none."""
        return self._load("result", self.output_codec, plain, versions)

    def _load(self, what: str, shape: TypeCodec, plain: Any, versions: Versions | None) -> Any:
        try:
            today = plain if versions is None else shape.renew(plain, versions)
        except InvalidValue as error:
            raise self._misfit(what, error, ()) from error
        try:
            return shape.load(today)
        except InvalidValue as error:
            raise self._misfit(what, error, shape.faults(today)) from error

    def dump_output(self, value: object) -> Any:
        """A result as JSON, if it is what the agent declares; raises ContractError."""
        return self._dump("result", self.output_codec, value)

    def _dump(self, what: str, shape: TypeCodec, value: object) -> Any:
        try:
            plain = shape.dump(value)
        except InvalidValue as error:
            raise self._misfit(what, error, shape.faults(value) if _is_json(value) else ()) from error
        try:
            shape.load(plain)
        except InvalidValue as error:
            raise self._misfit(what, error, shape.faults(plain)) from error
        return plain

    def _misfit(self, what: str, error: InvalidValue, faults: tuple[str, ...]) -> ContractError:
        faults = faults or (f"{error.path}: {error.reason}",)
        return ContractError(agent=self.name, what=what, reason="; ".join(faults[:5])[:500], faults=faults)

    def contract(self) -> dict[str, Any]:
        """What goes in and what comes out, as JSON Schema, and what its runs are bound by."""
        rules = self.rules
        limits = rules.budget
        shapes = {"input": self.input_codec, "output": self.output_codec}
        versions = {name: dict(shape.versions) for name, shape in shapes.items() if shape.versions}
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
        """What names the contract in logs."""
        return digest(self.contract())


def _is_json(value: object) -> bool:
    """Whether it is plain JSON, and may be looked through."""
    try:
        canonical(value)
    except InvalidValue:
        return False
    return True


def check_agent(given: object) -> None:
    """Refuse what is no agent, where one is wanted."""
    if not isinstance(given, Agent):
        reason = "it is no agent: put @limpet.agent() on the function"
        raise DefinitionError(what=f"A run of {brief(given)}", reason=reason)
