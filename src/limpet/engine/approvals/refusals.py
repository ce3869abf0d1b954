"""Calls that were refused before they started: out-of-date data, a budget that is used up, or a passed deadline.

A refusal is recorded with the call, so that replay raises the same error and people can see which call was refused.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from limpet.engine.execution.execution import Execution
from limpet.engine.replay.history import LATE, OVER_BUDGET, STALE
from limpet.errors import BudgetExceeded, DeadlineExceeded, LimpetError, Stale
from limpet.events import bodies as b

__all__ = [
    "LATE",
    "OVER_BUDGET",
    "STALE",
    "NewStep",
    "Refusal",
    "recall_late",
    "refusal_in",
    "refusal_value",
    "refuse_late",
    "refused_facts",
]

_ERRORS: Mapping[str, type[Stale | BudgetExceeded | DeadlineExceeded]] = {
    STALE: Stale,
    OVER_BUDGET: BudgetExceeded,
    LATE: DeadlineExceeded,
}


class NewStep(NamedTuple):
    """A step that may be refused: the call of a tool, or of an agent."""

    tool: str
    name: str
    number: int
    """0 for the call of an agent."""
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
    return {"error": dict(error.facts), "tool": step.tool, "number": step.number or None, "args": dict(step.args)}


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


async def refuse_late(x: Execution, step: NewStep) -> NoReturn:
    """Refuse a call after the run's deadline: record that, and raise DeadlineExceeded."""
    error, refusal = DeadlineExceeded(deadline=x.deadline or 0), f"{step.name}{LATE}"
    await x.recorder.record(refusal, refusal_value(step, error))
    raise x.attribute_error(error, refusal)


async def recall_late(x: Execution, name: str) -> None:
    """Raise DeadlineExceeded again, if it was recorded for this call. It applies even if the deadline was extended."""
    if f"{name}{LATE}" in x.history.records:
        refused = x.find(f"{name}{LATE}", b.ValueRecorded)
        assert refused is not None
        recorded = await x.recorder.recall(refused, b.ValueRecorded)
        raise x.attribute_error(DeadlineExceeded(**refused_facts(recorded)), refused.name)
