"""Where blocking work is done: on threads in production, on the event loop itself in a simulation.

Everything above talks to threads only through `Handover`, so that a seeded simulation runs the same code without any.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Protocol, TypeVar

from limpet.errors import StoreUnavailable

__all__ = ["CLOSED", "Handover", "Inline", "Lane", "Threads"]

CLOSED = "it is closed"
FORKED = "it was opened before this process was forked; open it anew here"

T = TypeVar("T")


class Lane(Protocol):
    """A place where work is done in order, one piece at a time."""

    def check(self) -> None:
        """Raise StoreUnavailable if no work can be done here; takes no lock, which a forked child may find held."""

    def submit(self, work: Callable[[], None]) -> None:
        """Do this after everything submitted before."""

    def close(self, *, wait: bool = True) -> None:
        """Finish what was submitted, and end."""


class Handover(Protocol):
    """What gives blocking work its place."""

    def lane(self, name: str) -> Lane:
        """A new lane."""

    async def call(self, work: Callable[[], T]) -> T:
        """Do this beside the event loop, in no particular order."""

    async def call_at_length(self, work: Callable[[], T]) -> T:
        """The same for work that may take its time, so that short calls need not wait for it."""

    def close(self) -> None:
        """Finish what was called, and end."""


class Threads:
    """A thread for each lane, and two small pools for calls; threads start when there is work for them."""

    def __init__(self, calls: int = 4, long_calls: int = 16) -> None:
        self._pool = ThreadPoolExecutor(calls, thread_name_prefix="limpet-read")
        self._long = ThreadPoolExecutor(long_calls, thread_name_prefix="limpet-transact")
        self._process = os.getpid()
        self._closed = False

    def lane(self, name: str) -> Lane:
        """A thread of its own."""
        return _ThreadLane(name)

    async def call(self, work: Callable[[], T]) -> T:
        """On a thread of the pool."""
        return await self._call(self._pool, work)

    async def call_at_length(self, work: Callable[[], T]) -> T:
        """On a thread of the other pool."""
        return await self._call(self._long, work)

    async def _call(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        if self._closed:
            raise StoreUnavailable(reason=CLOSED)
        if self._process != os.getpid():
            raise StoreUnavailable(reason=FORKED)
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    def close(self) -> None:
        """End the pools."""
        self._closed = True
        self._pool.shutdown(wait=False)  # the event loop waits for nobody
        self._long.shutdown(wait=False)


class _ThreadLane:
    """Its thread starts with the first piece of work."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._lock = Lock()
        self._process = os.getpid()
        self._closed = False

    def check(self) -> None:
        if self._closed:
            raise StoreUnavailable(reason=CLOSED)
        if self._process != os.getpid():
            raise StoreUnavailable(reason=FORKED)

    def submit(self, work: Callable[[], None]) -> None:
        with self._lock:
            self.check()
            self._queue.put(work)
            if self._thread.ident is None:
                self._thread.start()

    def close(self, *, wait: bool = True) -> None:
        with self._lock:
            self._closed = True
            self._queue.put(None)
        if wait and self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()


class Inline:
    """No threads: lanes do their work when the event loop comes to it, calls at once."""

    def lane(self, name: str) -> Lane:
        """A lane on the event loop."""
        return _LoopLane(name)

    async def call(self, work: Callable[[], T]) -> T:
        """Here, after everybody else had a turn: a disk would have given them one too."""
        await asyncio.sleep(0)  # noqa: TID251 - not for time, but for a turn
        return work()

    async def call_at_length(self, work: Callable[[], T]) -> T:
        """The same."""
        return await self.call(work)

    def close(self, *, wait: bool = True) -> None:
        """Nothing to end."""


class _LoopLane:
    def __init__(self, name: str) -> None:
        self.name = name

    def check(self) -> None:
        """There is always a turn."""

    def submit(self, work: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(work)

    def close(self, *, wait: bool = True) -> None:
        """Nothing to end."""
