"""Executors for blocking work: threads in production, the event loop itself in a simulation.

All other code uses threads only through `Handover`, so that a seeded simulation runs the same code without threads.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, NamedTuple, Protocol, TypeVar

from limpet.errors import StoreUnavailable

__all__ = ["CLOSED", "Executor", "Inline", "Reply", "SerialExecutor", "Threads", "deliver"]

CLOSED = "the store is closed"
# Maximum number of calls that are answered together, since the first one waits for the last.
TOGETHER = 16
FORKED = "opened before this process was forked; open the store again in this process"

T = TypeVar("T")


class SerialExecutor(Protocol):
    """An executor that runs work in order, one piece at a time."""

    def check(self) -> None:
        """Raise StoreUnavailable if no work can run here. Takes no lock, since a forked child may find it held."""

    def submit(self, work: Callable[[], None]) -> None:
        """Run this after everything submitted before."""

    def close(self, *, wait: bool = True) -> None:
        """Finish submitted work, then stop."""


class Executor(Protocol):
    """Runs blocking work."""

    def lane(self, name: str) -> SerialExecutor:
        """Return a new lane."""

    async def call(self, work: Callable[[], T]) -> T:
        """Run this outside the event loop, in no particular order."""

    async def call_at_length(self, work: Callable[[], T]) -> T:
        """Run this like `call`, but for long work, so that short calls need not wait for it."""

    def close(self) -> None:
        """Finish pending calls, then stop."""


class Threads:
    """One thread per lane, and two small thread pools for calls. Threads start when there is work."""

    def __init__(self, calls: int = 4, long_calls: int = 16) -> None:
        self._short = _ThreadPool("limpet-read", calls)
        self._long = _ThreadPool("limpet-transact", long_calls)
        self._process = os.getpid()
        self._closed = False

    def lane(self, name: str) -> SerialExecutor:
        """Return a lane with its own thread."""
        return _ThreadLane(name)

    async def call(self, work: Callable[[], T]) -> T:
        """Run on the thread pool for short calls."""
        return await self._call(self._short, work)

    async def call_at_length(self, work: Callable[[], T]) -> T:
        """Run on the thread pool for long calls."""
        return await self._call(self._long, work)

    async def _call(self, pool: "_ThreadPool", work: Callable[[], T]) -> T:
        if self._closed:
            raise StoreUnavailable(reason=CLOSED)
        if self._process != os.getpid():
            raise StoreUnavailable(reason=FORKED)
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[T] = loop.create_future()
        pool.submit(_Called(work, reply, loop))
        return await reply

    def close(self) -> None:
        """Let the thread pools finish pending calls and stop. The event loop does not wait for them."""
        self._closed = True
        self._short.close()
        self._long.close()


class _Called(NamedTuple):
    work: Callable[[], Any]
    reply: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class _ThreadPool:
    """A few threads with one queue. Under load, one thread takes several calls and answers them together."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._lock = Lock()
        self._called: deque[_Called] = deque()
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        self._threads = self._idle = 0
        self._closed = False

    def submit(self, called: _Called) -> None:
        with self._lock:
            self._called.append(called)
            if self._idle:
                self._idle -= 1
                self._wakeups.put(None)
            elif self._threads < self._most:
                self._threads += 1
                Thread(target=self._serve, name=f"{self._name}-{self._threads}", daemon=True).start()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for _ in range(self._idle):
                self._wakeups.put(None)
            self._idle = 0

    def _serve(self) -> None:
        while True:
            with self._lock:
                share = min(len(self._called) // self._most + 1, TOGETHER, len(self._called))
                batch = [self._called.popleft() for _ in range(share)]
                if not batch and self._closed:
                    return
                self._idle += not batch
            if batch:
                _answer(batch)
            else:
                self._wakeups.get()


def _answer(batch: list[_Called]) -> None:
    """Run the calls, and deliver their results."""
    replies: list[Reply] = []
    for work, reply, loop in batch:
        found, error = None, None
        try:
            found = work()
        except BaseException as raised:  # noqa: BLE001 - the caller gets every error
            error = RuntimeError("StopIteration left a call") if isinstance(raised, StopIteration) else raised
        replies.append((loop, reply, found, error))
    deliver(replies)


Reply = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Any, BaseException | None]
"""The event loop and future of a waiting caller, with the result or the error."""


def deliver(replies: Iterable[Reply]) -> None:
    """Deliver results from another thread, with one call per event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Reply]] = {}
    for reply in replies:
        by_loop.setdefault(reply[0], []).append(reply)
    for loop, mine in by_loop.items():
        with suppress(RuntimeError):  # The loop was closed, so no caller waits there.
            loop.call_soon_threadsafe(_settle, mine)


def _settle(replies: Sequence[Reply]) -> None:
    for _, waiting, found, error in replies:
        if waiting.done():
            continue
        if error is None:
            waiting.set_result(found)
        else:
            waiting.set_exception(error)


class _ThreadLane:
    """Starts its thread with the first piece of work."""

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
    """No threads: lanes run on the event loop's next iterations, calls immediately."""

    def lane(self, name: str) -> SerialExecutor:
        """Return a lane on the event loop."""
        return _LoopLane(name)

    async def call(self, work: Callable[[], T]) -> T:
        """Run this here, after other tasks had a turn, as they would have while a disk works."""
        await asyncio.sleep(0)  # noqa: TID251 - yields to other tasks, does not wait for time
        return work()

    async def call_at_length(self, work: Callable[[], T]) -> T:
        """Run this like `call`."""
        return await self.call(work)

    def close(self) -> None:
        """Do nothing."""


class _LoopLane:
    def __init__(self, name: str) -> None:
        self.name = name

    def check(self) -> None:
        """Do nothing: the event loop can always run work."""

    def submit(self, work: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(work)

    def close(self, *, wait: bool = True) -> None:
        """Do nothing."""
