"""Hearing of changes: at once of this process's own, within milliseconds of other processes'.

A watch says that something may have changed, never what: whoever hears it looks. Changes that come together are heard
once; none is missed.
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

LOOK_AGAIN = 1.0


class Watching:
    """All watches of a store, and the lane that looks for changes of other processes while there is one."""

    def __init__(self, backend: Backend, handover: Executor) -> None:
        self._backend = backend
        self._handover = handover
        self._lock = Lock()
        self._watches: set[Watch] = set()
        self._lane: SerialExecutor | None = None
        self._stop = Flag()

    @property
    def is_there(self) -> bool:
        """Whether anybody listens."""
        return bool(self._watches)

    def changed(self) -> None:
        """Something was written."""
        with self._lock:
            watches = list(self._watches)
        for watch in watches:
            watch.ring()

    def add(self, watch: "Watch") -> None:
        """Begin to tell a watch."""
        with self._lock:
            self._watches.add(watch)
            if self._lane is None and self._backend.capabilities.processes:
                self._stop = stop = Flag()
                self._lane = self._handover.lane("limpet-watch")
                self._lane.submit(lambda: self._look(stop))

    def remove(self, watch: "Watch") -> None:
        """Stop telling a watch; the last one stops the looking."""
        with self._lock:
            self._watches.discard(watch)
            lane = None if self._watches else self._lane
            if lane is not None:
                self._lane = None
                self._stop.set()
        if lane is not None:
            lane.close(wait=False)  # it may be connecting, and whoever stops listening is on an event loop

    def close(self) -> None:
        """Stop telling anybody; whoever listens looks once more, and finds the store closed."""
        with self._lock:
            watches = list(self._watches)
        for watch in watches:
            self.remove(watch)
            watch.ring()

    def _look(self, stop: Flag) -> None:
        while not stop.is_set():
            try:
                for _ in self._backend.changes(stop):
                    self.changed()
            except LimpetError:
                self.changed()  # whoever looks now gets the error, in its own place
                stop.wait(LOOK_AGAIN)


class Watch:
    """One listener, on the event loop on which it was entered."""

    def __init__(self, watching: Watching) -> None:
        self._watching = watching
        self._heard = asyncio.Event()
        self._ringing = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._watching.add(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self._watching.remove(self)

    async def changed(self) -> None:
        """Wait until something has been written since the last call, or since the watch began."""
        await self._heard.wait()
        self._heard.clear()
        self._ringing = False  # before anybody looks: what is written from now on rings again

    def ring(self) -> None:
        """Say that something was written; from any thread. What was said and not heard yet says it for this, too."""
        assert self._loop is not None
        if self._ringing:
            return
        self._ringing = True
        with suppress(RuntimeError):  # the loop was closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._heard.set)
