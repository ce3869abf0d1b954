"""Detect asyncio timeouts around waits of a run: they exist only in the process, and a parked run leaves it."""

import asyncio
import warnings
from typing import Any

__all__ = ["TimeoutAroundWait", "warn_of_timeouts"]


class TimeoutAroundWait(UserWarning):
    """A run waits inside an asyncio timeout, which is lost when the run is parked."""


def warn_of_timeouts(run: str, task: "asyncio.Task[Any]") -> bool:
    """Warn if a waiting run's code is inside an asyncio timeout, and return whether it is."""
    loop = asyncio.get_running_loop()
    alarms = [handle for handle in getattr(loop, "_scheduled", ()) if not handle.cancelled()]
    if not any(_owner(handle) is task for handle in alarms):
        return False
    warnings.warn(
        f"run {run} waits inside an asyncio timeout, which is lost when the run is parked; "
        "pass expires= to ask or timeout= to receive instead",
        TimeoutAroundWait,
        stacklevel=2,
    )
    return True


def _owner(handle: Any) -> object:
    """Return the task that a timer of the event loop would interrupt: `asyncio.timeout`, or `wait_for` before 3.12."""
    timeout = getattr(handle._callback, "__self__", None)
    if isinstance(timeout, asyncio.Timeout):
        return getattr(timeout, "_task", None)
    waiter = next((each for each in handle._args or () if isinstance(each, asyncio.Future)), None)
    wakers = [getattr(each[0], "__self__", None) for each in getattr(waiter, "_callbacks", None) or ()]
    return next((each for each in wakers if isinstance(each, asyncio.Task)), None)
