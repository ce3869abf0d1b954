"""How long something may still take."""

from dataclasses import dataclass

__all__ = ["Left", "Passed", "decide", "wake"]


@dataclass(frozen=True)
class Left:
    """It may still take this many microseconds, or as long as it likes."""

    microseconds: int | None


@dataclass(frozen=True)
class Passed:
    """Its time is over, by this many microseconds."""

    by: int


def decide(now: int, *limits: int | None) -> Left | Passed:
    """What is left until the earliest of some points in time; none of them means no limit."""
    earliest = wake(*limits)
    if earliest is None:
        return Left(None)
    return Left(earliest - now) if now < earliest else Passed(now - earliest)


def wake(*times: int | None) -> int | None:
    """The earliest of some points in time: when a parked run must be looked at."""
    return min((time for time in times if time is not None), default=None)
