"""Inspect runs: lists, reports, steps, events, states, differences, prompts and artifacts."""

from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec.structs import replace

from limpet.arguments import checked
from limpet.context.slice import ContextSlice
from limpet.engine.execution.views import EventView, Request, RunInfo, RunInput, WaitKind
from limpet.engine.run.artifacts import read_whole
from limpet.errors import InvalidArgument
from limpet.journal import load
from limpet.service import compare, diffs
from limpet.service.api.core import AppCore
from limpet.service.api.run_filters import (
    CreatedBefore,
    CreatedSince,
    WithLabels,
    WithParent,
    WithScore,
    WithSession,
    WithStatus,
    WithText,
    WithUser,
)
from limpet.service.artifacts import ArtifactPiece, content_of, piece_of
from limpet.service.batch_agent import OWN
from limpet.service.compare import Comparison
from limpet.service.diffs import Diff
from limpet.service.family import Family, family_of
from limpet.service.moments import Moment, MomentJson, Point, state_at
from limpet.service.operation import (
    MAX_INTEGER,
    After,
    AgentName,
    Before,
    Cursor,
    InDoors,
    Last,
    Limit,
    Param,
    Resource,
    RunId,
    StepNumber,
    query,
)
from limpet.service.page import Page, number_of
from limpet.service.pieces import DEFAULT_PIECE, MAX_CHARACTER, ValuePiece, value_piece
from limpet.service.prompts import PromptView, context_of, read_prompt
from limpet.service.queries import check_last, cursor_at, labels_of, place_of, statuses_of, time_before
from limpet.service.report import Report, outcome, report
from limpet.service.resolve import each_run, each_updated, run_of, runs_in, updated_in
from limpet.service.scores import newest_scores, score_condition
from limpet.service.step_details import StepDetail, step_detail
from limpet.service.steps import StepInfo, step_infos
from limpet.service.tasks import filter_of, read_task
from limpet.service.timeline import TimelineRow, timeline_page
from limpet.service.views import event_views, not_a_run, read_end, request_of, run_info
from limpet.service.workers import LiveWorkers, waits_of
from limpet.state import ENDED, TaskRecord, TaskState
from limpet.stores import RequestFilter, RunFilter, RunRow
from limpet.stores.api.base import LARGEST_PAGE
from limpet.stores.fork_reads import StepRange

__all__ = ["Inspection"]

Size = Annotated[int | None, Param(ge=1, le=MAX_INTEGER, description="Maximum size of the result.", examples=[2000])]
PieceStart = Annotated[int, Param(ge=0, le=MAX_INTEGER, description="Offset of the first byte.")]
PieceLimit = Annotated[
    int, Param(ge=MAX_CHARACTER, le=4_000_000, description="Maximum number of bytes.", examples=[100_000])
]
Raw = Annotated[bool, Param(description="Return it unchanged, with credentials.", right="raw")]

# Levels of called runs whose requests a report shows, and the number of requests of each run.
CALLED, ASKED = 5, 20


