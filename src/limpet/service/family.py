"""The family of a run: the runs it came from, and those that came from it, as forks or by calls and handoffs."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Literal, cast

from limpet.engine.execution.views import Status
from limpet.errors import NotFound
from limpet.events import bodies as b
from limpet.service.resolve import each_run, run_of
from limpet.stores import RunFilter, RunRow, Store
from limpet.times import to_datetime
from limpet.view import View

__all__ = ["Family", "Relation", "Relative", "family_of"]

# Maximum number of runs in a family, and of generations before and after a run.
MANY, GENERATIONS = 200, 20
Relation = Literal["call", "start", "handoff", "notify", "fork"]


class Relative(View, frozen=True, kw_only=True):
    """A run in a family."""

    id: str
    """Run id."""
    agent: str
    """Name of its agent."""
    status: Status
    """Its status."""
    created: datetime
    """When it was created."""
    source: str | None
    """The run that it came from; null if it came from none."""
    relation: Relation | None
    """How it came from `source`: called, started, handed over to or notified by it, or forked from it."""


class Family(View, frozen=True, kw_only=True):
    """A run with its ancestors and descendants. Together with `source`, the list is a tree."""

    run: str
    """Run id."""
    runs: tuple[Relative, ...]
    """The ancestors, the oldest first; then the run; then its descendants, each after its source."""
    is_complete: bool
    """Whether these are all: a family of more than 200 runs, or 20 generations, is cut."""


async def family_of(store: Store, run: str) -> Family:
    """Return the family of a run. A few events are read of each run, and no payloads."""
    row = await run_of(store, run)
    above = [each async for each in _ancestors(store, row)]
    below = await _descendants(store, row)
    found = [await _relative(store, each) for each in (*above[::-1], row, *below[:MANY])]
    return Family(run=row.id, runs=tuple(found), is_complete=len(above) < GENERATIONS and len(below) <= MANY)


async def _ancestors(store: Store, row: RunRow) -> AsyncIterator[RunRow]:
    """Yield the run that a run came from, then the one that this came from, and so on."""
    for _ in range(GENERATIONS):
        source = _source_of(row)
        try:
            if source is None:
                return
            row = await store.get(source)
        except NotFound:  # It was deleted, or this store imported only the other one.
            return
        yield row


async def _descendants(store: Store, row: RunRow, level: int = 0) -> list[RunRow]:
    """Return the runs that came from a run, each followed by its own, at most one more than are shown."""
    found: list[RunRow] = []
    async for each in _children(store, row):
        found.append(each)
        if level < GENERATIONS and len(found) <= MANY:
            found += await _descendants(store, each, level + 1)
        if len(found) > MANY:
            break
    return found[: MANY + 1]


async def _children(store: Store, row: RunRow) -> AsyncIterator[RunRow]:
    """Yield the forks of a run, then the runs that it called; of each, the newest first."""
    for where in (RunFilter(origin=row.id), RunFilter(parent=row.id)):
        async for each in each_run(store, where, page=MANY):
            if _source_of(each) == row.id:
                yield each


def _source_of(row: RunRow) -> str | None:
    return row.origin or row.parent


async def _relative(store: Store, row: RunRow) -> Relative:
    return Relative(
        id=row.id,
        agent=row.agent,
        status=cast("Status", row.status),
        created=to_datetime(row.created),
        source=_source_of(row),
        relation=await _relation(store, row),
    )


async def _relation(store: Store, row: RunRow) -> Relation | None:
    if row.origin is not None:
        return "fork"
    if row.parent is None:
        return None
    [event] = await store.read(row.id, limit=1)
    created = store.decode(event)
    return created.parent.mode if isinstance(created, b.RunCreated) and created.parent is not None else None
