"""Processes for the crash tests, forked from one that has imported everything: a hundred of them cost little."""

import asyncio
from collections.abc import Callable, Coroutine
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["Child", "Job", "begin_all"]

Job = Callable[..., Coroutine[Any, Any, None]]
"""What a process does: it gets its end of a pipe, and arguments."""
_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.crash.jobs"])


class Child:
    """A process and the pipe to it."""

    def __init__(self, job: Job, *arguments: Any) -> None:
        self.pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_main, args=(job, theirs, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def hear(self) -> Any:
        """The next thing that it says; raises EOFError if it has ended."""
        return self.pipe.recv()

    def tell(self, what: object) -> None:
        """Say something to it."""
        self.pipe.send(what)

    def kill(self) -> None:
        """Kill it, and wait for its end."""
        self._process.kill()
        self._process.join()

    def end(self) -> int | None:
        """Wait for its end; how it ended: 0 if all was well, a negative number if it was killed."""
        self._process.join()
        return self._process.exitcode


def begin_all(jobs: list[tuple[Any, ...]]) -> list[Child]:
    """Begin jobs at once, and wait until all of them say that they are ready."""
    children = [Child(*job) for job in jobs]
    for child in children:
        assert child.hear() == "ready"
    return children


def _main(job: Job, pipe: Connection, arguments: tuple[Any, ...]) -> None:
    asyncio.run(job(pipe, *arguments))
