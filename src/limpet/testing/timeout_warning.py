"""Time-outs of asyncio around a run's waits: they live in the process, and a run that waits does not."""

import asyncio
import warnings
from typing import Any

__all__ = ["TimeoutAroundWait", "warn_of_timeouts"]


class TimeoutAroundWait(UserWarning):
    """A run waits inside a time-out that is gone when the run is parked."""


def warn_of_timeouts(run: str, task: "asyncio.Task[Any]") -> bool:
    """Say so, if the code of a run that only waits has set itself a time-out; whether it has."""
    loop = asyncio.get_running_loop()
    alarms = [handle for handle in getattr(loop, "_scheduled", ()) if not handle.cancelled()]
    if not any(_owner(handle) is task for handle in alarms):
        return False
    warnings.warn(
        f"run {run} waits inside a time-out of asyncio, which does not survive parking: "
        "give the verb its own (expires= of ask, timeout= of receive)",
        TimeoutAroundWait,
        stacklevel=2,
    )
    return True


def _owner(handle: Any) -> object:
    """The task that an alarm of the event loop would cut short: `asyncio.timeout`, or `wait_for` before 3.12."""
    timeout = getattr(handle._callback, "__self__", None)
    if isinstance(timeout, asyncio.Timeout):
        return getattr(timeout, "_task", None)
    waiter = next((each for each in handle._args or () if isinstance(each, asyncio.Future)), None)
    wakers = [getattr(each[0], "__self__", None) for each in getattr(waiter, "_callbacks", None) or ()]
    return next((each for each in wakers if isinstance(each, asyncio.Task)), None)
