"""One attempt of a tool: its timeout and its progress reports."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from limpet.clock import SECOND, earliest
from limpet.engine.definitions.call_context import Call
from limpet.engine.execution.execution import Execution
from limpet.events import bodies as b

__all__ = ["ProgressReports", "TimedOut", "within"]


class TimedOut(TimeoutError):
    """An attempt exceeded its timeout."""


async def within(x: Execution, work: Any, limit: int | None) -> Any:
    """Return the result of the work. Raises TimedOut after `limit` microseconds, or at the run's deadline.

    A cancelled effect may have been applied.
    """
    task = asyncio.ensure_future(work)
    begun, expired = x.kit.now(), False
    until = None if limit is None else begun + limit
    timers: list[Callable[[], object]] = []

    def check() -> None:
        nonlocal expired
        end = earliest(until, x.deadline)
        assert end is not None
        left = end - x.kit.now()
        if left > 0:  # The first check, or the deadline was extended meanwhile.
            timers[:] = [x.kit.clock.call_later(left, check)]
        else:
            expired = True
            task.cancel()

    check()
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        for cancel_timer in timers:
            cancel_timer()
    if expired and task.cancelled():
        raise TimedOut(f"timed out after {(x.kit.now() - begun) / SECOND:g} s")
    return task.result()


class ProgressReports:
    """Records the progress that a tool reports, from any thread, at most about once per second."""

    call: Call | None = None
    _last: int | None = None
    _cancel_timer: Any = None
    _is_due = False
    """Whether a report is scheduled, which will contain what is reported until then."""
    _flushing: "asyncio.Task[None] | None" = None

    def __init__(self, execution: Execution, number: int, attempt: int) -> None:
        self._x, self._number, self._attempt = execution, number, attempt
        self._loop = asyncio.get_running_loop()

    def notify(self) -> None:
        """Schedule a report. Thread-safe."""
        if self._is_due:
            return
        self._is_due = True
        with suppress(RuntimeError):  # the loop is closed, and the tool continues on its thread
            self._loop.call_soon_threadsafe(self._write_or_delay)

    def close(self) -> None:
        """Stop reporting: the attempt is over."""
        self.call = None
        if self._cancel_timer is not None:
            self._cancel_timer()

    def _write_or_delay(self) -> None:
        now = self._x.kit.clock.ticks()
        if self.call is None or self._x.gate.is_closed:
            return
        if self._last is not None and now < self._last + SECOND:
            if self._cancel_timer is None:
                self._cancel_timer = self._x.kit.clock.call_later(self._last + SECOND - now, self._write)
            return
        self._write()

    def _write(self) -> None:
        self._cancel_timer, self._is_due = None, False
        if self.call is None or self._x.gate.is_closed:
            return
        call, partial = self.call, self.call.partial_value
        if not call.note and call.fraction is None and partial is None:
            return
        self._last = self._x.kit.clock.ticks()
        self._x.journal.add(
            b.StepProgressed(
                number=self._number,
                attempt=self._attempt,
                note=call.note,
                fraction=call.fraction,
                partial=partial,
            )
        )
        self._flushing = self._loop.create_task(self._x.recorder.flush())
