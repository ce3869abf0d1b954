"""Where blocking work is done: on threads in production, on the event loop itself in a simulation.

Everything above talks to threads only through `Handover`, so that a seeded simulation runs the same code without any.
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

CLOSED = "it is closed"
# How many calls are answered together at most: the first one waits for the last.
TOGETHER = 16
FORKED = "it was opened before this process was forked; open it anew here"

T = TypeVar("T")


class SerialExecutor(Protocol):
    """A place where work is done in order, one piece at a time."""

    def check(self) -> None:
        """Raise StoreUnavailable if no work can be done here; takes no lock, which a forked child may find held."""

    def submit(self, work: Callable[[], None]) -> None:
        """Do this after everything submitted before."""

    def close(self, *, wait: bool = True) -> None:
        """Finish what was submitted, and end."""


class Executor(Protocol):
    """What gives blocking work its place."""

    def lane(self, name: str) -> SerialExecutor:
        """A new lane."""

    async def call(self, work: Callable[[], T]) -> T:
        """Do this beside the event loop, in no particular order."""

    async def call_at_length(self, work: Callable[[], T]) -> T:
        """The same for work that may take its time, so that short calls need not wait for it."""

    def close(self) -> None:
        """Finish what was called, and end."""


class Threads:
    """A thread for each lane, and two small crews for calls; threads start when there is work for them."""

    def __init__(self, calls: int = 4, long_calls: int = 16) -> None:
        self._short = _Crew("limpet-read", calls)
        self._long = _Crew("limpet-transact", long_calls)
        self._process = os.getpid()
        self._closed = False

    def lane(self, name: str) -> SerialExecutor:
        """A thread of its own."""
        return _ThreadLane(name)

    async def call(self, work: Callable[[], T]) -> T:
        """On a thread of the crew for short calls."""
        return await self._call(self._short, work)

    async def call_at_length(self, work: Callable[[], T]) -> T:
        """On a thread of the other crew."""
        return await self._call(self._long, work)

    async def _call(self, crew: "_Crew", work: Callable[[], T]) -> T:
        if self._closed:
            raise StoreUnavailable(reason=CLOSED)
        if self._process != os.getpid():
            raise StoreUnavailable(reason=FORKED)
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[T] = loop.create_future()
        crew.submit(_Called(work, reply, loop))
        return await reply

    def close(self) -> None:
        """Let the crews finish what was called, and end; the event loop waits for nobody."""
        self._closed = True
        self._short.close()
        self._long.close()


class _Called(NamedTuple):
    work: Callable[[], Any]
    reply: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class _Crew:
    """A few threads with one queue. When there is much to do, one takes several calls and answers them together."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._lock = Lock()
        self._called: deque[_Called] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._threads = self._idle = 0
        self._closed = False

    def submit(self, called: _Called) -> None:
        with self._lock:
            self._called.append(called)
            if self._idle:
                self._idle -= 1
                self._bell.put(None)
            elif self._threads < self._most:
                self._threads += 1
                Thread(target=self._serve, name=f"{self._name}-{self._threads}", daemon=True).start()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for _ in range(self._idle):
                self._bell.put(None)
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
                self._bell.get()


def _answer(batch: list[_Called]) -> None:
    """Do them, and hand over what came of them."""
    replies: list[Reply] = []
    for work, reply, loop in batch:
        found, error = None, None
        try:
            found = work()
        except BaseException as raised:  # noqa: BLE001 - whoever waits must hear
            error = RuntimeError("StopIteration left a call") if isinstance(raised, StopIteration) else raised
        replies.append((loop, reply, found, error))
    deliver(replies)


Reply = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Any, BaseException | None]
"""Where somebody waits, with what, and what came of it: a result, or an error."""


def deliver(replies: Iterable[Reply]) -> None:
    """Hand over what came of some work, from another thread, with one call for each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Reply]] = {}
    for reply in replies:
        by_loop.setdefault(reply[0], []).append(reply)
    for loop, mine in by_loop.items():
        with suppress(RuntimeError):  # the loop was closed: nobody waits there any more
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

    def lane(self, name: str) -> SerialExecutor:
        """A lane on the event loop."""
        return _LoopLane(name)

    async def call(self, work: Callable[[], T]) -> T:
        """Here, after everybody else had a turn: a disk would have given them one too."""
        await asyncio.sleep(0)  # noqa: TID251 - not for time, but for a turn
        return work()

    async def call_at_length(self, work: Callable[[], T]) -> T:
        """The same."""
        return await self.call(work)

    def close(self) -> None:
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
