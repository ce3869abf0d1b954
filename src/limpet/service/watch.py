"""Lists of runs that are kept up to date."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress

from limpet.clock import SystemClock
from limpet.engine.execution.views import RunInfo
from limpet.stores import Store

__all__ = ["watch_runs"]

# Minimum interval between two queries, in microseconds: a busy store changes all the time.
AT_MOST_EVERY = 100_000
# Maximum interval, in seconds: a worker's lease expires without a notification.
AT_LEAST_EVERY = 1.0


async def watch_runs(
    store: Store, look: Callable[[], Awaitable[Sequence[RunInfo]]]
) -> AsyncGenerator[Sequence[RunInfo], None]:
    """Yield the runs that `look` lists, now and after each possible change. Never ends."""
    clock = SystemClock()
    with store.watch() as watch:
        while True:
            yield await look()
            await clock.sleep(AT_MOST_EVERY)
            with suppress(TimeoutError):  # `wait_for` would lose a Ctrl-C that arrives together with a change
                async with asyncio.timeout(AT_LEAST_EVERY):
                    await watch.changed()
