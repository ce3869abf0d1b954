"""CPU time of a process and its parts: the event loop's thread, the writer's thread, and the garbage collector."""

import gc
import threading
import time
from types import TracebackType
from typing import Any, Self

__all__ = ["CpuParts"]


class CpuParts:
    """Measures the CPU time inside a `with` block, on the thread that enters it (the loop) and on all others.

    The collector's time is part of the thread that it ran on.
    """

    def __init__(self) -> None:
        self.loop = self.writer = self.others = self.collector = 0.0
        self._collecting = 0.0

    def __enter__(self) -> Self:
        gc.callbacks.append(self._collected)
        self._at_first = _by_thread()
        self._begun = time.thread_time()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.loop = time.thread_time() - self._begun
        for name, spent in _by_thread().items():
            more = spent - self._at_first.get(name, 0.0)
            if "write" in name:
                self.writer += more
            else:
                self.others += more
        gc.callbacks.remove(self._collected)

    def each(self, steps: int) -> dict[str, float]:
        """Return the microseconds of each part, per step."""
        parts = {"loop": self.loop, "writer": self.writer, "others": self.others, "collector": self.collector}
        return {name: spent / steps * 1e6 for name, spent in parts.items()}

    def _collected(self, phase: str, _: dict[str, Any]) -> None:
        if phase == "start":
            self._collecting = time.thread_time()
        else:
            self.collector += time.thread_time() - self._collecting


def _by_thread() -> dict[str, float]:
    """Return the seconds of CPU of every other thread that Python knows, by its name and number."""
    found = {}
    for thread in threading.enumerate():
        if thread.ident is not None and thread is not threading.current_thread():
            clock = time.pthread_getcpuclockid(thread.ident)
            found[f"{thread.name} {thread.ident}"] = time.clock_gettime(clock)
    return found
