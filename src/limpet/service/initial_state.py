"""The state that a run starts with: goal, facts, plan, constraints and budget, or a whole working state."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import NoneType
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import asdict, replace

from limpet.clock import microseconds
from limpet.engine.definitions.agents import Agent, Budget, limits_of
from limpet.engine.definitions.types import codec_of
from limpet.engine.run.working_state import StateChange
from limpet.errors import ContractError, InvalidArgument, InvalidPatch, InvalidValue
from limpet.events import Limits, StatePatch
from limpet.events.values import digest, encode, parse
from limpet.redaction import Redaction
from limpet.secret import hidden
from limpet.state import AgentState, diff
from limpet.state.agent import check_constraints
from limpet.state.patch import Working

__all__ = ["GivenState", "digest_of", "initial_patch", "with_limits"]

_JSON = codec_of(Any)


class GivenState(NamedTuple):
    """The options of a start that concern the first state."""

    state: AgentState | Mapping[str, Any] | None
    goal: str | None
    facts: Mapping[str, Any] | None
    plan: Sequence[str] | None
    constraints: Mapping[str, Any] | None
    budget: Budget | Mapping[str, Any] | None
    source: str
    """Source of the facts."""


_NOTHING = (None,) * 6


def initial_patch(agent: Agent[Any, Any], given: GivenState, redaction: Redaction) -> StatePatch | None:
    """Return the patch that makes a run's first state; None if it is empty. Raises InvalidArgument or ContractError."""
    if agent.rules.budget is None and given[:-1] == _NOTHING:
        return None
    state = AgentState() if given.state is None else _state_of(given.state, redaction)
    working = Working(state)
    change = StateChange(goal=given.goal, facts=given.facts, plan=given.plan, source=given.source)
    try:
        working.apply(change.patch(_JSON, None, working, redaction))
    except InvalidPatch as error:
        raise InvalidArgument(path=error.part, reason=error.reason) from error
    constraints = _constraints_of(agent, state, given.constraints, redaction)
    own = None if given.budget is None else limits_of(given.budget)
    limits = with_limits(with_limits(agent.rules.budget, state.budget), own)
    whole = replace(working.freeze(), constraints=constraints, budget=limits, **_data_of(agent, state))
    patch = diff(AgentState(), whole)
    return None if patch == StatePatch() else patch


def digest_of(options: Mapping[str, Any]) -> str:
    """Return a digest of the options that a start or fork was given, without those that are None.

    Times are left out, since a program that repeats a start may compute them anew; durations stay the same.
    """
    kept = {name: value for name, value in options.items() if not isinstance(value, datetime | NoneType)}
    return digest(hidden({name: _plain(name, value) for name, value in kept.items()}))


def _plain(name: str, option: Any) -> Any:
    """Return an option in one form, however it was passed: "1h" is 3,600 seconds, and a budget its limits."""
    if name == "budget":
        option = limits_of(option)
    if name in ("deadline", "at"):
        return microseconds(option)
    return parse(encode(option)) if isinstance(option, msgspec.Struct) else _JSON.dump(option)


def with_limits(budget: Limits | None, given: Limits | None) -> Limits | None:
    """Return a budget in which the given limits replace the others."""
    if budget is None or given is None:
        return given if budget is None else budget
    return replace(budget, **{name: value for name, value in asdict(given).items() if value is not None})


def _state_of(given: AgentState | Mapping[str, Any], redaction: Redaction) -> AgentState:
    try:
        plain = given.to_json() if isinstance(given, AgentState) else encode(_JSON.dump(dict(given)))
        return AgentState.from_json(encode(redaction.value(msgspec.json.decode(plain))))
    except InvalidValue as error:
        raise InvalidArgument(path=f"state{error.path.removeprefix('$')}", reason=error.reason) from error


def _constraints_of(
    agent: Agent[Any, Any], state: AgentState, given: Mapping[str, Any] | None, redaction: Redaction
) -> dict[str, Any] | None:
    """Return the constraints of a run: those of its state, and those that are given beside it."""
    if given is None:
        return state.constraints
    try:
        found: dict[str, Any] = redaction.value(_JSON.dump(dict(given)))
        check_constraints(found)
    except InvalidValue as error:
        path = error.path.removeprefix("$").removeprefix(".constraints").lstrip(".")
        reason = f"{path}: {error.reason}" if path else error.reason
        raise ContractError(agent=agent.name, what="constraints", reason=reason) from error
    return {**(state.constraints or {}), **found}


def _data_of(agent: Agent[Any, Any], state: AgentState) -> dict[str, Any]:
    """Return the data of a state as it is stored, after a check against the type of the agent's data."""
    if isinstance(state.data, msgspec.UnsetType):
        return {}
    codec = agent.data_codec
    try:
        codec.load(msgspec.json.decode(state.data), state.data_versions or None)
    except InvalidValue as error:
        raise InvalidArgument(path="state.data", reason=f"does not match {codec.name}: {error.reason}") from error
    return {"data_versions": state.data_versions or dict(codec.versions)}
