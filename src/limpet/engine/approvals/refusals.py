"""Steps that were refused before they started: out-of-date data, or a budget that is used up.

A refusal is recorded with the call, so that replay raises the same error and people can see which call was refused.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from limpet.errors import BudgetExceeded, LimpetError, Stale
from limpet.events import bodies as b

__all__ = ["OVER_BUDGET", "STALE", "NewStep", "Refusal", "refusal_in", "refusal_value", "refused_facts"]

STALE, OVER_BUDGET = "/stale#1", "/refused#1"
_ERRORS: Mapping[str, type[Stale | BudgetExceeded]] = {STALE: Stale, OVER_BUDGET: BudgetExceeded}


class NewStep(NamedTuple):
    """A step that may be refused: the call of a tool."""

    tool: str
    name: str
    number: int
    args: Mapping[str, Any]


class Refusal(NamedTuple):
    """A recorded refusal. The call is unknown in logs of older versions."""

    error: LimpetError
    name: str
    """Identity of the step."""
    tool: str
    number: int | None
    args: Any


def refusal_value(step: NewStep, error: LimpetError) -> dict[str, object]:
    """Return a refusal as it is recorded."""
    return {"error": dict(error.facts), "tool": step.tool, "number": step.number, "args": dict(step.args)}


def refused_facts(recorded: b.ValueRecorded) -> dict[str, Any]:
    """Return the facts of the error of a recorded refusal."""
    value = recorded.value.value()
    facts: dict[str, Any] = value["error"] if isinstance(value.get("error"), dict) else value
    return facts


def refusal_in(body: b.ValueRecorded) -> Refusal | None:
    """Return the refusal that an event records, or None if it records something else."""
    name, slash, end = body.name.rpartition("/")
    kind = _ERRORS.get(f"{slash}{end}")
    value = body.value.value() if kind is not None and body.value.is_inline else None
    if kind is None or not isinstance(value, dict):
        return None
    return Refusal(kind(**refused_facts(body)), name, value.get("tool") or "", value.get("number"), value.get("args"))
