"""Tell an engine which runs can continue, after the commit that made them ready, and beside it."""

import asyncio
import logging
from collections.abc import Sequence

from limpet.clock import SECOND, Clock
from limpet.engine.execution.user_code import wait_within
from limpet.engine.worker.engine import Engine
from limpet.errors import LimpetError
from limpet.stores import ReadyRun

__all__ = ["CALLS", "WakeCalls", "shown"]

log = logging.getLogger("limpet")

# At most so many calls at a time.
CALLS = 20
# How long a process that ends waits for its last calls. The sweep of the workers makes up for what is lost.
LAST_CALLS = 5 * SECOND


class WakeCalls:
    """Calls `Engine.wake` in the background. A call that fails is logged; the sweep repeats it."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine, self._clock = engine, clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(CALLS)

    def send(self, runs: Sequence[ReadyRun]) -> None:
        """Wake the runs of this engine."""
        for run in runs:
            if run.engine == self._engine.name:
                task = asyncio.create_task(self.call(run), name=f"limpet:wake:{run.id}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def call(self, run: ReadyRun) -> None:
        """Wake one run, and wait for that."""
        error = await self.try_call(run)
        if error is not None:
            log.warning("%s could not be told of run %s: %s", self._engine.name, run.id, shown(error))

    async def try_call(self, run: ReadyRun, *, is_missed: bool = False) -> Exception | None:
        """Wake one run, wait for that, and return the error if the engine was not told."""
        async with self._places:
            try:
                await self._engine.wake(run, is_missed=is_missed)
            except Exception as error:  # noqa: BLE001 - whatever the other system raises; the command is committed
                return error
        return None

    async def close(self) -> None:
        """Wait for the calls under way, but not for long."""
        if self._tasks:
            await wait_within(self._clock, set(self._tasks), LAST_CALLS)
        for task in self._tasks:
            task.cancel()


def shown(error: Exception) -> str:
    """Return an error as one line. A LimpetError explains itself."""
    return str(error) if isinstance(error, LimpetError) else f"{type(error).__name__}: {error}"
