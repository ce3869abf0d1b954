"""An application that is imported with its first request, because the import takes long and few servers need it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["LazyMount"]


class LazyMount:
    """Loads an application, and serves it, when the first request arrives.

    `load` returns the application and a context to enter while it serves. It is called in a thread.
    """

    def __init__(self, load: Callable[[], tuple[ASGIApp, Callable[[], Any]]]) -> None:
        self._load = load
        self._wanted, self._stopping = asyncio.Event(), asyncio.Event()
        self._loaded: asyncio.Future[ASGIApp] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        assert self._loaded is not None, "used outside of its context"
        self._wanted.set()
        inside = await asyncio.shield(self._loaded)
        await inside(scope, receive, send)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Let requests load the application, while a server runs."""
        self._loaded = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(self._serve(self._loaded))
        try:
            yield
        finally:
            self._stopping.set()
            self._wanted.set()
            await serving

    async def _serve(self, loaded: "asyncio.Future[ASGIApp]") -> None:
        """Load the application once it is wanted. Its context is entered and left in this task."""
        await self._wanted.wait()
        if self._stopping.is_set():
            return
        inside, enter = await asyncio.to_thread(self._load)
        async with enter():
            loaded.set_result(inside)
            await self._stopping.wait()
