"""Search all runs: events, decisions, errors and calls of tools."""

from collections.abc import Sequence
from typing import Annotated

from limpet.arguments import checked
from limpet.engine.execution.views import EventView
from limpet.service.api.core import AppCore
from limpet.service.error_records import ErrorInfo
from limpet.service.operation import AgentName, Cursor, InDoors, Last, Param, Resource, Since, Text, query
from limpet.service.page import Page
from limpet.service.queries import CallInfo, DecisionInfo, Queries

__all__ = ["AllRuns"]

OneRun = Annotated[str | None, Param(description="Only this run.", examples=["ticket-42"]), Resource("run")]


@checked
class AllRuns(AppCore):
    """Search all runs."""

    topic = "Search all runs"

    @query("/search", needs="payloads", is_large=True, example='"arrived broken" --since 7d')
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

    @query("/decisions", needs="payloads", is_large=True, example="refund --since 7d")
    async def decisions(
        self,
        text: Text = "",
        /,
        *,
        run: OneRun = None,
        agent: AgentName = None,
        since: Since = None,
        last: Last = 20,
        cursor: Cursor = None,
    ) -> Page[DecisionInfo]:
        """List the decisions of all runs, or of one, with options and reasons, the newest first."""
        return await (await Queries.over(self.store, since, last, cursor, run)).decisions(agent=agent, text=text)

    @query("/errors", needs="payloads", is_large=True, example="--since 1d")
    async def errors(
        self,
        *,
        run: OneRun = None,
        agent: AgentName = None,
        since: Since = None,
        last: Last = 20,
        cursor: Cursor = None,
    ) -> Page[ErrorInfo]:
        """List the failures of all runs, or of one, and how each was handled, the newest first.

        A failure has its step, tool, input, partial output, exception with traceback, and attempts. A step that was
        refused before it started is included: rejected, over budget, or with out-of-date data.
        """
        return await (await Queries.over(self.store, since, last, cursor, run)).errors(agent=agent)

    @query("/calls", needs="payloads", is_large=True, name="calls", example="refund --where 'cents>100' --since 7d")
    async def tool_calls(  # noqa: PLR0913 - all by name, and few at a time
        self,
        tool: Annotated[str | None, Param(description="Only this tool.", examples=["refund"])] = None,
        /,
        *,
        where: Annotated[
            Sequence[str],
            Param(description="Conditions on arguments: cents>100, order.id=o-1, to~example. All must match."),
            InDoors(list[str]),
        ] = (),
        run: OneRun = None,
        agent: AgentName = None,
        since: Since = None,
        last: Last = 20,
        cursor: Cursor = None,
    ) -> Page[CallInfo]:
        """List calls of tools, each with the decision before it and its reason, the newest first.

        A step counts as one call, however often it was attempted. A call that was refused before it started has the
        status `refused`.
        """
        return await (await Queries.over(self.store, since, last, cursor, run)).calls(tool, where=where, agent=agent)
