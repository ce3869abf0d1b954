"""Streams: the events of a run, pieces of model replies, and changes of runs, requests and records, as they happen.

One reader of the store's feed serves all streams of a process. Each item has a cursor to go on from, after a cut
connection, without a gap and without a repeat.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from itertools import dropwhile, groupby
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from limpet.arguments import checked
from limpet.engine.execution.views import EventView
from limpet.errors import InvalidArgument
from limpet.events import Payload
from limpet.events import bodies as b
from limpet.journal import record_id
from limpet.service.access import may
from limpet.service.api.core import AppCore
from limpet.service.api.run_filters import WithLabels, WithParent, WithSession, WithStatus, WithText, WithUser
from limpet.service.batch_agent import OWN
from limpet.service.feed_reader import PAGE, FeedItem, FeedPage
from limpet.service.operation import AgentName, Caller, FellBehind, Param, RunId, StreamStart, stream
from limpet.service.queries import labels_of, statuses_of
from limpet.service.reply_pieces import ReplyPieces
from limpet.service.resolve import run_of
from limpet.service.stream_items import RecordEvent, ReplyPiece, RequestChange, RunChange
from limpet.service.views import event_views, request_of, run_info
from limpet.service.workers import waits_of
from limpet.state import ENDED
from limpet.stores import RequestFilter, RequestRow, RunFilter, RunRow
from limpet.stores.api.base import LARGEST_PAGE
from limpet.stores.projection import project
from limpet.stores.search import row_matches
from limpet.stores.transaction import request_of as request_id
from limpet.stores.writes import RECORD

__all__ = ["ENDS", "Streams"]

After = Annotated[
    str | None,
    Param(description="Go on after the item with this cursor. Over HTTP, the header Last-Event-ID does the same."),
]
Ended = b.RunCompleted | b.RunFailed | b.RunCancelled
ENDS = frozenset({"run.completed", "run.failed", "run.cancelled"})
"""Kinds of the events with which a run ends."""
STARTS = frozenset({"run.created", "run.forked", "conversation.created", "conversation.forked"})
_REPLY_CURSOR = re.compile(r"([0-9]{1,18})((?:\.[0-9]{1,18}-[0-9]{1,18})*)")


@checked
class Streams(AppCore):
    """Watch runs and requests."""

    topic = "Watch"

    @stream("/streams/runs/{run}", needs="payloads")
    async def watch_run(self, run: RunId, /, *, after: After = None, caller: Caller = None) -> AsyncIterator[EventView]:
        """Yield the events of a run, those that exist and then new ones, until the run has ended.

        The cursor of an event is its `seq`.
        """
        async with aclosing(self._events(run, _seq_of(after), may_catch_up=caller is None)) as events:
            async for event in events:
                yield event

    async def events(self, run: str, after: int = 0, *, follow: bool = True) -> AsyncIterator[EventView]:
        """Yield the events of a run until it has ended. Without `follow`, only yield those that exist now."""
        if follow and self._listener is not None:
            async with aclosing(self._events(run, after, may_catch_up=True)) as events:
                async for event in events:
                    yield event
            return
        await run_of(self.store, run)
        async for found in self.store.log(run, after=after):
            [event] = await event_views(self.store, [found])
            yield event

    async def _events(self, run: str, after: int, *, may_catch_up: bool) -> AsyncGenerator[EventView, None]:
        listener = self._check_open()
        while True:
            viewer = await self._feed.add(listener, run)
            try:
                row = await run_of(self.store, run)
                async for found in self.store.log(run, after=after):
                    after = found.seq
                    [event] = await event_views(self.store, [found])
                    yield event
                if row.status in ENDED and after >= row.seq:
                    return
                is_whole = after <= row.seq  # else the run may have ended after its row was read
                while is_whole and not viewer.is_behind:
                    for item in await viewer.take():
                        if item.event.seq <= after:
                            continue
                        after = item.event.seq
                        is_whole = is_whole and item.event.kind not in ENDS  # events may follow the end
                        yield await item.view()
            finally:
                self._feed.remove(viewer, run)
            if viewer.is_behind and not may_catch_up:
                raise FellBehind

    @stream("/streams/runs/{run}/replies", needs="payloads")
    async def watch_replies(
        self, run: RunId, /, *, after: After = None, caller: Caller = None
    ) -> AsyncIterator[ReplyPiece]:
        """Yield the text of a run's model replies in pieces, while the models write them, until the run has ended."""
        seq, shown = _reply_place(after)
        pieces = ReplyPieces(shown)
        async with aclosing(self._events(run, seq, may_catch_up=caller is None)) as events:
            async for event in events:
                if text := await pieces.piece_in(event, self.value):
                    open_replies = "".join(f".{step}-{length}" for step, length in pieces.shown.items())
                    yield ReplyPiece(cursor=f"{event.seq}{open_replies}", step=event.body.get("number", 0), text=text)

    async def replies(self, run: str, after: int = 0) -> AsyncIterator[str]:
        """Yield the text of a run's model replies in pieces, until the run has ended. `after` is the sequence of an
        event to continue after.
        """
        watched: Any = self.watch_replies(run, after=str(after))
        async with aclosing(watched) as pieces:
            async for piece in pieces:
                yield piece.text

    async def value(self, payload: Mapping[str, Any]) -> Any:
        """Return the value of a payload in an event, as `log` and `events` show it, loading it from a blob if
        necessary.
        """
        return await self.store.unpack(msgspec.convert(payload, Payload)) if "blob" in payload else payload.get("json")

    @stream("/streams/runs", needs="look")
    async def watch_runs(  # noqa: PLR0913 - all by name, and few at a time
        self,
        *,
        status: WithStatus = (),
        agent: AgentName = None,
        session: WithSession = None,
        user: WithUser = None,
        parent: WithParent = None,
        labels: WithLabels = (),
        text: WithText = None,
        after: After = None,
        caller: Caller = None,
    ) -> AsyncIterator[RunChange]:
        """Yield runs that change, as they are then. Every filter that is given must match. It never ends.

        Several changes that are found together are one item. Runs of built-in agents are only included if `agent` names
        them.
        """
        where = RunFilter(
            status=statuses_of(status),
            agent=agent,
            session=session,
            user=user,
            parent=parent,
            labels=labels_of(labels),
            text=text,
        )
        if after is None and caller is not None:
            after = await self.store.feed_end()
            yield _start_at(after)
        async with aclosing(self._pages(after, may_catch_up=caller is None)) as pages:
            async for page, items in pages:
                changes = await page.once("changes", partial(self._changes, page))
                for item in _last_of_each_run(items):
                    found = changes.get(item.event.run)
                    if found is None or (agent is None and found[0].agent.startswith(OWN)):
                        continue
                    if row_matches(found[0], where):
                        yield found[1] if found[1].cursor == item.cursor else replace(found[1], cursor=item.cursor)

    async def _changes(self, page: FeedPage) -> dict[str, tuple[RunRow, RunChange]]:
        """Return the runs with events in a page, as they are now."""
        last = {item.event.run: item.cursor for item in page.items}
        rows = [row for row in (await self.store.rows(list(last))).values() if row.type == "run"]
        waits = await waits_of(self.store, await self._live_workers(), rows)
        return {
            row.id: (row, RunChange(cursor=last[row.id], run=run_info(row, each)))
            for row, each in zip(rows, waits, strict=True)
        }

    async def _changed_names(self) -> AsyncIterator[frozenset[str]]:
        """Yield what changes, from now on: `run:ID` for a stream, `runs` for a new one, `records` and `inbox`.

        The first item is empty: it says that nothing is missed from then on. `*` says that anything may have changed.
        """
        listener, first = self._check_open(), frozenset[str]()
        while True:
            viewer = await self._feed.add(listener)
            try:
                yield first
                while not viewer.is_behind:
                    if changed := frozenset(name for item in await viewer.take() for name in _changed_by(item)):
                        yield changed
            finally:
                self._feed.remove(viewer)
            first = frozenset({"*"})

    @stream("/streams/inbox", needs=("payloads", "decide"))
    async def watch_inbox(
        self,
        *,
        to: Annotated[str | None, Param(description="Only for this person or group.", examples=["finance"])] = None,
        after: After = None,
        caller: Caller = None,
    ) -> AsyncIterator[RequestChange]:
        """Yield requests that are opened, escalated, decided, expired or withdrawn. It never ends.

        A caller who may only decide requests gets those that they are asked.
        """
        only_for = None if caller is None or may(caller, "payloads") else caller
        names = self._inbox.addressed(to, only_for)
        if after is None and caller is not None:
            after = await self.store.feed_end()
            yield _start_at(after)
        async with aclosing(self._pages(after, may_catch_up=caller is None)) as pages:
            async for page, items in pages:
                for item in items:
                    for row, change in await page.once(f"requests:{item.cursor}", partial(self._requests_of, item)):
                        if None in names or not set(names).isdisjoint(row.to):
                            yield change

    async def _requests_of(self, item: FeedItem) -> list[tuple[RequestRow, RequestChange]]:
        """Return the requests that an event changes, as they are now."""
        body = self.store.decode(item.event)
        changed = project(item.event, body).request
        if changed is not None:
            found = await self.store.requests(RequestFilter(id=request_id(changed), status=None), limit=1)
        elif isinstance(body, Ended):
            found = await self.store.requests(RequestFilter(run=item.event.run, status="withdrawn"), limit=LARGEST_PAGE)
        else:
            found = []
        return [
            (
                row,
                RequestChange(
                    cursor=item.cursor,
                    id=row.id,
                    run=row.run,
                    status=row.status,
                    request=await request_of(self.store, row) if row.status == "open" else None,
                ),
            )
            for row in found
        ]

    @stream("/streams/records", needs="look")
    async def watch_records(
        self,
        *,
        record: Annotated[str | None, Param(description="Only this record.", examples=["board"])] = None,
        after: After = None,
        caller: Caller = None,
    ) -> AsyncIterator[RecordEvent]:
        """Yield shared records that are patched, with their new version. It never ends."""
        wanted = None if record is None else record_id(record)
        if after is None and caller is not None:
            after = await self.store.feed_end()
            yield _start_at(after)
        async with aclosing(self._pages(after, may_catch_up=caller is None)) as pages:
            async for _, items in pages:
                for each in items:
                    run = each.event.run
                    if each.event.kind == "record.patched" and wanted in (None, run):
                        yield RecordEvent(cursor=each.cursor, record=run.removeprefix(RECORD), version=each.event.seq)

    async def _pages(
        self, after: str | None, *, may_catch_up: bool
    ) -> AsyncGenerator[tuple[FeedPage, Sequence[FeedItem]], None]:
        """Yield the feed after a cursor, or from now on. Events of one run come in the order of its log."""
        listener = self._check_open()
        while True:
            viewer = await self._feed.add(listener)
            try:
                seen: dict[str, int] = {}
                while after is not None and (found := await self.store.feed(after, limit=PAGE)).events:
                    page = FeedPage(self.store, found.events, found.cursors)
                    seen |= {event.run: event.seq for event in found.events}
                    yield page, page.items
                    after = found.next
                after = after or viewer.cursor
                while not viewer.is_behind:
                    for page, items in _by_page(_unseen(await viewer.take(), seen)):
                        yield page, items
                        after = items[-1].cursor
            finally:
                self._feed.remove(viewer)
            if not may_catch_up:
                raise FellBehind


