"""Processes for crash tests, forked from one that has imported everything, which makes them cheap."""

import asyncio
from collections.abc import Callable, Coroutine
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["Child", "Job", "start_all"]

Job = Callable[..., Coroutine[Any, Any, None]]
"""The function of a process: it gets its end of a pipe, and arguments."""
_CONTEXT = get_context("forkserver")
# One process forks for all files of tests, so that it imports the jobs of all of them.
MODULES = ("jobs", "agents", "control", "forks", "mcp_agent", "prunes", "requests", "retention", "task_import")
_CONTEXT.set_forkserver_preload([f"tests.crash.{name}" for name in MODULES])


class Child:
    """A process and the pipe to it."""

    def __init__(self, job: Job, *arguments: Any) -> None:
        self.pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_main, args=(job, theirs, arguments), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """Id of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def receive(self) -> Any:
        """Return the next message of the process; raises EOFError if it has ended."""
        return self.pipe.recv()

    def send(self, what: object) -> None:
        """Send a message to the process."""
        self.pipe.send(what)

    def kill(self) -> None:
        """Kill the process, and wait for its end."""
        self._process.kill()
        self._process.join()

    def end(self) -> int | None:
        """Wait for the end of the process, and return its exit code, which is negative if it was killed."""
        self._process.join()
        return self._process.exitcode


def start_all(jobs: list[tuple[Any, ...]]) -> list[Child]:
    """Start jobs concurrently, and wait until all are ready."""
    children = [Child(*job) for job in jobs]
    for child in children:
        assert child.receive() == "ready"
    return children


def _main(job: Job, pipe: Connection, arguments: tuple[Any, ...]) -> None:
    asyncio.run(job(pipe, *arguments))
