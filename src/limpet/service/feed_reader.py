"""The feed of a store, read once for all viewers of this process.

A viewer gets every event that is written after it was added. Its buffer is bounded: one that falls behind is told so,
and reads what it missed from the log. So a slow viewer costs no memory, and delays no other one.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from limpet.clock import SECOND, Clock
from limpet.engine.execution.views import EventView
from limpet.engine.worker.change_listener import ChangeListener
from limpet.errors import LimpetError, NotFound, Retryable
from limpet.events import Event
from limpet.service.views import event_views
from limpet.stores import Store

__all__ = ["FeedItem", "FeedPage", "FeedReader", "FeedViewer"]

T = TypeVar("T")
# Events that are read at once, and events that wait for a viewer.
PAGE, MOST_WAITING = 500, 1_000
# Microseconds before the feed is read again after a failure, and between two looks for deleted runs.
POLL_AGAIN, LOOK_FOR_DELETED = SECOND // 10, 10 * SECOND


class FeedPage:
    """Some events of the feed that were read together. What viewers need of them is loaded once for all."""

    def __init__(self, store: Store, events: Sequence[Event], cursors: Sequence[str]) -> None:
        self.store = store
        self._loaded: dict[str, asyncio.Future[Any]] = {}
        self.items = [FeedItem(self, event, cursor) for event, cursor in zip(events, cursors, strict=True)]

    async def once(self, name: str, load: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Load something for the first viewer that asks for it, and return it to all."""
        loading = self._loaded.get(name)
        if loading is None or (loading.done() and (loading.cancelled() or loading.exception() is not None)):
            loading = self._loaded[name] = asyncio.ensure_future(load())
            loading.add_done_callback(lambda done: done.cancelled() or done.exception())  # the viewers get it
        found: T = await asyncio.shield(loading)
        return found


class FeedItem:
    """An event of the feed, with its cursor."""

    __slots__ = ("cursor", "event", "page")

    def __init__(self, page: FeedPage, event: Event, cursor: str) -> None:
        self.page, self.event, self.cursor = page, event, cursor

    async def view(self) -> EventView:
        """Return the event as users see it."""
        [found] = await self.page.once(f"view:{self.cursor}", lambda: event_views(self.page.store, [self.event]))
        return found


class FeedViewer:
    """A viewer of all events, or of those of one run."""

    def __init__(self, cursor: str) -> None:
        self.cursor = cursor
        """Cursor of the feed after which the viewer gets all events."""
        self._waiting: deque[FeedItem] = deque()
        self._changed = asyncio.Event()
        self._error: LimpetError | None = None
        self.is_behind = False
        """Whether events were dropped, because the viewer took none for too long."""

    def give(self, items: Sequence[FeedItem]) -> None:
        """Give events to the viewer. Once it is behind, it gets no more."""
        if self.is_behind or len(self._waiting) + len(items) > MOST_WAITING:
            self.is_behind = True
            self._waiting.clear()
        else:
            self._waiting.extend(items)
        self._changed.set()

    def fail(self, error: LimpetError) -> None:
        """Let the viewer's next `take` raise an error."""
        self._error = error
        self._changed.set()

    async def take(self) -> list[FeedItem]:
        """Wait for events, and return all that are there; none if the viewer is behind."""
        await self._changed.wait()
        self._changed.clear()
        if self._error is not None:
            raise self._error
        found = list(self._waiting)
        self._waiting.clear()
        return found


class FeedReader:
    """Reads the feed while it has viewers, once for each change in the store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._viewers: dict[str | None, dict[FeedViewer, None]] = {}
        """The viewers of each run; None for those of all."""
        self._changed = asyncio.Event()
        self._starting = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._cursor = ""
        self._is_looking = False

    async def add(self, listener: ChangeListener, run: str | None = None) -> FeedViewer:
        """Add a viewer of all events, or of those of one run. It must be removed again."""
        async with self._starting:
            if self._reading is None or self._reading.done():
                self._cursor = await self._store.feed_end()
                self._reading = asyncio.create_task(self._read(listener), name="limpet:feed")
            viewer = FeedViewer(self._cursor)
            self._viewers.setdefault(run, {})[viewer] = None
            return viewer

    def remove(self, viewer: FeedViewer, run: str | None = None) -> None:
        """Remove a viewer."""
        others = self._viewers.get(run, {})
        others.pop(viewer, None)
        if not others:
            self._viewers.pop(run, None)
        if not self._viewers:
            self.close()

    def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    async def _read(self, listener: ChangeListener) -> None:
        changed = partial(self._changed.set)  # A reader that ends must not remove the callback of the next one.
        listener.add_callback(changed)
        cancel = self._look_later()
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                try:
                    await self._read_page()
                    if self._is_looking:
                        await self._look_for_deleted()
                        cancel = self._look_later()
                except Retryable:  # callers of the store get the error themselves; read again
                    self._changed.set()
                    await self._clock.sleep(POLL_AGAIN)
        except LimpetError as error:  # the store was replaced, or has lost events: viewers start again
            for viewer in self._all():
                viewer.fail(error)
        finally:
            cancel()
            listener.remove_callback(changed)

    async def _read_page(self) -> None:
        page = await self._store.feed(self._cursor, limit=PAGE)
        self._cursor = page.next
        if len(page.events) == PAGE:
            self._changed.set()  # there may be more
        if not page.events:
            return
        found = FeedPage(self._store, page.events, page.cursors)
        by_run: dict[str, list[FeedItem]] = {}
        for item in found.items:
            by_run.setdefault(item.event.run, []).append(item)
        for viewer in self._viewers.get(None, ()):
            viewer.give(found.items)
        for run, items in by_run.items():
            for viewer in self._viewers.get(run, ()):
                viewer.give(items)

    def _look_later(self) -> Callable[[], None]:
        """Look for deleted runs after a while. Returns a function that cancels it."""

        def look() -> None:
            self._is_looking = True
            self._changed.set()

        self._is_looking = False
        return self._clock.call_later(LOOK_FOR_DELETED, look)

    async def _look_for_deleted(self) -> None:
        """Tell viewers of runs that were deleted: no event says so."""
        watched = [run for run in self._viewers if run is not None]
        there = await self._store.positions(watched)
        for run in watched:
            if run not in there:
                for viewer in self._viewers.get(run, ()):
                    viewer.fail(NotFound(what="run", id=run))

    def _all(self) -> Iterator[FeedViewer]:
        return (viewer for group in self._viewers.values() for viewer in group)
