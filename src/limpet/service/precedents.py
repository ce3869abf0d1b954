"""Precedents of a request: what followed the same call in the agent's newest runs."""

from datetime import datetime
from typing import cast

from limpet.engine.execution.views import Status
from limpet.journal import load_steps
from limpet.service.resolve import each_run
from limpet.state.log_view import StepStatus, StepView
from limpet.stores import RunFilter, RunRow, Store
from limpet.stores.fork_reads import StepRange
from limpet.times import to_datetime
from limpet.view import View

__all__ = ["Precedent", "precedents_of"]

# Runs that are looked at, and the newest steps of each.
RUNS, STEPS = 20, 100


class Precedent(View, frozen=True, kw_only=True):
    """The last call of the same tool in another run, and what followed."""

    run: str
    """Run id."""
    step: int
    """Step number of the call."""
    step_status: StepStatus
    """How the call ended."""
    time: datetime
    """When it started."""
    next: str
    """Name of the step after it; empty for none."""
    status: Status
    """Status of the run now."""


async def precedents_of(store: Store, run: RunRow, tool: str) -> list[Precedent]:
    """Return the last call of a tool in each of the newest other runs of an agent, the newest run first."""
    found: list[Precedent] = []
    looked_at = 0
    async for row in each_run(store, RunFilter(agent=run.agent), page=RUNS + 1):
        if row.id == run.id:
            continue
        looked_at += 1
        if (made := await _last_call(store, row, tool)) is not None:
            found.append(made)
        if looked_at == RUNS:
            break
    return found


async def _last_call(store: Store, row: RunRow, tool: str) -> Precedent | None:
    after: StepView | None = None
    for step in await load_steps(store, row.id, StepRange(limit=STEPS, backwards=True)):
        if step.tool == tool:
            return Precedent(
                run=row.id,
                step=step.number,
                step_status=step.status,
                time=to_datetime(step.attempts[0].started),
                next="" if after is None else after.name,
                status=cast("Status", row.status),
            )
        after = step
    return None
