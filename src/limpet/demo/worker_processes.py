"""Worker processes of the demo: started, killed, and never left behind."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from limpet.demo.ticket_agent import PORT

__all__ = ["DemoBroken", "WorkerProcess", "worker"]

T = TypeVar("T")
# Variables of the user's environment that would change the worker's behaviour.
NOT_FOR_WORKERS = ("LIMPET_WORKER", "LIMPET_URL", "PYTHONINSPECT")


class DemoBroken(Exception):
    """An error after which the demo cannot continue."""


class WorkerProcess:
    """A worker process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def end(self) -> int:
        """Stop the worker so that it releases its runs; return the exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return await self._process.wait()

    async def kill(self) -> int:
        """Send SIGKILL; return the exit code."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
        return await self._process.wait()

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of work that needs this process. Raises Broken if the process ends first."""
        ended, doing = asyncio.create_task(self._process.wait()), asyncio.create_task(work)
        try:
            await asyncio.wait((ended, doing), return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise DemoBroken(f"worker process {self.pid} exited unexpectedly with {ended.result()}")
            return doing.result()
        finally:
            ended.cancel()
            doing.cancel()


@asynccontextmanager
async def worker(url: str, port: int) -> AsyncIterator[WorkerProcess]:
    """Start a worker process, and kill it at the end.

    Its stdin is a pipe that closes when this process ends, even by SIGKILL, so that no worker is left behind. It has
    its own session, so that Ctrl-C reaches only this process.
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
        found = WorkerProcess(process)
        stack.push_async_callback(found.kill)
        yield found
