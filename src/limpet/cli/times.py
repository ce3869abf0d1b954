"""Times for people."""

from limpet.clock import moment

__all__ = ["about", "until"]

_UNITS = (("d", 86400), ("h", 3600), ("m", 60))


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
