"""Calling users' functions: coroutines on the event loop, plain ones on threads of their own kind; waiting for them."""

import asyncio
import inspect
from collections.abc import Callable, Collection
from contextvars import copy_context
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from limpet.clock import Clock
from limpet.engine.definitions.call_context import Call, in_tool
from limpet.engine.definitions.tools import Tool

__all__ = ["Bound", "ThreadPool", "UserCode", "wait_within"]

Bound = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments as a function takes them."""


class ThreadPool:
    """Threads for blocking functions, as many as are needed at once. They do not keep the process alive."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = Lock()
        self._idle: list[SimpleQueue[Callable[[], None]]] = []

    async def run(self, work: Callable[[], Any], late: "asyncio.Future[Any] | None" = None) -> Any:
        """What the work returns. Whoever stops waiting does not stop the work; `late` is for what it returns then."""
        loop, context = asyncio.get_running_loop(), copy_context()
        done: asyncio.Future[Any] = loop.create_future()

        def report(result: Any, error: BaseException | None) -> None:
            if done.done():
                if error is None and late is not None and not late.done():
                    late.set_result(result)
            elif error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

        def do() -> None:
            result, error = None, None
            try:
                result = context.run(work)
            except BaseException as raised:  # noqa: BLE001 - whoever waits must hear
                odd = isinstance(raised, StopIteration | SystemExit | KeyboardInterrupt)
                error = RuntimeError(f"{raised!r} left a function") if odd else raised
            try:
                loop.call_soon_threadsafe(report, result, error)
            except RuntimeError:
                return  # the loop was closed: nobody waits any more

        self._submit(do)
        return await done

    def _submit(self, work: Callable[[], None]) -> None:
        with self._lock:
            queue = self._idle.pop() if self._idle else None
        if queue is None:
            queue = SimpleQueue()
            Thread(target=self._serve, args=(queue,), name=self._name, daemon=True).start()
        queue.put(work)

    def _serve(self, queue: "SimpleQueue[Callable[[], None]]") -> None:
        while True:
            queue.get()()
            with self._lock:
                self._idle.append(queue)


async def wait_within(clock: Clock, tasks: Collection["asyncio.Task[Any]"], limit: int) -> None:
    """Until all of them have ended, or so many microseconds have passed."""
    if tasks:
        patience = asyncio.ensure_future(clock.sleep(limit))
        everything = asyncio.ensure_future(asyncio.wait(tasks))
        try:
            await asyncio.wait({everything, patience}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            patience.cancel()
            everything.cancel()


class UserCode:
    """How a worker calls tools and what belongs to them."""

    def __init__(self) -> None:
        self._pool = ThreadPool("limpet-tool")

    async def __call__(self, tool: Tool[..., Any, Any], /, fn: Callable[..., Any], args: Bound, call: Call) -> Any:
        """What the function returns; `current()` is this call."""
        with in_tool(call):
            if tool.is_async if fn is tool.fn else inspect.iscoroutinefunction(fn):
                return await fn(*args[0], **args[1])
            found = await self._pool.run(lambda: fn(*args[0], **args[1]), call.late)
            return await found if inspect.isawaitable(found) else found

    def is_stubbed(self, _: Tool[..., Any, Any]) -> bool:
        """Never, outside of tests."""
        return False

    def call_inline(self, tool: Tool[..., Any, Any], args: Bound, call: Call) -> Any:
        """The same on this thread, for a function that is a transaction."""
        with in_tool(call):
            return tool.fn(*args[0], **args[1])
