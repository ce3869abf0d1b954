"""Calls of users' functions: coroutines on the event loop, plain functions on threads."""

import asyncio
import inspect
from collections.abc import Callable, Collection
from contextvars import copy_context
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from limpet.clock import Clock
from limpet.engine.definitions.call_context import Call, enter_tool, in_tool, leave_tool
from limpet.engine.definitions.tools import Tool

__all__ = ["Bound", "ThreadPool", "UserCode", "wait_within"]

Bound = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a function."""


class ThreadPool:
    """Threads for blocking functions, as many as are needed. They do not keep the process alive."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = Lock()
        self._idle: list[SimpleQueue[Callable[[], None]]] = []

    async def run(self, work: Callable[[], Any], late: "asyncio.Future[Any] | None" = None) -> Any:
        """Run work on a thread, and return its result.

        Cancelling does not stop the work; `late` then receives its result.
        """
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
            except BaseException as raised:  # noqa: BLE001 - the caller must get every error
                must_wrap = isinstance(raised, StopIteration | SystemExit | KeyboardInterrupt)
                error = RuntimeError(f"the function raised {raised!r}") if must_wrap else raised
            try:
                loop.call_soon_threadsafe(report, result, error)
            except RuntimeError:
                return  # the loop was closed, so nothing waits for the result

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
    """Wait until all tasks have ended, or `limit` microseconds have passed."""
    if tasks:
        timeout = asyncio.ensure_future(clock.sleep(limit))
        everything = asyncio.ensure_future(asyncio.wait(tasks))
        try:
            await asyncio.wait({everything, timeout}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timeout.cancel()
            everything.cancel()


class UserCode:
    """Calls the functions of tools for a worker."""

    def __init__(self) -> None:
        self._pool = ThreadPool("limpet-tool")

    async def __call__(self, tool: Tool[..., Any, Any], /, fn: Callable[..., Any], args: Bound, call: Call) -> Any:
        """Call a function and return its result; `current()` is this call."""
        before = enter_tool(call)
        try:
            if tool.is_async if fn is tool.fn else inspect.iscoroutinefunction(fn):
                return await fn(*args[0], **args[1])
            found = await self._pool.run(lambda: fn(*args[0], **args[1]), call.late)
            return await found if inspect.isawaitable(found) else found
        finally:
            leave_tool(before)

    def is_stubbed(self, _: Tool[..., Any, Any]) -> bool:
        """Return False: results are only stubbed in tests."""
        return False

    def call_inline(self, tool: Tool[..., Any, Any], args: Bound, call: Call) -> Any:
        """Call the tool's function on this thread, for a transaction."""
        with in_tool(call):
            return tool.fn(*args[0], **args[1])
