"""Costs of a plain step in counts that do not depend on the machine: calls, wake-ups, rows, statements, memory.

`counts_of` measures one run on SQLite in a process of its own, by hooks that do not depend on the engine's structure: a
profile function on every thread, a trace of each SQLite connection, and the allocator's own counters.
"""

import asyncio
import gc
import sys
import threading
import tracemalloc
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from statistics import median, quantiles
from types import FrameType
from typing import Any

import apsw

import limpet
from bench.processes import LIMPET
from bench.script import answer
from bench.workloads.agents import TOOLS, quiet
from limpet.stores import writer

__all__ = ["both", "counts_of"]

PACKAGE = str(Path(limpet.__file__).parent)
STORES = f"{PACKAGE}/stores"
STEPS, WARM = 200, 50
NAMES = (
    "Python calls on the loop",
    "C calls on the loop",
    "Python calls in the writer",
    "C calls in the writer",
    "loop turns",
    "thread wake-ups",
    "SHA-256 digests",
    "SQL statements",
)


def both(folder: Path) -> dict[str, dict[str, float]]:
    """Return the counts of a plain read and a plain effect."""
    return {kind: counts_of(folder, kind) for kind in TOOLS}


def counts_of(folder: Path, kind: str, steps: int = STEPS) -> dict[str, float]:
    """Return the counts per step of a kind, measured in a new process."""
    program = LIMPET._replace(module="bench.counts")
    return program.measure(kind, folder=str(folder), steps=steps)


class Window:
    """The part of a run that is counted: after its first steps, when everything is warm."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.is_open = False

    def passed(self, step: int) -> None:
        """Note that a step has returned."""
        if step == WARM:
            self.open()
        elif step == WARM + self.steps:
            self.close()

    def open(self) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False


class Memory(Window):
    """Blocks and bytes that are allocated in the window and still there at its end."""

    def open(self) -> None:
        super().open()
        gc.collect()
        self._before = sys.getallocatedblocks(), tracemalloc.get_traced_memory()[0]

    def close(self) -> None:
        gc.collect()
        blocks, traced = self._before
        self.blocks = sys.getallocatedblocks() - blocks
        self.traced = tracemalloc.get_traced_memory()[0] - traced
        super().close()


class Calls(Window):
    """Calls of each step in the window, on the thread of the event loop and on the writer's.

    Other threads serve timers: they poll for changes, and renew the lease.

    A count is the lowest decile of the steps, so work that a timer starts now and then does not count, even if the
    machine is busy and each step takes long.
    """

    def __init__(self, steps: int) -> None:
        super().__init__(steps)
        self._roles = {threading.get_ident(): "loop"}
        self._step: Counter[str] = Counter()
        self._each: list[Counter[str]] = []

    def passed(self, step: int) -> None:
        if self.is_open:
            done, self._step = self._step, Counter()
            self._each.append(done)
        super().passed(step)

    def per_step(self) -> dict[str, float]:
        """Return the lowest decile of each count, and the files that most steps pass."""
        found = {name: _low(step[name] for step in self._each) for name in NAMES}
        # A thread goes to sleep before or after the step has returned, so neighbours share these.
        found["thread wake-ups"] = median(step["thread wake-ups"] for step in self._each)
        frames = _low(step["loop frames"] + step["writer frames"] for step in self._each)
        passed = Counter(name for step in self._each for name in step if name.startswith(PACKAGE))
        files = sum(times > len(self._each) * 3 / 4 for times in passed.values())
        return found | {"frames down to the SQL": frames, "files on the way": files}

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count in threads and connections that are created inside."""
        apsw.connection_hooks.append(self._trace)
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            apsw.connection_hooks.remove(self._trace)

    def _trace(self, connection: apsw.Connection) -> None:
        connection.exec_trace = self._executed

    def _executed(self, _: Any, __: str, ___: Any) -> bool:
        """Count a statement, and the frames of the package that led to it on this thread."""
        if self.is_open and (thread := self._thread()):
            self._step["SQL statements"] += 1
            self._deeper(f"{thread} frames", sys._getframe(1))
        return True

    def _thread(self) -> str:
        """Return `loop`, `writer`, or "" for a thread that does not count."""
        ident = threading.get_ident()
        role = self._roles.get(ident)
        if role is None:
            role = self._roles[ident] = "writer" if "write" in threading.current_thread().name else ""
        return role

    def _profile(self, frame: FrameType, event: str, called: Any) -> None:
        if not self.is_open or frame.f_code.co_filename == __file__:
            return
        thread = self._thread()
        if not thread:
            return
        on_loop = thread == "loop"
        where = "on the loop" if on_loop else "in the writer"
        if event == "call":
            self._step[f"Python calls {where}"] += 1
            self._python_call(frame, on_loop=on_loop)
        elif event == "c_call":
            self._step[f"C calls {where}"] += 1
            self._c_call(called, on_loop=on_loop)

    def _python_call(self, frame: FrameType, *, on_loop: bool) -> None:
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE):
            self._step[code.co_filename] += 1
            if on_loop and code.co_filename.startswith(STORES):
                self._deeper("loop frames", frame)
        elif code.co_name == "_run_once" and on_loop:
            self._step["loop turns"] += 1
        elif (code.co_name == "_write_to_self" and not on_loop) or (
            code.co_name == "wait" and code.co_filename == threading.__file__
        ):
            self._step["thread wake-ups"] += 1

    def _c_call(self, called: Any, *, on_loop: bool) -> None:
        name = getattr(called, "__name__", "")
        if name.endswith("sha256"):
            self._step["SHA-256 digests"] += 1
        elif name == "get" and not on_loop and isinstance(getattr(called, "__self__", None), SimpleQueue):
            self._step["thread wake-ups"] += 1

    def _deeper(self, thread: str, frame: FrameType | None) -> None:
        """Keep the greatest number of the package's frames on a thread, below the agent's function."""
        depth = 0
        while frame is not None and frame.f_code.co_filename != __file__:
            depth += frame.f_code.co_filename.startswith(PACKAGE)
            frame = frame.f_back
        if frame is not None or thread == "writer frames":
            self._step[thread] = max(self._step[thread], depth)


