"""Who is there: agents and who serves them, workers, and how many runs there are of each kind."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from limpet.events.values import parse
from limpet.service.views import LIVE
from limpet.stores import RequestFilter, Store

__all__ = ["AgentInfo", "Stats", "WorkerInfo", "agents_of", "served_by", "stats_of", "workers_of"]

# More open requests than that are not counted one by one.
MANY = 1000


@dataclass(frozen=True, kw_only=True)
class AgentInfo:
    """An agent that a store knows, whoever has its code."""

    name: str
    version: str
    is_served: bool
    """Whether a live worker drives runs of it at this version."""
    contract: Mapping[str, Any]
    """What it takes and gives, as JSON Schema."""


@dataclass(frozen=True, kw_only=True)
class WorkerInfo:
    """A process that drives runs."""

    id: str
    is_live: bool
    agents: Mapping[str, tuple[str, ...]]
    """What it serves, each with the versions that it takes."""
    started: int
    lease_until: int


@dataclass(frozen=True, kw_only=True)
class Stats:
    """How many there are."""

    runs: Mapping[str, int]
    """By status."""
    agents: Mapping[str, Mapping[str, int]]
    """By agent, and status."""
    requests: int
    """That are open; a thousand at most are counted."""
    workers: int
    """That live."""
    unserved: tuple[str, ...]
    """Agents with runs that go on, and no live worker."""


async def served_by(store: Store, now: int) -> dict[str, set[str]]:
    """The versions of agents that live workers serve."""
    served: dict[str, set[str]] = {}
    for worker in await store.workers():
        if worker.lease_until > now:
            for name, versions in worker.agents.items():
                served.setdefault(name, set()).update(versions)
    return served


async def agents_of(store: Store, now: int) -> list[AgentInfo]:
    """All agents that a store knows, by name."""
    served = await served_by(store, now)
    return [
        AgentInfo(
            name=row.agent,
            version=row.version,
            is_served=row.version in served.get(row.agent, ()),
            contract=parse(row.contract),
        )
        for row in await store.contracts()
    ]


async def workers_of(store: Store, now: int) -> list[WorkerInfo]:
    """Every worker that was not given up."""
    return [
        WorkerInfo(
            id=row.id,
            is_live=row.lease_until > now,
            agents=dict(row.agents),
            started=row.started,
            lease_until=row.lease_until,
        )
        for row in await store.workers()
    ]


async def stats_of(store: Store, now: int) -> Stats:
    """How many there are, without counting them."""
    served, by_agent = await served_by(store, now), dict[str, dict[str, int]]()
    runs: dict[str, int] = {}
    for (agent, status), count in sorted((await store.counts()).items()):
        by_agent.setdefault(agent, {})[status] = count
        runs[status] = runs.get(status, 0) + count
    idle = [agent for agent, found in by_agent.items() if agent not in served and any(found.get(each) for each in LIVE)]
    return Stats(
        runs=runs,
        agents=by_agent,
        requests=len(await store.requests(RequestFilter(status="open"), limit=MANY)),
        workers=sum(each.lease_until > now for each in await store.workers()),
        unserved=tuple(idle),
    )
