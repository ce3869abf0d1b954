"""Times for people."""

from datetime import UTC, datetime, timedelta

__all__ = ["about", "moment", "until"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = (("d", 86400), ("h", 3600), ("m", 60))


def moment(microseconds: int) -> str:
    """When."""
    return f"{_EPOCH + timedelta(microseconds=microseconds):%Y-%m-%d %H:%M:%S} UTC"


def until(time: int | None) -> str:
    """Until when, if there is an end."""
    return "" if time is None else f" until {moment(time)}"


def about(microseconds: int, *, exact: bool = False) -> str:
    """About how long, in the largest unit that fits; `exact` says parts of a second too."""
    seconds = max(microseconds, 0) / 10**6
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    if not exact or seconds >= 10:
        return f"{int(seconds)}s"
    return f"{seconds:.1f}s" if seconds >= 1 else f"{round(seconds * 1000)}ms"
