"""An event loop for simulations: no sockets, no threads, no clock but the one that is moved between two turns."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
Tick = Callable[[bool], None]


class Turns(asyncio.BaseEventLoop):
    """Calls `tick` before every turn, with whether nobody has anything to do; then something must come of that."""

    def __init__(self, tick: Tick) -> None:
        super().__init__()
        self._selector = self
        self._tick = tick
        self._turns = 0
        # Killed processes leave tasks behind whose errors nobody retrieves. Formatting those while garbage is collected
        # breaks CPython 3.11's parser, if it is at work just then.
        self.set_exception_handler(lambda *_: None)

    def select(self, timeout: float | None) -> list[object]:
        """What `BaseEventLoop` asks for news from outside; there are none."""
        self._turns += 1
        self._tick(timeout != 0)
        return []

    def time(self) -> float:
        """Turns, since nothing here may depend on how fast the machine is."""
        return float(self._turns)

    def _process_events(self, event_list: list[object]) -> None:
        """Nothing came."""

    def _write_to_self(self) -> None:
        """There is nobody on another thread to wake."""


def run_in_turns(work: Coroutine[Any, Any, T], tick: Tick) -> T:
    """What the work gives."""
    with asyncio.Runner(loop_factory=lambda: Turns(tick)) as runner:
        return runner.run(work)
