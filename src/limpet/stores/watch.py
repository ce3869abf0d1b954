"""Watch for changes: immediately for those of this process, within milliseconds for those of other processes.

A watch only reports that something may have changed; its user then reads. Simultaneous changes are reported once, and
none is missed.
"""

import asyncio
from contextlib import suppress
from threading import Event as Flag
from threading import Lock
from typing import Self

from limpet.errors import LimpetError
from limpet.stores.backend import Backend
from limpet.stores.threads import Executor, SerialExecutor

__all__ = ["Watch", "Watching"]

RETRY_SECONDS = 1.0


class Watching:
    """All watches of a store, and the thread that polls for changes of other processes while there is a watch."""

    def __init__(self, backend: Backend, handover: Executor) -> None:
        self._backend = backend
        self._handover = handover
        self._lock = Lock()
        self._watches: set[Watch] = set()
        self._lane: SerialExecutor | None = None
        self._stop = Flag()
        self._is_closed = False

    @property
    def has_listeners(self) -> bool:
        """Whether there is a watch."""
        return bool(self._watches)

    def changed(self) -> None:
        """Notify all watches of a write."""
        with self._lock:
            watches = list(self._watches)
        for watch in watches:
            watch.ring()

    def add(self, watch: "Watch") -> None:
        """Add a watch."""
        with self._lock:
            self._watches.add(watch)
            is_closed = self._is_closed
            if not is_closed and self._lane is None and self._backend.capabilities.processes:
                self._stop = stop = Flag()
                self._lane = self._handover.lane("limpet-watch")
                self._lane.submit(lambda: self._poll(stop))
        if is_closed:
            watch.ring()

    def remove(self, watch: "Watch") -> None:
        """Remove a watch; the last one stops the polling."""
        with self._lock:
            self._watches.discard(watch)
            lane = None if self._watches else self._lane
            if lane is not None:
                self._lane = None
                self._stop.set()
        if lane is not None:
            lane.close(wait=False)  # Not awaited: the lane may be connecting, and the caller is on an event loop.

    def close(self) -> None:
        """Remove and notify all watches, so that their users find the store closed; so do those of later watches."""
        with self._lock:
            self._is_closed = True
            watches = list(self._watches)
        for watch in watches:
            self.remove(watch)
            watch.ring()

    def _poll(self, stop: Flag) -> None:
        while not stop.is_set():
            try:
                for _ in self._backend.changes(stop):
                    self.changed()
            except LimpetError:
                self.changed()  # The watches' users read now, and get the error there.
                stop.wait(RETRY_SECONDS)


class Watch:
    """One listener, on the event loop on which it was entered."""

    def __init__(self, watching: Watching) -> None:
        self._watching = watching
        self._notified = asyncio.Event()
        self._pending = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._watching.add(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self._watching.remove(self)

    async def changed(self) -> None:
        """Wait until something was written since the last call, or since the watch started."""
        await self._notified.wait()
        self._notified.clear()
        self._pending = False  # Reset before the caller reads, so that later writes notify again.

    def ring(self) -> None:
        """Notify the watch of a write, from any thread. A pending notification covers this one."""
        assert self._loop is not None
        if self._pending:
            return
        self._pending = True
        with suppress(RuntimeError):  # The loop was closed, so nothing listens.
            self._loop.call_soon_threadsafe(self._notified.set)
