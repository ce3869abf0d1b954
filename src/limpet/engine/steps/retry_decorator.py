"""`retry`: retries of a plain function outside of runs. A step has its own retries, which survive the process."""

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
    """Call a function up to `attempts` times, with pauses of 1 s, 2 s, 4 s …, and return its result.

    If the function returns an awaitable, the result is a coroutine to await. The last error is raised, with the earlier
    ones as notes. `Permanent` ends the retries immediately; `RetryAfter` sets the pause.
    """
    tries = _Tries(attempts, clock or SystemClock())
    while True:
        try:
            found = fn()
        except Exception as error:  # noqa: BLE001 - any error may be temporary
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
    """Attempts of one call, and their errors."""

    def __init__(self, attempts: int, clock: Clock) -> None:
        self._retry = Retry(attempts, first="1s", factor=2, cap="52w", jitter=False)
        self._errors: list[Exception] = []
        self.clock = clock

    def pause_after(self, error: Exception) -> int:
        """Return the pause before the next attempt, in microseconds. Raises the error if there is none."""
        self._errors.append(error)
        next = decide(self._retry, attempt_of(len(self._errors), error), 1)
        if isinstance(next, Again):
            return next.after
        for number, before in enumerate(self._errors[:-1], 1):
            error.add_note(f"attempt {number}: {before!r}")
        raise error

    def block(self, how_long: int) -> None:
        """Sleep on another thread, because this one may have a running event loop."""

        async def sleep() -> None:
            await self.clock.sleep(how_long)

        waiting = Thread(target=lambda: asyncio.run(sleep()), name="limpet-retry", daemon=True)
        waiting.start()
        waiting.join()
