"""Agents, workers and counts of a store."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from limpet.engine.execution.views import WaitsFor
from limpet.engine.run.conversation import INTERRUPT
from limpet.events.values import parse
from limpet.service.batch_agent import OWN
from limpet.service.resolve import each_run
from limpet.service.views import LIVE, wait_info
from limpet.stores import RunFilter, RunRow, Store
from limpet.times import to_datetime
from limpet.view import View

__all__ = [
    "AgentInfo",
    "LiveWorkers",
    "Stats",
    "WorkerInfo",
    "agents_of",
    "live_workers",
    "stats_of",
    "waits_of",
    "workers_of",
]


class AgentInfo(View, frozen=True, kw_only=True):
    """An agent that has been registered in a store."""

    name: str
    """Name of the agent."""
    version: str
    """Version of the agent."""
    is_served: bool
    """Whether a live worker serves this version."""
    contract: Mapping[str, Any]
    """JSON Schemas of its input and output."""


class WorkerInfo(View, frozen=True, kw_only=True):
    """A process that drives runs."""

    id: str
    """Worker id."""
    is_live: bool
    """Whether its lease is valid."""
    agents: Mapping[str, tuple[str, ...]]
    """Agents that it serves, with the versions that it accepts; built-in ones are left out."""
    started: datetime
    """When it started."""
    lease_until: datetime
    """End of its lease."""
    runs: int = 0
    """Number of runs that it drives now."""
    engine: str = ""
    """The engine whose runs it drives, such as "temporal"; empty for a worker that claims runs itself."""
    duties: Mapping[str, datetime | None] = {}
    """Duties for the whole store, such as `retention`, that this worker does now (null) or did last, and when."""


class Stats(View, frozen=True, kw_only=True):
    """Counts of a store."""

    runs: Mapping[str, int]
    """Number of runs by status."""
    agents: Mapping[str, Mapping[str, int]]
    """Number of runs by agent and status."""
    requests: int
    """Number of open requests."""
    workers: int
    """Number of live workers."""
    unserved: tuple[str, ...]
    """Agents with unfinished runs and no live worker."""


class LiveWorkers(Struct, frozen=True, kw_only=True):
    """The workers whose lease is valid."""

    now: int
    ids: frozenset[str]
    engines: frozenset[str]
    """Engines whose runs they drive; "" for the workers of Limpet."""
    served: Mapping[tuple[str, str], set[str]]
    """Versions that live workers serve, by engine and agent."""

    def serve(self, row: RunRow) -> bool:
        """Return whether a live worker of the run's engine serves its agent in its version."""
        return row.agent_version in self.served.get((row.engine, row.agent), ())

    def serve_agent(self, agent: str, version: str | None = None) -> bool:
        """Return whether a live worker of any engine serves an agent, in a version or at all."""
        found = [versions for (_, name), versions in self.served.items() if name == agent]
        return any(version is None or version in versions for versions in found)

    def may_queue(self, row: RunRow) -> bool:
        """Return whether a run is ready and a live worker serves it, so that it waits for a slot if it needs one."""
        return self._is_ready(row) and row.worker is None and not row.cancelling and self.serve(row)

    def _is_ready(self, row: RunRow) -> bool:
        return row.ready_at is not None and row.ready_at <= self.now

    def waits_for(self, row: RunRow) -> list[WaitsFor]:
        """Return what a run waits for, except for a slot.

        A run that is ready waits for a worker if no live worker holds it or serves its version.
        """
        if row.status == "waiting" and not self._is_ready(row):
            return [wait_info(each) for each in row.waits if each != f"signal:{INTERRUPT}"] or [wait_info("time")]
        if row.status not in LIVE or row.worker in self.ids or self.serve(row):
            return []
        on = f" on {row.engine}" if row.engine else ""
        return [wait_info(f"worker:{row.agent} {row.agent_version}{on}")]


async def waits_of(store: Store, fleet: LiveWorkers, rows: Sequence[RunRow]) -> list[list[WaitsFor]]:
    """Return what each run waits for.

    A run that is ready and served waits for a slot if another one holds that of its session or user, or one of its
    agent. Slots of an agent may be free for the moment in which it is claimed.
    """
    queued = [row.id for row in rows if fleet.may_queue(row)]
    holders = await store.slot_holders(queued) if queued else {}
    slots = {run: [wait_info(f"slot:{holder}")] for run, holder in holders.items()}
    return [slots.get(row.id) or fleet.waits_for(row) for row in rows]


async def live_workers(store: Store, now: int) -> LiveWorkers:
    """Return the live workers and what they serve."""
    living = [each for each in await store.workers() if each.lease_until > now]
    served: dict[tuple[str, str], set[str]] = {}
    for worker in living:
        for name, versions in worker.agents.items():
            served.setdefault((worker.engine, name), set()).update(versions)
    ids, engines = frozenset(each.id for each in living), frozenset(each.engine for each in living)
    return LiveWorkers(now=now, ids=ids, engines=engines, served=served)


async def agents_of(store: Store, now: int) -> list[AgentInfo]:
    """Return all agents that have been registered in a store, by name."""
    fleet = await live_workers(store, now)
    return [
        AgentInfo(
            name=row.agent,
            version=row.version,
            is_served=fleet.serve_agent(row.agent, row.version),
            contract=parse(row.contract),
        )
        for row in await store.contracts()
    ]


async def workers_of(store: Store, now: int) -> list[WorkerInfo]:
    """Return all registered workers, including those whose lease has expired."""
    duties, held = await store.duties(), Counter[str | None]()
    async for run in each_run(store, RunFilter(status=("running",))):
        held[run.worker] += 1
    return [
        WorkerInfo(
            id=row.id,
            is_live=row.lease_until > now,
            agents={name: versions for name, versions in row.agents.items() if not name.startswith(OWN)},
            started=to_datetime(row.started),
            lease_until=to_datetime(row.lease_until),
            runs=held[row.id],
            engine=row.engine,
            duties={
                duty.name: None if duty.worker == row.id or duty.done is None else to_datetime(duty.done)
                for duty in duties
                if row.id in (duty.worker, duty.done_by)
            },
        )
        for row in await store.workers()
    ]


async def stats_of(store: Store, now: int) -> Stats:
    """Return the counts of a store, from its counters."""
    fleet, by_agent = await live_workers(store, now), dict[str, dict[str, int]]()
    runs: dict[str, int] = {}
    for (agent, status), count in sorted((await store.counts()).items()):
        by_agent.setdefault(agent, {})[status] = count
        runs[status] = runs.get(status, 0) + count
    unfinished = [agent for agent, found in by_agent.items() if any(found.get(each) for each in LIVE)]
    return Stats(
        runs=runs,
        agents=by_agent,
        requests=await store.count_requests(),
        workers=len(fleet.ids),
        unserved=tuple(agent for agent in unfinished if not fleet.serve_agent(agent)),
    )
