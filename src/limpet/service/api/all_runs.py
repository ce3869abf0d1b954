"""Search all runs: events, decisions, errors and calls of tools."""

from collections.abc import Sequence
from typing import Annotated

from limpet.arguments import checked
from limpet.engine.execution.views import EventView
from limpet.service.api.core import AppCore
from limpet.service.operation import AgentName, Cursor, InDoors, Last, Param, Since, Text, query
from limpet.service.page import Page
from limpet.service.queries import CallInfo, DecisionInfo, ErrorInfo, Queries

__all__ = ["AllRuns"]


@checked
class AllRuns(AppCore):
    """Search all runs."""

    topic = "Search all runs"

    @query("/search", example='"arrived broken" --since 7d')
    async def search(
        self,
        text: Text,
        /,
        *,
        kind: Annotated[str | None, Param(description="Only events of this kind.", examples=["step.failed"])] = None,
        since: Since = None,
        last: Last = 20,
        cursor: Cursor = None,
    ) -> Page[EventView]:
        """Find events of all runs and conversations that contain a text, the newest first."""
        return await (await Queries.over(self.store, since, last, cursor)).search(text, kind=kind)

    @query("/decisions", example="refund --since 7d")
    async def decisions(
        self,
        text: Text = "",
        /,
        *,
        agent: AgentName = None,
        since: Since = None,
        last: Last = 20,
        cursor: Cursor = None,
    ) -> Page[DecisionInfo]:
        """List the decisions of agents, with options and reasons, the newest first."""
        return await (await Queries.over(self.store, since, last, cursor)).decisions(agent=agent, text=text)

    @query("/errors", example="--since 1d")
    async def errors(
        self, *, agent: AgentName = None, since: Since = None, last: Last = 20, cursor: Cursor = None
    ) -> Page[ErrorInfo]:
        """List the failures of all runs and how each was handled, the newest first."""
        return await (await Queries.over(self.store, since, last, cursor)).errors(agent=agent)

    @query("/calls", name="calls", example="refund --where 'cents>100' --since 7d")
    async def tool_calls(
        self,
        tool: Annotated[str | None, Param(description="Only this tool.", examples=["refund"])] = None,
        /,
        *,
        where: Annotated[
            Sequence[str],
            Param(description="Conditions on arguments: cents>100, order.id=o-1, to~example. All must match."),
            InDoors(list[str]),
        ] = (),
        agent: AgentName = None,
        since: Since = None,
        last: Last = 20,
        cursor: Cursor = None,
    ) -> Page[CallInfo]:
        """List calls of tools, each with the decision before it and its reason, the newest first.

        A step counts as one call, however often it was attempted.
        """
        return await (await Queries.over(self.store, since, last, cursor)).calls(tool, where=where, agent=agent)
