"""Parts that all measured programs share: the payload, the clock, and one line of JSON as its answer.

Each system runs in its own process and environment, so this module imports only the standard library.
`python -m bench.peers.dbos one '{"url": "sqlite:///x.db", "steps": 300}'` prints the figures of one workload.
"""

import asyncio
import base64
import inspect
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Any

__all__ = ["BODY", "LONGEST", "Stopwatch", "answer", "noise", "path_of", "report_step", "wait_for"]

# Bytes of a step's result.
SIZE = 1000
# Pause between two looks at something that another thread or process changes.
GLANCE = 0.002
# Seconds after which a process that waits to be killed ends by itself.
LONGEST = 600


def noise(seed: str, size: int = SIZE) -> str:
    """Return text that hardly compresses, the same for the same seed."""
    digests = b"".join(sha256(f"{seed} {n}".encode()).digest() for n in range(size // 32 + 1))
    return base64.b64encode(digests).decode()[:size]


BODY = noise("result")


class Stopwatch:
    """Time and CPU time of this process since it was created."""

    def __init__(self) -> None:
        self._begun, self._cpu = time.perf_counter(), time.process_time()

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self._begun

    @property
    def cpu(self) -> float:
        """Seconds of CPU so far."""
        return time.process_time() - self._cpu

    def each(self, steps: int) -> dict[str, float]:
        """Return the figures of `steps` steps that ran one after the other."""
        return {"step": self.seconds / steps * 1e6, "cpu": self.cpu / steps * 1e6}

    def together(self, steps: int) -> dict[str, float]:
        """Return the figures of `steps` steps of many runs."""
        return {"steps": steps / self.seconds, "cpu": self.cpu / steps * 1e6}


async def wait_for(condition: Callable[[], Awaitable[bool]], pause: float = GLANCE) -> None:
    """Wait until a condition holds."""
    while not await condition():
        await asyncio.sleep(pause)


def path_of(url: str) -> str:
    """Return the path in the URL of a SQLite file."""
    return url.removeprefix("sqlite:///")


def report_step(number: int) -> None:
    """Tell the process that measures a takeover that a step runs here now."""
    print(json.dumps({"step": number, "at": time.monotonic()}), flush=True)


def answer(workloads: Mapping[str, Callable[..., Any]]) -> None:
    """Run the workload that the command line names, print its figures as the last line, and end the process.

    It ends at once, because threads of a system may still wait for something.
    """
    name, arguments = sys.argv[1], json.loads(sys.argv[2])
    found = workloads[name](**arguments)
    if inspect.iscoroutine(found):
        found = asyncio.run(found)
    print(json.dumps(found), flush=True)
    os._exit(0)
