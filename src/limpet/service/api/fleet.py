"""Agents, workers and counts."""

from limpet.arguments import checked
from limpet.service.api.core import AppCore
from limpet.service.operation import query
from limpet.service.page import Page
from limpet.service.workers import AgentInfo, Stats, WorkerInfo, agents_of, stats_of, workers_of

__all__ = ["Fleet"]


@checked
class Fleet(AppCore):
    """Agents, workers and counts."""

    topic = "Search all runs"

    @query("/agents", needs="look")
    async def agents(self) -> Page[AgentInfo]:
        """List the agents that have been registered in the store, by any process."""
        return Page(await agents_of(self.store, self._time.now()))

    @query("/workers", needs="look")
    async def workers(self) -> Page[WorkerInfo]:
        """List the registered workers: the agents that each serves, and whether its lease is valid."""
        return Page(await workers_of(self.store, self._time.now()))

    @query("/stats", needs="look")
    async def stats(self) -> Stats:
        """Count the runs, open requests and live workers."""
        return await stats_of(self.store, self._time.now())
