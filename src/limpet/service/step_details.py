"""One step with everything that is recorded about it."""

from datetime import datetime
from typing import Any, Literal

from limpet.journal import load_step_view
from limpet.service.request_records import RequestDecision, read_decision
from limpet.service.steps import FailureInfo, StepInfo, attempt_info, failure_info, infos_of, whole_value
from limpet.state.log_view import CompensationView
from limpet.stores import Store
from limpet.times import to_datetime, to_datetime_or_none
from limpet.view import View

__all__ = ["CompensationInfo", "StepDetail", "step_detail"]


class CompensationInfo(View, frozen=True, kw_only=True):
    """The compensation of a step."""

    status: Literal["running", "failed", "completed", "skipped"]
    """Status of the compensation."""
    attempts: int
    """Number of attempts so far."""
    started: datetime
    """When it started."""
    ended: datetime | None
    """When it ended; null while it lasts."""
    error: FailureInfo | None
    """Error of the last attempt, if it failed."""
    reason: str
    """Why it was skipped."""


class StepDetail(StepInfo, frozen=True, kw_only=True):
    """A step with its whole arguments and result, and all its attempts.

    A value above 1 MB is `{"blob": …, "bytes": …}`; `value` reads it in pieces.
    """

    partial: Any = None
    """The last partial value that the tool reported."""
    requests: tuple[RequestDecision, ...] = ()
    """Requests to people about this step: approvals, escalations, and questions about an unknown outcome."""
    undo: CompensationInfo | None = None
    """Its compensation, with attempts and error."""


async def step_detail(store: Store, run: str, number: int) -> StepDetail:
    """Return one step of a run. Only its events are read, and those up to the decisions of its requests."""
    step, requests = await load_step_view(store, run, number)
    [info] = await infos_of(store, [step])
    whole: dict[str, Any] = {name: getattr(info, name) for name in info.__struct_fields__}
    whole["args"] = await whole_value(store, step.args)
    whole["result"] = await whole_value(store, step.result)
    whole["attempts"] = tuple(map(attempt_info, step.attempts))
    return StepDetail(
        **whole,
        partial=await whole_value(store, step.partial),
        requests=tuple([await read_decision(store, run, each.request, each.seq) for each in requests]),
        undo=None if step.compensation is None else _compensation(step.compensation),
    )


def _compensation(view: CompensationView) -> CompensationInfo:
    return CompensationInfo(
        status=view.status,
        attempts=view.attempts,
        started=to_datetime(view.started),
        ended=to_datetime_or_none(view.ended),
        error=failure_info(view.error),
        reason=view.reason,
    )