@checked
class Inspection(AppCore):
    """Inspect runs."""

    topic = "Inspect runs"

    @query("/runs", needs="look", example="--status failed --last 5")
    async def runs(  # noqa: PLR0913 - all by name, and few at a time
        self,
        *,
        status: WithStatus = (),
        waits_for: Annotated[
            WaitKind | None, Param(description="Only runs that wait for this.", examples=["person"])
        ] = None,
        agent: AgentName = None,
        session: WithSession = None,
        user: WithUser = None,
        conversation: Annotated[
            str | None, Param(description="Only this conversation.", examples=["chat-7"]), Resource("conversation")
        ] = None,
        parent: WithParent = None,
        fork_of: Annotated[
            str | None, Param(description="Only forks of this run.", examples=["ticket-42"]), Resource("run")
        ] = None,
        labels: WithLabels = (),
        text: WithText = None,
        scored: WithScore = None,
        since: CreatedSince = None,
        until: CreatedBefore = None,
        sort: Annotated[
            Literal["created", "updated"], Param(description="Time that orders the list, the newest first.")
        ] = "created",
        last: Last = 50,
        cursor: Cursor = None,
    ) -> Page[RunInfo]:
        """List the newest runs, with the status of each and what it waits for. Every filter that is given must match.

        With `sort="updated"`, those with the newest last event come first; a run that goes on while you read pages
        moves to the first page. Runs of built-in agents (such as those that send notifications) are only included if
        `agent` names them.
        """
        check_last(last)
        where = RunFilter(
            status=statuses_of(status),
            waits=_stored(waits_for),
            agent=agent,
            session=session,
            user=user,
            parent=parent,
            origin=fork_of,
            labels=labels_of(labels),
            created_from=None if since is None else await time_before(self.store, since, "since"),
            created_before=None if until is None else await time_before(self.store, until, "until"),
            text=text,
            scored=score_condition(scored),
        )
        fleet, is_updated = await self._live_workers(), sort == "updated"
        before = place_of(cursor) if is_updated else number_of(cursor)
        pages: dict[str, Any] = {"page": min(last + 1, LARGEST_PAGE), "before": before}
        if conversation is None:
            found = (each_updated if is_updated else each_run)(self.store, where, **pages)
        else:
            found = (updated_in if is_updated else runs_in)(self.store, conversation, where, **pages)

        if waits_for is not None:
            found = self._waiting_for(found, waits_for, fleet)

        def is_shown(row: RunRow) -> bool:
            return agent is not None or not row.agent.startswith(OWN)

        page = await _newest(found, last, is_shown, cursor_at if is_updated else None)
        waits = await waits_of(self.store, fleet, page)
        return Page([run_info(row, each) for row, each in zip(page, waits, strict=True)], page.next)

    async def _waiting_for(
        self, rows: AsyncIterator[RunRow], kind: WaitKind, fleet: LiveWorkers
    ) -> AsyncIterator[RunRow]:
        """Yield the runs that wait for something of a kind."""
        async for row in rows:
            [waits] = await waits_of(self.store, fleet, [row])
            if any(each.what == kind for each in waits):
                yield row

    @query("/runs/{run}/task", needs="payloads", example="ticket-42")
    async def task(self, run: RunId, /) -> TaskRecord:
        """Show a run as a task record: id, user input, state, result, error, and the times of creation and update."""
        await run_of(self.store, run)
        return await read_task(self.store, run)

    @query("/tasks", needs="payloads", is_large=True, example="--state awaiting_user")
    async def tasks(
        self,
        *,
        state: Annotated[TaskState | None, Param(description="Only tasks in this state.", examples=["failed"])] = None,
        agent: AgentName = None,
        last: Last = 50,
        cursor: Cursor = None,
    ) -> Page[TaskRecord]:
        """List runs as task records, the newest first. A run that waits for a person is `awaiting_user`."""
        check_last(last)
        where, size = filter_of(state, agent=agent), min(last + 1, LARGEST_PAGE)
        found = each_run(self.store, where, page=size, before=number_of(cursor))
        page = await _newest(found, last, lambda row: agent is not None or not row.agent.startswith(OWN))
        return Page([await read_task(self.store, row.id) for row in page], page.next)

    @query("/runs/{run}/info", needs="payloads", example="ticket-42")
    async def info(self, run: RunId, /) -> RunInfo:
        """Show the status and position of a run, and its output or error once it has ended: enough to poll it."""
        found = await self._info(run)
        if found.status not in ENDED:
            return found
        ended = await read_end(self.store, run)
        return found if ended is None else replace(found, **await outcome(self.store, ended[1]))

    @query("/runs/{run}", needs="payloads", is_large=True, example="ticket-42")
    async def show(self, run: RunId, /) -> Report:
        """Show a report of one run: its status, its last steps, what it waits for, and its last error."""
        info, workers = await self._info(run), await self._live_workers()
        requests = tuple([each async for each in self._requests(info)])
        is_served = info.version in workers.served.get((info.engine, info.agent), ())
        scores = await newest_scores(self.store, await run_of(self.store, run))
        return await report(self.store, info, requests, scores, is_served=is_served)

    async def _requests(self, info: RunInfo, levels: int = CALLED) -> AsyncIterator[Request]:
        """Yield the open requests of a run, then those of the runs that it waits for."""
        for row in await self.store.requests(RequestFilter(run=info.id), limit=ASKED):
            yield await request_of(self.store, row)
        for wait in info.waits_for if levels else ():
            if wait.what == "run":
                async for each in self._requests(await self._info(wait.key), levels - 1):
                    yield each

    @query("/runs/{run}/input", needs="payloads", is_large=True, example="ticket-42")
    async def input(self, run: RunId, /) -> RunInput:
        """Show the whole input of a run. Other views shorten it."""
        state = await load(self.store, (await run_of(self.store, run)).id)
        return RunInput(run=run, input=await self.store.unpack(state.input), bytes=state.input.size)

    @query("/runs/{run}/steps", needs="payloads", is_large=True, example="ticket-42 --limit 20")
    async def steps(
        self,
        run: RunId,
        /,
        *,
        limit: Limit = 50,
        cursor: Annotated[str | None, Param(description="Where to read on: a step number.")] = None,
        newest: Annotated[bool, Param(description="Begin with the last step.")] = False,
        seq: Annotated[
            int | None, Param(ge=1, le=MAX_INTEGER, description="Steps as they were after this event.")
        ] = None,
    ) -> Page[StepInfo]:
        """List the steps of a run by number: the call, its attempts, its result or error.

        Only these steps are read, wherever they are in the log.
        """
        check_last(limit, "limit")
        id, start = (await run_of(self.store, run)).id, number_of(cursor)
        after, before = (0, start) if newest else (start or 0, None)
        steps = StepRange(after=after, limit=min(limit, LARGEST_PAGE) + 1, backwards=newest)
        steps = steps if before is None else steps._replace(before=before)
        steps = steps if seq is None else steps._replace(upto=seq)
        return Page.cut(await step_infos(self.store, id, steps), limit, lambda step: step.number)

    @query("/runs/{run}/steps/{step}", needs="payloads", is_large=True, example="ticket-42 6")
    async def step(self, run: RunId, step: StepNumber, /) -> StepDetail:
        """Show one step with its whole arguments and result, all attempts, its requests and its compensation.

        Only the events of this step are read, wherever they are in the log. A value above 1 MB is read with `value`.
        """
        return await step_detail(self.store, (await run_of(self.store, run)).id, step)

    @query("/runs/{run}/log", needs="payloads", is_large=True, example="ticket-42 --cursor 20")
    async def log(
        self,
        run: RunId,
        /,
        *,
        limit: Limit = 1000,
        cursor: Annotated[str | None, Param(description="Where to read on: the number of an event.")] = None,
    ) -> Page[EventView]:
        """List the events of a run in order."""
        check_last(limit, "limit")
        row, after = await self.store.get(run), number_of(cursor) or 0
        if row.type == "audit":
            raise not_a_run(run)
        events = await self.store.read(run, after=after, limit=limit)
        found = Page.cut(await event_views(self.store, events), limit, lambda event: event.seq)
        if found and found.next is None and found[-1].seq < row.seq:
            found.next = str(found[-1].seq)
        return found

    @query("/runs/{run}/state", needs="payloads", is_large=True, result=MomentJson, example="ticket-42 --before 6")
    async def state(
        self,
        run: RunId,
        /,
        *,
        before: Before = None,
        after: After = None,
        seq: Annotated[int | None, Param(ge=1, le=MAX_INTEGER, description="State after this event.")] = None,
        at: Annotated[
            datetime | int | None, Param(description="State at this time, such as 2026-11-16T12:00:00Z.")
        ] = None,
        steps: Annotated[int, Param(ge=0, le=100, description="Number of settled steps to show.")] = 10,
    ) -> Moment:
        """Show the state of a run before or after a step, after an event, or at a time: where it was, what it knew,
        what it had done, what had failed, and what it had decided and why. The default is now.

        Pass at most one of them. In Python, `at` is a datetime with a time zone, or microseconds since 1970.
        """
        where = Point(before=before, after=after, seq=seq, at=at)
        return await state_at(self.store, (await run_of(self.store, run)).id, where, steps=steps)

    @query("/runs/{run}/diff", needs="payloads", is_large=True, example="ticket-42 6")
    async def diff(
        self,
        run: RunId,
        /,
        *,
        step: Annotated[
            int | None,
            Param(ge=1, le=MAX_INTEGER, description="Step number.", examples=[6], is_argument=True),
        ] = None,
        since: Annotated[
            Point | str | None,
            Param(description="First point: before:STEP, after:STEP, event:NUMBER, or a time.", examples=["after:2"]),
            InDoors(str | None),
        ] = None,
        until: Annotated[
            Point | str | None,
            Param(description="Last point. Default: the end of the log.", examples=["before:6"]),
            InDoors(str | None),
        ] = None,
    ) -> Diff:
        """Show what a step did, why, and what it changed in the state of a run, until the next step.

        Without `step`, show what happened between two points, `since` and `until`. The defaults are the first and the
        last event.
        """
        await run_of(self.store, run)
        one, other = Point.of(since), Point.of(until)
        if step is not None:
            if one is not None or other is not None:
                raise InvalidArgument(path="step", reason="pass a step, or since and until, not both")
            one, other = await diffs.of_step(self.store, run, step)
        return await diffs.diff(self.store, run, one or Point(seq=1), other or Point())

    @query("/runs/{one}/compare/{other}", needs="payloads", is_large=True, example="ticket-42 ticket-42.1")
    async def compare(self, one: RunId, other: RunId, /) -> Comparison:
        """Compare two runs: the first decision, call or answer that differs, then the rest, state, cost and outcome."""
        for run in (one, other):
            await run_of(self.store, run)
        return await compare.compare(self.store, one, other)

    @query("/runs/{run}/context", needs="payloads", is_large=True, example="ticket-42 --max-tokens 2000")
    async def context(
        self,
        run: RunId,
        /,
        *,
        before: Before = None,
        after: After = None,
        max_tokens: Size = None,
        max_bytes: Size = None,
    ) -> ContextSlice:
        """Show the part of a run's state and messages that fits into a limit, now or before or after a step."""
        where = Point(before=before, after=after)
        row = await run_of(self.store, run)
        return await context_of(self.store, row, where, max_tokens=max_tokens, max_bytes=max_bytes)

    @query("/runs/{run}/prompt/{step}", needs="payloads", is_large=True, example="ticket-42 3")
    async def prompt(self, run: RunId, /, *, step: StepNumber) -> PromptView:
        """Show the exact prompt of a model call, rebuilt from its record, and why it contained each part."""
        agent = self._agents.get((await run_of(self.store, run)).agent)
        return await read_prompt(
            self.store, run, step, None if agent is None or agent.llm is None else agent.llm.build_context
        )

    @query(
        "/runs/{run}/artifacts/{artifact}",
        needs="payloads",
        name="artifact",
        redacts_itself=True,
        is_large=True,
        example="ticket-42 01hx…",
    )
    async def artifact_piece(
        self,
        run: RunId,
        artifact: Annotated[
            str, Param(description="Artifact id, from the run's context or state.", examples=["01hx2k"])
        ],
        /,
        *,
        start: PieceStart = 0,
        limit: PieceLimit = DEFAULT_PIECE,
        raw: Raw = False,
    ) -> ArtifactPiece:
        """Read an artifact of a run, or a piece of it. To continue, pass `next` as `start`.

        Text is redacted as a whole, and then cut. Binary data, and text above 16 MiB, can only be read with `raw`,
        unchanged; then binary data is in `base64`.
        """
        id = (await run_of(self.store, run)).id
        return await piece_of(self.store, id, artifact, start=start, limit=limit, raw=raw)

    async def artifact(self, run: str, artifact: str, /) -> bytes:
        """Return the content of an artifact of a run."""
        return await read_whole(self.store, await content_of(self.store, run, artifact))

    @query("/runs/{run}/timeline", needs="look", is_large=True, example="ticket-42")
    async def timeline(
        self,
        run: RunId,
        /,
        *,
        limit: Limit = 1000,
        cursor: Annotated[str | None, Param(description="Where to read on: a step number.")] = None,
    ) -> Page[TimelineRow]:
        """List when a run worked and when it waited: its steps, and the waits between them, in order.

        A page has at most `limit` steps. Only these are read, wherever they are in the log. For a fork, only what came
        after the fork point is included.
        """
        check_last(limit, "limit")
        row = await run_of(self.store, run)
        rows, last = await timeline_page(self.store, row, limit, number_of(cursor) or 0)
        return Page(rows, None if last is None else str(last))

    @query("/runs/{run}/lineage", needs="look", is_large=True, example="ticket-42")
    async def lineage(self, run: RunId, /) -> Family:
        """Show the runs that a run came from, and those that came from it: forks, called runs and handoffs."""
        return await family_of(self.store, run)

    @query(
        "/runs/{run}/values/{blob}",
        needs="payloads",
        name="value",
        redacts_itself=True,
        is_large=True,
        example="ticket-42 3f9a… --limit 100000",
    )
    async def value_piece(
        self,
        run: RunId,
        blob: Annotated[
            str, Param(description='Id of the value: `blob` of `{"blob": …, "bytes": …}`.', examples=["3f9a"])
        ],
        /,
        *,
        start: PieceStart = 0,
        limit: PieceLimit = DEFAULT_PIECE,
        raw: Raw = False,
    ) -> ValuePiece:
        """Read a large value of a run as JSON text, or a piece of it. To continue, pass `next` as `start`.

        Where other queries show `{"blob": …, "bytes": …}`, the value is too large for them. It is redacted as a whole,
        and then cut; `bytes` is the size of the redacted text. A value above 16 MiB can only be read with `raw`.
        """
        return await value_piece(self.store, run, blob, start=start, limit=limit, raw=raw)


def _stored(wait: WaitKind | None) -> Literal["person", "signal", "run", "time", "operator"] | None:
    """Return a kind of condition that rows have; None for one that follows from workers and slots."""
    match wait:
        case "worker" | "slot":
            return None
        case _:
            return wait


async def _newest(
    rows: AsyncIterator[RunRow],
    last: int,
    is_shown: Callable[[RunRow], bool],
    cursor: Callable[[RunRow], str] | None = None,
) -> Page[RunRow]:
    """Return the first `last` rows that are shown, and where the next page starts: by default, at a number."""
    found: list[RunRow] = []
    async for row in rows:
        if is_shown(row):
            found.append(row)
        if len(found) > last:
            break
    more = found[last - 1] if len(found) > last else None
    return Page(found[:last], None if more is None else cursor(more) if cursor is not None else str(more.number))
