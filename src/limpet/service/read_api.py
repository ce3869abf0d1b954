"""Looking: everything that can be asked of a store, and changes nothing."""

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
from limpet.service.files import using
from limpet.service.inbox import Inbox
from limpet.service.moments import Comparison, Diff, Moment, Point, state_at
from limpet.service.prompts import PromptView, context_of, read_prompt
from limpet.service.queries import CallInfo, DecisionInfo, ErrorInfo, Queries, check_last, check_status
from limpet.service.resolve import each_run, run_of
from limpet.service.settings import Settings
from limpet.service.timeline import TimelineRow, timeline
from limpet.service.verify import Verified, save_heads, verify_all, verify_one
from limpet.service.views import entries_of, info_of
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
from limpet.stores.store import LARGEST_PAGE

__all__ = ["ReadApi"]

# How the names of built-in agents begin.
OWN = "limpet."


@checked
class ReadApi:
    """Questions to one store."""

    def __init__(
        self, settings: Settings, agents: Mapping[str, Agent[Any, Any]], tell: Callable[..., Awaitable[None]]
    ) -> None:
        self._settings, self._agents = settings, dict(agents)
        self._time = StoreClock(settings.clock)
        self._desk = Inbox(settings, tell)
        self._talks = Conversations(settings, tell, self._time.now)

    @property
    def store(self) -> Store:
        """Where everything is."""
        return self._settings.store

    # Talk and people

    async def messages(self, conversation: str, /, *, last: int | None = None, whole: bool = False) -> list[Message]:
        """The newest messages of a conversation, in order; `whole` shows what summaries stand for."""
        if last is not None:
            check_last(last)
        return await self._talks.messages(conversation, last=last, whole=whole)

    async def conversations(self, *, session: str | None = None) -> list[ConversationInfo]:
        """The newest conversations."""
        return await self._talks.all(session)

    async def sessions(self) -> list[SessionInfo]:
        """The newest sessions."""
        return await self._talks.sessions()

    async def inbox(
        self,
        *,
        to: str | None = None,
        run: str | None = None,
        risk: str | None = None,
        older_than: Duration | None = None,
    ) -> list[Request]:
        """What waits for a person, the oldest first; `to` is a person, with the groups they are in, or a group."""
        return await self._desk.inbox(to=to, run=run, risk=risk, older_than=older_than)

    async def grants(self, run: str, /) -> list[Grant]:
        """The standing permissions of a run."""
        return await self._desk.grants(run)

    # Runs

    async def runs(
        self,
        *,
        status: str | None = None,
        agent: str | None = None,
        session: str | None = None,
        last: int = 50,
    ) -> list[RunInfo]:
        """The newest runs that match; Limpet's own, such as those that tell people, only if their agent is named."""
        check_last(last)
        check_status(status)
        where = RunFilter(status=(status,) if status else (), agent=agent, session=session)
        rows: list[RunRow] = []
        async for row in each_run(self.store, where, page=min(last, LARGEST_PAGE)):
            if agent is not None or not row.agent.startswith(OWN):
                rows.append(row)
            if len(rows) == last:
                break
        fleet = await self._fleet()
        return [info_of(row, fleet.waits_for(row)) for row in rows]

    async def log(self, run: str, /) -> list[EventView]:
        """Everything that happened to a run."""
        await self.store.get(run)
        return await entries_of(self.store, [event async for event in self.store.log(run)])

    async def artifact(self, run: str, artifact: str, /) -> bytes:
        """What an artifact of a run holds."""
        return await read_whole(self.store, await content_of(self.store, run, artifact))

    # Looking back

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
        """What a run knew before or after a step, after an event, or at a time; without any of them, now."""
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
        """The slice that fits of what a run knows, or knew before or after a step, and of what was said until then."""
        where = Point(before=before, after=after)
        row = await run_of(self.store, run)
        return await context_of(self.store, row, where, max_tokens=max_tokens, max_bytes=max_bytes)

    async def prompt(self, run: str, /, *, step: int) -> PromptView:
        """Exactly what a model was asked at a step, made again from its reference; and why it saw that."""
        agent = self._agents.get((await run_of(self.store, run)).agent)
        return await read_prompt(
            self.store, run, step, None if agent is None or agent.llm is None else agent.llm.build_context
        )

    async def diff(
        self, run: str, /, *, step: int | None = None, since: Point | None = None, until: Point | None = None
    ) -> Diff:
        """What a run knew after a step that it did not before, until it came to the next; or between two points."""
        await run_of(self.store, run)
        if step is not None:
            since, until = Point(before=step), Point(seq=await moments.until_next(self.store, run, step))
        return await moments.diff(self.store, run, since or Point(seq=1), until or Point())

    async def compare(self, one: str, other: str, /) -> Comparison:
        """Where two runs went apart, and how they differ in state, decisions, results, cost and time."""
        for run in (one, other):
            await run_of(self.store, run)
        return await moments.compare(self.store, one, other)

    # Across runs

    async def search(
        self, text: str, /, *, kind: str | None = None, since: Duration | datetime | None = None, last: int = 100
    ) -> list[EventView]:
        """Events of all runs and conversations that hold some words, the newest first."""
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
        """What agents chose, from what and why, the newest first; with some words in it."""
        return await (await Queries.over(self.store, since, last)).decisions(agent=agent, text=text)

    async def errors(
        self, *, agent: str | None = None, since: Duration | datetime | None = None, last: int = 100
    ) -> list[ErrorInfo]:
        """What went wrong, and how it was handled, the newest first."""
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
        """Calls of a tool, the newest first, and the choice before each; `where=["cents>100"]` looks at arguments.

        A step is one call, however often it was tried, after a crash or a `resume` too.
        """
        return await (await Queries.over(self.store, since, last)).calls(tool, where=where, agent=agent)

    async def timeline(self, run: str, /) -> list[TimelineRow]:
        """When a run worked and when it waited."""
        return await timeline(self.store, (await run_of(self.store, run)).id)

    async def agents(self) -> list[AgentInfo]:
        """The agents that this store knows, whoever has their code."""
        return await agents_of(self.store, self._time.now())

    async def workers(self) -> list[WorkerInfo]:
        """Every worker of this store that was not given up."""
        return await workers_of(self.store, self._time.now())

    async def stats(self) -> Stats:
        """How many runs, requests and workers there are."""
        return await stats_of(self.store, self._time.now())

    async def _fleet(self) -> LiveWorkers:
        return await live_workers(self.store, self._time.now())

    # Trust

    async def verify(
        self, run: str | None = None, /, *, heads: str | Path | None = None, pruned: str | Path | None = None
    ) -> Verified:
        """Check one run, or all: hashes, rows, and where logs ended once, if heads were saved; raises Tampered.

        `pruned` is the list in the archive of what was deleted on purpose since.
        """
        if run is not None:
            return await verify_one(self.store, run)
        with (
            nullcontext() if heads is None else using(heads) as kept,
            nullcontext() if pruned is None else using(pruned) as gone,
        ):
            return await verify_all(self.store, kept, pruned=gone)

    async def save_heads(self, path: str | Path, /) -> int:
        """Write where every log ends now to a file, to be kept elsewhere; how many. `verify(heads=...)` reads it."""
        with using(path) as file:
            return await save_heads(self.store, file)

    async def value(self, payload: Mapping[str, Any]) -> Any:
        """What is in a payload of an event, as `log` and `events` show it, wherever it is stored."""
        return await self.store.unpack(msgspec.convert(payload, Payload)) if "blob" in payload else payload.get("json")

    async def info(self, run: str) -> RunInfo:
        """A run as lists show it."""
        row = await run_of(self.store, run)
        return info_of(row, (await self._fleet()).waits_for(row))
