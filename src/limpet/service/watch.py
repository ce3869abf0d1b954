"""Lists of runs that stay up to date."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from limpet.clock import SystemClock
from limpet.engine.execution.views import RunInfo
from limpet.service.app import App

__all__ = ["watch_runs"]

# Microseconds between two looks: a busy store changes all the time.
AT_MOST_EVERY = 100_000
# Seconds after which it is looked without being told: a worker's lease ends without a word.
AT_LEAST_EVERY = 1.0


async def watch_runs(
    app: App, *, status: str | None = None, agent: str | None = None, last: int = 20
) -> AsyncGenerator[list[RunInfo], None]:
    """The newest runs that match, now, and again whenever something may have changed; it never ends by itself."""
    clock = SystemClock()
    with app.store.watch() as watch:
        while True:
            yield await app.runs(status=status, agent=agent, last=last)
            await clock.sleep(AT_MOST_EVERY)
            with suppress(TimeoutError):  # wait_for would lose a Ctrl-C that comes together with a change
                async with asyncio.timeout(AT_LEAST_EVERY):
                    await watch.changed()
