"""One attempt of a tool: within its time, and with what it says about how far it is."""

import asyncio
from contextlib import suppress
from typing import Any

from limpet.clock import SECOND
from limpet.engine.definitions.call_context import Call
from limpet.engine.execution.execution import Execution
from limpet.events import bodies as b

__all__ = ["ProgressReports", "TimedOut", "within"]


class TimedOut(TimeoutError):
    """An attempt took longer than it may."""


async def within(x: Execution, work: Any, limit: int) -> Any:
    """What the work gives, if it ends in time; an effect that is cut off may have been applied."""
    task = asyncio.ensure_future(work)
    expired = False

    def expire() -> None:
        nonlocal expired
        expired = True
        task.cancel()

    take_back = x.kit.clock.call_later(limit, expire)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        take_back()
    if expired and task.cancelled():
        raise TimedOut(f"it took longer than {limit / SECOND:g} s")
    return task.result()


class ProgressReports:
    """How far an attempt is, as its tool says: recorded about once in a second, whatever thread it comes from."""

    def __init__(self, execution: Execution, number: int, attempt: int) -> None:
        self._x, self._number, self._attempt = execution, number, attempt
        self._loop = asyncio.get_running_loop()
        self._last: int | None = None
        self._take_back: Any = None
        self._flushing: asyncio.Task[None] | None = None
        self.call: Call | None = None

    def notify(self) -> None:
        """Something was said; from any thread."""
        with suppress(RuntimeError):  # the loop was closed: nobody listens, and what runs on a thread goes on
            self._loop.call_soon_threadsafe(self._look)

    def close(self) -> None:
        """The attempt is over."""
        self.call = None
        if self._take_back is not None:
            self._take_back()

    def _look(self) -> None:
        now = self._x.kit.clock.ticks()
        if self.call is None or self._x.is_closed:
            return
        if self._last is not None and now < self._last + SECOND:
            if self._take_back is None:
                self._take_back = self._x.kit.clock.call_later(self._last + SECOND - now, self._write)
            return
        self._write()

    def _write(self) -> None:
        self._take_back = None
        if self.call is None or self._x.is_closed:
            return
        call = self.call
        if not call.note and call.fraction is None and call.partial_value is None:
            return
        self._last = self._x.kit.clock.ticks()
        self._x.journal.add(
            b.StepProgressed(
                number=self._number,
                attempt=self._attempt,
                note=call.note,
                fraction=call.fraction,
                partial=call.partial_value,
            )
        )
        self._flushing = self._loop.create_task(self._x.flush())
