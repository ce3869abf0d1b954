"""An event loop for simulations, without sockets and threads; its clock moves only between two turns."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
Tick = Callable[[bool], None]


class Turns(asyncio.BaseEventLoop):
    """An event loop that calls `tick` before every turn, with whether it is idle; an idle one must ready a task."""

    def __init__(self, tick: Tick) -> None:
        super().__init__()
        self._selector = self
        self._tick = tick
        self._turns = 0
        # Killed processes leave tasks behind whose errors are never retrieved. Formatting those during garbage
        # collection breaks CPython 3.11's parser if it is running at that time.
        self.set_exception_handler(lambda *_: None)

    def select(self, timeout: float | None) -> list[object]:
        """Replace the selector of `BaseEventLoop`, without any I/O events."""
        self._turns += 1
        self._tick(timeout != 0)
        return []

    def time(self) -> float:
        """Return the number of turns, so that nothing depends on the speed of the machine."""
        return float(self._turns)

    def _process_events(self, event_list: list[object]) -> None:
        """Do nothing: there are no I/O events."""

    def _write_to_self(self) -> None:
        """Do nothing: there are no other threads."""


def run_in_turns(work: Coroutine[Any, Any, T], tick: Tick) -> T:
    """Run a coroutine to its end, and return its result."""
    with asyncio.Runner(loop_factory=lambda: Turns(tick)) as runner:
        return runner.run(work)
