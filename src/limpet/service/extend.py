"""Extend the budget and the deadline of a run. Both only move forward, also after the run has failed on them."""

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from msgspec.structs import asdict

from limpet.engine.execution.principal import Principal
from limpet.errors import InvalidArgument
from limpet.events import Limits
from limpet.events import bodies as b
from limpet.journal import load
from limpet.service.resolve import each_run
from limpet.stores import RequestFilter, RunFilter, SendCommands, Store
from limpet.stores.api.base import LARGEST_PAGE
from limpet.times import format_time

__all__ = ["RunExtension", "budget_request", "plan_extension"]


class RunExtension(NamedTuple):
    """An extension of a run's budget or deadline."""

    limits: Limits | None
    """The limits to raise."""
    deadline: int | None
    """The new deadline."""
    because: str
    who: Principal
    id: str
    """Id of the command."""


async def plan_extension(store: Store, run: str, wanted: RunExtension, actor: str) -> list[SendCommands]:
    """Return the commands that extend a run, and its called runs that have the same deadline.

    Raises InvalidArgument if a limit or the deadline would not grow. A repeated command is not checked again.
    """
    state = await load(store, run)
    if not await store.has_command(run, wanted.id):
        if wanted.limits is not None:
            _check_limits(state.working.budget, wanted.limits)
        if wanted.deadline is not None:
            _check_deadline(state.deadline, wanted.deadline, await store.now())
    commands: list[b.BudgetExtended | b.DeadlineExtended] = []
    more: dict[str, Any] = {"because": wanted.because, **wanted.who.sender}
    if wanted.limits is not None:
        commands.append(b.BudgetExtended(command=wanted.id, limits=wanted.limits, **more))
    if wanted.deadline is not None:
        id = wanted.id if wanted.limits is None else f"{wanted.id}:deadline"
        commands.append(b.DeadlineExtended(command=id, deadline=wanted.deadline, **more))
    legs = [SendCommands(run=run, bodies=tuple(commands), actor=actor)]
    if wanted.deadline is not None:
        async for called in _sharing(store, run, state.deadline):
            body = b.DeadlineExtended(command=f"{wanted.id}:called", deadline=wanted.deadline, **more)
            legs.append(SendCommands(run=called, bodies=(body,), actor=actor, optional=True))
    return legs


async def budget_request(store: Store, run: str) -> str | None:
    """Return the open request of a run for a larger budget, or None."""
    rows = await store.requests(RequestFilter(run=run))
    return next((row.id for row in rows if row.kind == "budget"), None)


async def _sharing(store: Store, run: str, deadline: int | None) -> AsyncIterator[str]:
    """Yield the called runs, at any depth, that have the deadline of this run."""
    where = RunFilter(parent=run, status=("pending", "running", "waiting", "failed"))
    async for row in each_run(store, where, page=LARGEST_PAGE):
        if deadline is not None and row.deadline == deadline:
            yield row.id
            async for each in _sharing(store, row.id, deadline):
                yield each


def _check_limits(budget: Limits | None, wanted: Limits) -> None:
    has = asdict(budget or Limits())
    for limit, new in asdict(wanted).items():
        old, path = has[limit], f"budget.{limit}"
        if limit == "exhausted" or new is None:
            continue
        if old is None:
            raise InvalidArgument(path=path, reason="the run has no such limit, so there is nothing to extend")
        if new <= old:
            raise InvalidArgument(path=path, reason=f"must be more than {old:g}, the current limit")


def _check_deadline(old: int | None, new: int, now: int) -> None:
    if old is None:
        raise InvalidArgument(path="deadline", reason="the run has no deadline, so there is nothing to extend")
    if new <= max(old, now):
        what = "now" if now > old else f"{format_time(old)}, the current deadline"
        raise InvalidArgument(path="deadline", reason=f"must be later than {what}")
