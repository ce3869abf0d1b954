"""The processes of the demo: workers that are started, killed, and never left behind."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from limpet.demo.agent import PORT

__all__ = ["DemoBroken", "Worker", "worker"]

T = TypeVar("T")
# Of the user's own environment, what would make a worker do something else.
NOT_FOR_WORKERS = ("LIMPET_WORKER", "LIMPET_URL", "PYTHONINSPECT")


class DemoBroken(Exception):
    """What the story cannot go on after."""


class Worker:
    """A process that drives runs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def end(self) -> int:
        """Let it give back what it has; how it ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return await self._process.wait()

    async def kill(self) -> int:
        """SIGKILL; how it ended."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
        return await self._process.wait()

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """What some work gives that needs this process; raises if it ends before."""
        ended, doing = asyncio.create_task(self._process.wait()), asyncio.create_task(work)
        try:
            await asyncio.wait((ended, doing), return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise DemoBroken(f"worker process {self.pid} ended by itself, with {ended.result()}")
            return doing.result()
        finally:
            ended.cancel()
            doing.cancel()


@asynccontextmanager
async def worker(url: str, port: int) -> AsyncIterator[Worker]:
    """A worker process: it is killed at the end, and ends by itself if this process does not come to that.

    Its stdin is a pipe that nobody writes to: it is closed when we end, even by SIGKILL. It is in a session of its own,
    so that Ctrl-C reaches us alone.
    """
    env = {name: value for name, value in os.environ.items() if name not in NOT_FOR_WORKERS}
    async with AsyncExitStack() as stack:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "limpet.demo.worker",
            url,
            stdin=asyncio.subprocess.PIPE,
            env=env | {PORT: str(port)},
            start_new_session=True,
        )
        found = Worker(process)
        stack.push_async_callback(found.kill)
        yield found