def _low(values: Iterable[int]) -> float:
    return quantiles(values, n=10)[0]


def _measure(kind: str, folder: str, steps: int) -> dict[str, float]:
    """Count in this process: the calls in one run, the memory in another."""
    # However slow the disk is, the run commits on its event loop, and gives other tasks no turn in between.
    writer.SLOW_COMMIT = writer.LONGEST_TURN = 60
    calls, memory = Calls(steps), Memory(steps)
    with calls.counting():
        rows = asyncio.run(_run(calls, kind, f"{folder}/calls-{kind}.db"))
    tracemalloc.start()
    asyncio.run(_run(memory, kind, f"{folder}/memory-{kind}.db"))
    kept = {"blocks kept": memory.blocks / steps, "bytes kept": memory.traced / steps}
    return calls.per_step() | {"event rows": rows} | kept


async def _run(window: Window, kind: str, file: str) -> float:
    """Run the steps, and return how many events each has."""

    @limpet.agent(name=f"bench_counted_{type(window).__name__}")
    async def counted(run: limpet.Run, steps: int) -> None:
        for n in range(1, steps + 1):
            await run.step(TOOLS[kind], n)
            window.passed(n)

    async with limpet.open(f"sqlite:///{file}", agents=[counted]) as app:
        total = WARM + window.steps
        await app.run(counted, total, id="counted")
        log = await app.log("counted", limit=1000)
        return sum(event.kind.startswith("step.") for event in log) / total


if __name__ == "__main__":
    quiet()
    answer({kind: partial(_measure, kind) for kind in TOOLS})
