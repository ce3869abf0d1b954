"""Agents, workers and counts."""

from typing import Annotated

from limpet.arguments import checked
from limpet.clock import Duration, microseconds
from limpet.service.activity import Activity, activity_of
from limpet.service.api.core import AppCore
from limpet.service.api.run_filters import CreatedBefore
from limpet.service.doctor import CheckOptions, check_store
from limpet.service.findings import Finding
from limpet.service.operation import AgentName, InDoors, Last, Param, query
from limpet.service.page import Page
from limpet.service.queries import check_last, time_before
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

    @query("/activity", needs="look", is_large=True, example="--last 200 --agent support")
    async def activity(self, *, agent: AgentName = None, until: CreatedBefore = None, last: Last = 1000) -> Activity:
        """Show how the newest runs went: how many ended and failed over time, how long requests wait, and the success,
        duration and cost of each agent's runs.
        """
        check_last(last)
        end = await self.store.now() if until is None else await time_before(self.store, until, "until")
        return await activity_of(self.store, last, agent, end)

    @query("/doctor", needs=("payloads", "maintain"), is_large=True)
    async def doctor(
        self,
        *,
        last: Annotated[
            int, Param(ge=1, le=1000, description="Number of newest runs to compare with their logs.")
        ] = 100,
        stuck: Annotated[
            Duration,
            Param(description="Report runs that have been ready for longer than this.", examples=["10m"]),
            InDoors(str),
        ] = "10m",
    ) -> Page[Finding]:
        """Check the store, its clock, stuck runs and workers. Each finding says what to do. Nothing is changed.

        A finding about a run that waits for an operator quotes the reason.
        """
        options = CheckOptions(last=last, stuck=microseconds(stuck), engine=self._settings.engine)
        return Page(await check_store(self.store, self._settings.clock, options))