def _changed_by(item: FeedItem) -> Iterator[str]:
    """Yield names of what an event changes."""
    kind = item.event.kind
    yield f"run:{item.event.run}"
    if kind in STARTS:
        yield "runs"
    if kind.startswith("record."):
        yield "records"
    if kind in ENDS or kind.startswith("request."):
        yield "inbox"


def _start_at(cursor: str) -> Any:
    """Return the first item for a caller over HTTP, whose connection may be cut before the next one."""
    return StreamStart(cursor)


def _unseen(items: Sequence[FeedItem], seen: dict[str, int]) -> list[FeedItem]:
    """Return the items after those that were read from the store. Nothing that follows an unseen one was read."""
    new = list(dropwhile(lambda item: item.event.seq <= seen.get(item.event.run, 0), items))
    if new:
        seen.clear()
    return new


def _by_page(items: Sequence[FeedItem]) -> Iterator[tuple[FeedPage, list[FeedItem]]]:
    """Group items that were read together."""
    return ((page, list(group)) for page, group in groupby(items, key=lambda item: item.page))


def _last_of_each_run(items: Sequence[FeedItem]) -> list[FeedItem]:
    """Return the last item of each run, in order."""
    last = {item.event.run: place for place, item in enumerate(items)}
    return [items[place] for place in sorted(last.values())]


def _seq_of(cursor: str | None) -> int:
    return _reply_place(cursor)[0]


def _reply_place(cursor: str | None) -> tuple[int, dict[int, int]]:
    """Return the event that a cursor stands for, and how much of the open replies was shown before it."""
    found = _REPLY_CURSOR.fullmatch(cursor or "0")
    if found is None:
        raise InvalidArgument(path="after", reason=f"{cursor!r} is not a cursor; pass the one of an item")
    shown = (each.split("-") for each in found[2].split(".")[1:])
    return int(found[1]), {int(step): int(length) for step, length in shown}
