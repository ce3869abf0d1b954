"""Compare the runs of a store with those that another engine has driven."""

from collections.abc import AsyncIterator

from limpet.clock import SECOND
from limpet.engine.worker.engine import Engine
from limpet.service.findings import Finding, count_of, names_of, some_rows
from limpet.service.views import LIVE
from limpet.state import ENDED
from limpet.stores import Store

__all__ = ["check_engine"]

# A run that changed since is not missed: the engine may not list it yet.
NEW = 30 * SECOND


async def check_engine(store: Store, engine: Engine | None) -> AsyncIterator[Finding]:
    """Yield whether the engine can be reached, runs that it does not know, and runs that it should forget.

    Nothing is yielded for a store in which no run is of another engine.
    """
    live = [row for status in LIVE for row in await some_rows(store, status) if row.engine]
    if engine is None:
        if live:
            others = ", ".join(sorted({row.engine for row in live}))
            message = f"{count_of(len(live), 'unfinished run')} of {others}, which was not checked"
            yield Finding(what="engine", level="warn", message=message, hint="Set LIMPET_ENGINE to its address.")
        return
    await engine.open(await store.identity())
    known = {run async for run in engine.unfinished()}
    yield Finding(what="engine", level="ok", message=f"{engine.name} has {count_of(len(known), 'unfinished run')}")
    old = await store.now() - NEW
    lost = [row.id for row in live if row.engine == engine.name and row.id not in known and row.time < old]
    if lost:
        message = f"{count_of(len(lost), 'run')} unknown to {engine.name}: {names_of(lost)}"
        hint = f"A worker wakes them when they are due: `limpet worker --engine {engine.name} MODULE:ATTRIBUTE`."
        yield Finding(what="engine", level="warn", message=message, hint=hint)
    rows = await store.rows(sorted(known))
    over = [
        run
        for run in sorted(known)
        if run not in rows or rows[run].status in ENDED or rows[run].engine != engine.name
        if run not in rows or rows[run].time < old
    ]
    if over:
        message = f"{engine.name} still has {count_of(len(over), 'run')} driven that {_is_or_are(over)} over: "
        hint = f"A worker ends that within an hour: `limpet worker --engine {engine.name} MODULE:ATTRIBUTE`."
        yield Finding(what="engine", level="warn", message=message + names_of(over), hint=hint)


def _is_or_are(found: list[str]) -> str:
    return "is" if len(found) == 1 else "are"
