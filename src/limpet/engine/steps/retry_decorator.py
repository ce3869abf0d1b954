"""Trying a plain function again: for code outside of runs. A step has its own retry, which survives the process."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from inspect import isawaitable
from threading import Thread
from typing import Any, TypeVar, overload

from limpet.clock import Clock, SystemClock
from limpet.engine.steps.verdict import attempt_of
from limpet.policy.retry import Again, Retry, decide

__all__ = ["retry"]

T = TypeVar("T")


@overload
def retry(
    fn: Callable[[], Awaitable[T]], attempts: int = 3, *, clock: Clock | None = None
) -> Coroutine[Any, Any, T]: ...


@overload
def retry(fn: Callable[[], T], attempts: int = 3, *, clock: Clock | None = None) -> T: ...


def retry(fn: Callable[[], Any], attempts: int = 3, *, clock: Clock | None = None) -> Any:
    """What a function gives, tried so many times, with 1 s, 2 s, 4 s … in between; to be awaited if the function is.

    The last error is raised, with those before it as notes. `Permanent` ends it at once; `RetryAfter` says how long to
    wait.
    """
    tries = _Tries(attempts, clock or SystemClock())
    while True:
        try:
            found = fn()
        except Exception as error:  # noqa: BLE001 - whatever it is, it may go better the next time
            tries.block(tries.pause_after(error))
        else:
            return _awaited(fn, found, tries) if isawaitable(found) else found


async def _awaited(fn: Callable[[], Awaitable[T]], first: Awaitable[T], tries: "_Tries") -> T:
    coming: Awaitable[T] | None = first
    while True:
        try:
            return await (fn() if coming is None else coming)
        except Exception as error:  # noqa: BLE001
            pause = tries.pause_after(error)
        coming = None
        await tries.clock.sleep(pause)


class _Tries:
    """How often something was tried, and what went wrong each time."""

    def __init__(self, attempts: int, clock: Clock) -> None:
        self._retry = Retry(attempts, first="1s", factor=2, cap="52w", jitter=False)
        self._errors: list[Exception] = []
        self.clock = clock

    def pause_after(self, error: Exception) -> int:
        """How long to wait for the next attempt, in microseconds; raises the error if there is none."""
        self._errors.append(error)
        next = decide(self._retry, attempt_of(len(self._errors), error), 1)
        if isinstance(next, Again):
            return next.after
        for number, before in enumerate(self._errors[:-1], 1):
            error.add_note(f"attempt {number}: {before!r}")
        raise error

    def block(self, how_long: int) -> None:
        """Wait by the clock's own way, on another thread, because this one may have an event loop that runs."""

        async def sleep() -> None:
            await self.clock.sleep(how_long)

        waiting = Thread(target=lambda: asyncio.run(sleep()), name="limpet-retry", daemon=True)
        waiting.start()
        waiting.join()
