"""The read-only part of the app: methods that query one store and change nothing."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from limpet.arguments import checked
from limpet.clock import Duration
from limpet.context.slice import ContextSlice
from limpet.engine.definitions.agents import Agent
from limpet.engine.execution.views import EventView, Request, RunInfo
from limpet.engine.run.artifacts import read_whole
from limpet.engine.run.conversation import Message
from limpet.engine.worker.worker import StoreClock
from limpet.events import Payload
from limpet.service import moments
from limpet.service.artifacts import content_of
from limpet.service.conversations import ConversationInfo, Conversations, SessionInfo
from limpet.service.files import file_errors
from limpet.service.inbox import Inbox
from limpet.service.moments import Comparison, Diff, Moment, Point, state_at
from limpet.service.prompts import PromptView, context_of, read_prompt
from limpet.service.queries import CallInfo, DecisionInfo, ErrorInfo, Queries, check_last, check_status
from limpet.service.report import Report, report
from limpet.service.resolve import each_run, run_of
from limpet.service.settings import Settings
from limpet.service.steps import StepInfo, step_infos
from limpet.service.timeline import TimelineRow, timeline
from limpet.service.verify import Verified, save_heads, verify_all, verify_one
from limpet.service.views import event_views, run_info
from limpet.service.workers import (
    AgentInfo,
    LiveWorkers,
    Stats,
    WorkerInfo,
    agents_of,
    live_workers,
    stats_of,
    workers_of,
)
from limpet.state.run import Grant
from limpet.stores import RunFilter, RunRow, Store
from limpet.stores.fork_reads import StepRange
from limpet.stores.store import LARGEST_PAGE

__all__ = ["ReadApi"]

# Prefix of the names of built-in agents.
OWN = "limpet."


@checked
class ReadApi:
    """Query one store."""

    def __init__(
        self, settings: Settings, agents: Mapping[str, Agent[Any, Any]], send: Callable[..., Awaitable[None]]
    ) -> None:
        self._settings, self._agents = settings, dict(agents)
        self._time = StoreClock(settings.clock)
        self._inbox = Inbox(settings, send)
        self._conversations = Conversations(settings, send, self._time.now)

    @property
    def store(self) -> Store:
        """The store of this app."""
        return self._settings.store

    # Conversations and requests

    async def messages(self, conversation: str, /, *, last: int | None = None, whole: bool = False) -> list[Message]:
        """Return the newest messages of a conversation, in order.

        `last` limits their number; without it, all are returned. With `whole`, the messages that were summarised are
        returned in place of their summaries.
        """
        if last is not None:
            check_last(last)
        return await self._conversations.messages(conversation, last=last, whole=whole)

    async def conversations(self, *, session: str | None = None) -> list[ConversationInfo]:
        """Return the newest conversations, of one session or of all."""
        return await self._conversations.all(session)

    async def sessions(self) -> list[SessionInfo]:
        """Return the sessions of the newest runs and conversations, the newest first."""
        return await self._conversations.sessions()

    async def inbox(
        self,
        *,
        to: str | None = None,
        run: str | None = None,
        risk: str | None = None,
        older_than: Duration | None = None,
    ) -> list[Request]:
        """Return the open requests, the oldest first.

        `to` is a person (including the groups they belong to) or a group. `run` and `risk` select requests of one run
        or risk; `older_than` those that have been open for at least that long.
        """
        return await self._inbox.inbox(to=to, run=run, risk=risk, older_than=older_than)

    async def grants(self, run: str, /) -> list[Grant]:
        """Return the standing approvals of a run."""
        return await self._inbox.grants(run)

    # Runs

    async def runs(
        self,
        *,
        status: str | None = None,
        agent: str | None = None,
        session: str | None = None,
        last: int = 50,
    ) -> list[RunInfo]:
        """Return the newest runs that match.

        Runs of built-in agents (such as those that send notifications) are only included if `agent` names them.
        """
        check_last(last)
        check_status(status)
        where = RunFilter(status=(status,) if status else (), agent=agent, session=session)
        rows: list[RunRow] = []
        async for row in each_run(self.store, where, page=min(last, LARGEST_PAGE)):
            if agent is not None or not row.agent.startswith(OWN):
                rows.append(row)
            if len(rows) == last:
                break
        fleet = await self._live_workers()
        return [run_info(row, fleet.waits_for(row)) for row in rows]

    async def show(self, run: str, /) -> Report:
        """Return a report of a run: its status, its last steps, what it waits for, and its last error."""
        return await report(self.store, await self.info(run), tuple(await self.inbox(run=run)))

    async def steps(self, run: str, /, *, after: int = 0, limit: int = 50, newest: bool = False) -> list[StepInfo]:
        """Return steps of a run with numbers above `after`, by number; `newest` returns the last ones, newest first.

        `limit` is their maximum number. Only these steps are read, wherever they are in the log.
        """
        check_last(limit)
        id = (await run_of(self.store, run)).id
        return await step_infos(self.store, id, StepRange(after=after, limit=limit, backwards=newest))

    async def log(self, run: str, /) -> list[EventView]:
        """Return all events of a run."""
        await self.store.get(run)
        return await event_views(self.store, [event async for event in self.store.log(run)])

    async def artifact(self, run: str, artifact: str, /) -> bytes:
        """Return the content of an artifact of a run."""
        return await read_whole(self.store, await content_of(self.store, run, artifact))

    # State and history

    async def state(
        self,
        run: str,
        /,
        *,
        before: int | None = None,
        after: int | None = None,
        seq: int | None = None,
        at: datetime | int | None = None,
    ) -> Moment:
        """Return the state of a run at a point: `before` or `after` a step, after event `seq`, or `at` a time. The
        default is now.

        Pass at most one of them. `at` is a datetime with a time zone, or microseconds since 1970.
        """
        where = Point(before=before, after=after, seq=seq, at=at)
        return await state_at(self.store, (await run_of(self.store, run)).id, where)

    async def context(
        self,
        run: str,
        /,
        *,
        before: int | None = None,
        after: int | None = None,
        max_tokens: int | None = None,
        max_bytes: int | None = None,
    ) -> ContextSlice:
        """Return the part of a run's state and messages that fits into a limit, as a model or another agent would be
        given it.

        `before` or `after` selects the time of a step; the default is now. `max_tokens` and `max_bytes` limit the size.
        """
        where = Point(before=before, after=after)
        row = await run_of(self.store, run)
        return await context_of(self.store, row, where, max_tokens=max_tokens, max_bytes=max_bytes)

    async def prompt(self, run: str, /, *, step: int) -> PromptView:
        """Return the exact prompt of a model call, rebuilt from its record, and why it contained each part."""
        agent = self._agents.get((await run_of(self.store, run)).agent)
        return await read_prompt(
            self.store, run, step, None if agent is None or agent.llm is None else agent.llm.build_context
        )

    async def diff(
        self, run: str, /, *, step: int | None = None, since: Point | None = None, until: Point | None = None
    ) -> Diff:
        """Return what step `step` changed in the state of a run, including all events until the next step.

        Or pass `since` and `until` to compare two points. The defaults are the first and the last event.
        """
        await run_of(self.store, run)
        if step is not None:
            since, until = Point(before=step), Point(seq=await moments.until_next(self.store, run, step))
        return await moments.diff(self.store, run, since or Point(seq=1), until or Point())

    async def compare(self, one: str, other: str, /) -> Comparison:
        """Compare two runs: where their logs diverge, and how state, decisions, results, cost and time differ."""
        for run in (one, other):
            await run_of(self.store, run)
        return await moments.compare(self.store, one, other)

    # Queries across runs

    async def search(
        self, text: str, /, *, kind: str | None = None, since: Duration | datetime | None = None, last: int = 100
    ) -> list[EventView]:
        """Return the events of all runs and conversations that contain a text, ignoring case, the newest first.

        `kind` selects events of one kind, and `since` those after a time or within a duration. `last` limits their
        number.
        """
        return await (await Queries.over(self.store, since, last)).search(text, kind=kind)

    async def decisions(
        self,
        text: str = "",
        /,
        *,
        agent: str | None = None,
        since: Duration | datetime | None = None,
        last: int = 100,
    ) -> list[DecisionInfo]:
        """Return the decisions of agents, with options and reasons, the newest first.

        `text` selects those that contain it, ignoring case, and `since` those after a time or within a duration.
        """
        return await (await Queries.over(self.store, since, last)).decisions(agent=agent, text=text)

    async def errors(
        self, *, agent: str | None = None, since: Duration | datetime | None = None, last: int = 100
    ) -> list[ErrorInfo]:
        """Return failures and how each was handled, the newest first. `since` is a time or a duration."""
        return await (await Queries.over(self.store, since, last)).errors(agent=agent)

    async def tool_calls(
        self,
        tool: str | None = None,
        /,
        *,
        where: Sequence[str] = (),
        agent: str | None = None,
        since: Duration | datetime | None = None,
        last: int = 100,
    ) -> list[CallInfo]:
        """Return calls of a tool, or of all tools, each with the decision before it, the newest first.

        `where` filters by arguments: `["cents>100"]`; all conditions must match. `since` is a time or a duration. A
        step counts as one call, however often it was attempted.
        """
        return await (await Queries.over(self.store, since, last)).calls(tool, where=where, agent=agent)

    async def timeline(self, run: str, /) -> list[TimelineRow]:
        """Return when a run worked and when it waited."""
        return await timeline(self.store, (await run_of(self.store, run)).id)

    async def agents(self) -> list[AgentInfo]:
        """Return the agents that have been registered in this store, by any process."""
        return await agents_of(self.store, self._time.now())

    async def workers(self) -> list[WorkerInfo]:
        """Return the registered workers of this store, including those whose lease has expired."""
        return await workers_of(self.store, self._time.now())

    async def stats(self) -> Stats:
        """Return the number of runs, open requests and live workers."""
        return await stats_of(self.store, self._time.now())

    async def _live_workers(self) -> LiveWorkers:
        return await live_workers(self.store, self._time.now())

    # Verification

    async def verify(
        self, run: str | None = None, /, *, heads: str | Path | None = None, pruned: str | Path | None = None
    ) -> Verified:
        """Check the hashes of one run or of all, and the rows derived from their logs. Raises Tampered.

        `heads` is a file that `save_heads` wrote: each log must still contain the head that is recorded there. `pruned`
        is the list in an archive of runs that `prune` deleted since then.
        """
        if run is not None:
            return await verify_one(self.store, run)
        with (
            nullcontext() if heads is None else file_errors(heads) as kept,
            nullcontext() if pruned is None else file_errors(pruned) as gone,
        ):
            return await verify_all(self.store, kept, pruned=gone)

    async def save_heads(self, path: str | Path, /) -> int:
        """Write the head of every log to a file, and return their number. Store it elsewhere, and pass it to
        `verify(heads=...)`.
        """
        with file_errors(path) as file:
            return await save_heads(self.store, file)

    async def value(self, payload: Mapping[str, Any]) -> Any:
        """Return the value of a payload in an event, as `log` and `events` show it, loading it from a blob if
        necessary.
        """
        return await self.store.unpack(msgspec.convert(payload, Payload)) if "blob" in payload else payload.get("json")

    async def info(self, run: str) -> RunInfo:
        """Return the summary of a run, as lists show it."""
        row = await run_of(self.store, run)
        return run_info(row, (await self._live_workers()).waits_for(row))
