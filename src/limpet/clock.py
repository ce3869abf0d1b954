"""Clocks, which are passed in: microseconds since 1970 (UTC), and timers.

No other module of Limpet reads the time from the operating system. `FrozenClock` is for tests and for the conformance
suite, which move it by hand.
"""

import asyncio
import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Protocol

from limpet.errors import InvalidArgument
from limpet.times import EPOCH

__all__ = [
    "SECOND",
    "Clock",
    "Duration",
    "FrozenClock",
    "SystemClock",
    "earliest",
    "microseconds",
    "to_microseconds",
]

Duration = str | float | timedelta
SECOND = 10**6
"""One second, in microseconds."""

_UNITS = {"us": 1, "ms": 10**3, "s": 10**6, "m": 60 * 10**6, "h": 3600 * 10**6, "d": 86400 * 10**6, "w": 604800 * 10**6}
_TEXT = re.compile(r"([0-9]+(?:\.[0-9]+)?)(us|ms|s|m|h|d|w)")
_DURATION_FIX = (
    'Write a number with a unit: "500ms", "10s", "2h", "3d" or "1w". In Python, seconds, a timedelta, or a datetime '
    "with a time zone also work."
)
_LONGEST = 10**6 * 86400 * 366 * 1000


def microseconds(duration: Duration) -> int:
    """Return a duration in whole microseconds.

    Raises InvalidArgument for a duration that is negative, not finite, or longer than 1000 years.
    """
    if isinstance(duration, timedelta):
        found = duration // timedelta(microseconds=1)
    elif isinstance(duration, str):
        match = _TEXT.fullmatch(duration.strip())
        if match is None:
            raise _invalid(duration)
        found = round(min(float(match[1]) * _UNITS[match[2]], _LONGEST + 1))
    elif isinstance(duration, bool) or not -_LONGEST <= duration <= _LONGEST:
        raise _invalid(duration)
    else:
        found = round(duration * 10**6)
    if not 0 <= found <= _LONGEST:
        raise _invalid(duration)
    return found


def _invalid(duration: object) -> InvalidArgument:
    return InvalidArgument(path="duration or time", reason=repr(duration), fix=_DURATION_FIX)


def earliest(*times: int | None) -> int | None:
    """Return the earliest of the times that are not None, or None."""
    return min((time for time in times if time is not None), default=None)


def to_microseconds(at: datetime, path: str) -> int:
    """Return a datetime in microseconds since 1970. Raises InvalidArgument if it has no time zone."""
    if at.tzinfo is None:
        fix = 'Add one: `tzinfo=UTC` in Python, or the suffix "Z" in text.'
        raise InvalidArgument(path=path, reason=f"{at.isoformat()} has no time zone", fix=fix)
    return (at - EPOCH) // timedelta(microseconds=1)


class Clock(Protocol):
    """A source of time and timers."""

    def now(self) -> int:
        """Return microseconds since 1970, UTC."""

    def ticks(self) -> int:
        """Return microseconds since an arbitrary moment, from a clock that cannot be set."""

    def call_later(self, how_long: int, call: Callable[[], object], /) -> Callable[[], None]:
        """Call a function on this event loop after a delay, in microseconds. Returns a function that cancels it."""

    async def sleep(self, how_long: int, /) -> None:
        """Wait this many microseconds."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> int:
        """Return microseconds since 1970, UTC."""
        return time.time_ns() // 1000

    def ticks(self) -> int:
        """Return microseconds since an arbitrary moment, from a clock that cannot be set."""
        return time.monotonic_ns() // 1000

    def call_later(self, how_long: int, call: Callable[[], object], /) -> Callable[[], None]:
        """Call a function on this event loop after a delay, in microseconds. Returns a function that cancels it."""
        return asyncio.get_running_loop().call_later(how_long / 10**6, call).cancel

    async def sleep(self, how_long: int, /) -> None:
        """Wait this many microseconds."""
        await asyncio.sleep(how_long / 10**6)


class FrozenClock:
    """A clock that only moves when a test moves it. Sleepers wake when it has moved far enough."""

    def __init__(self, now: int = 1_700_000_000_000_000) -> None:
        self._now = now
        self._ticks = 0
        self._alarms: list[tuple[int, Callable[[], object]]] = []

    def now(self) -> int:
        """Return the time as last set, in microseconds since 1970, UTC."""
        return self._now

    def ticks(self) -> int:
        """Return how far the clock was moved forward, in microseconds."""
        return self._ticks

    def call_later(self, how_long: int, call: Callable[[], object], /) -> Callable[[], None]:
        """Call a function when the clock has moved this many microseconds. Returns a function that cancels it."""
        if how_long <= 0:
            return asyncio.get_running_loop().call_soon(call).cancel
        alarm = (self._now + how_long, call)
        self._alarms.append(alarm)

        def cancel() -> None:
            self._alarms = [each for each in self._alarms if each is not alarm]

        return cancel

    async def sleep(self, how_long: int, /) -> None:
        """Wait until the clock has moved this many microseconds."""
        if how_long > 0:
            waiting = asyncio.get_running_loop().create_future()
            self.call_later(how_long, lambda: None if waiting.done() else waiting.set_result(None))
            await waiting

    @property
    def next_alarm(self) -> int | None:
        """Time of the earliest pending timer, or None."""
        return min((alarm[0] for alarm in self._alarms), default=None)

    def advance(self, duration: Duration) -> None:
        """Move the clock forward and run the timers that are due."""
        self.set(self._now + microseconds(duration))

    def set(self, now: int) -> None:
        """Set the clock to a time, which may be in the past, and run the timers that are due."""
        self._ticks += max(now - self._now, 0)
        self._now = now
        due = [alarm for alarm in self._alarms if alarm[0] <= now]
        self._alarms = [alarm for alarm in self._alarms if alarm[0] > now]
        for _, call in sorted(due, key=lambda alarm: alarm[0]):
            call()
