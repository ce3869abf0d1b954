"""A worker of another engine drives the runs that the engine gives it, and sweeps for runs that no worker drives."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from limpet.clock import SECOND
from limpet.engine.worker.change_listener import ChangeListener
from limpet.engine.worker.duties import Duty
from limpet.engine.worker.engine import Engine
from limpet.engine.worker.engine_sweep import EngineSweep
from limpet.engine.worker.run_driver import RunDriver
from limpet.engine.worker.run_host import RunHost
from limpet.errors import LimpetError
from limpet.stores import Claimed

__all__ = ["EngineLoop"]

log = logging.getLogger("limpet")

# Rest before the other system is asked again for work, after it refused: first and longest.
FIRST_REST, LONGEST_REST = SECOND, 30 * SECOND


class EngineLoop:
    """One running worker of another engine."""

    def __init__(self, engine: Engine, host: RunHost, duties: Sequence[Duty] = ()) -> None:
        self._engine, self._duties = engine, duties
        self.host = host
        """The runs that it drives."""
        host.on_left = self._on_left
        self._serving: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        """The worker's id."""
        return self.host.id

    async def start(self, listener: ChangeListener) -> int:
        """Register, and take work from the engine. Returns 0: the runs come later."""
        self._listener, host = listener, self.host
        await host.start(listener)
        self._serving = asyncio.create_task(self._serve(), name=f"limpet:{self._engine.name}")
        sweep = EngineSweep(host.store, self._engine, host.kit.clock, host.id, host.lease)
        for duty in (*self._duties, sweep.duty(listener)):
            host.start_duty(duty)
        return 0

    async def _serve(self) -> None:
        """Serve until cancelled, whatever the other system says."""
        clock, rest = self.host.kit.clock, FIRST_REST
        while True:
            began = clock.ticks()
            try:
                await self._engine.serve(self.host)
            except Exception as error:  # whatever the other system raises
                if self.host.is_stopping:
                    return  # it was cancelled, and also failed
                rest = FIRST_REST if clock.ticks() - began > LONGEST_REST else min(2 * rest, LONGEST_REST)
                is_known = isinstance(error, LimpetError)
                # A LimpetError explains itself; only unexpected errors need a traceback.
                log.error(  # noqa: TRY400
                    "worker %s: %s failed, trying again in %d s: %s",
                    self.id,
                    self._engine.name,
                    rest // SECOND,
                    error,
                    exc_info=not is_known,
                )
            await clock.sleep(rest)

    def wake(self) -> None:
        """Do nothing: the engine is told by the commit itself."""

    async def create(self, agent: str, version: str, write: Callable[[str | None], Awaitable[Claimed | None]]) -> None:  # noqa: ARG002 - the engine decides who drives it
        """Create a run, which the engine then has driven."""
        await write(None)

    async def stop(self) -> None:
        """Take no work any more, let running effects finish within the grace period, release every run, and retire."""
        draining = asyncio.create_task(self.host.drain())
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait({self._serving})
        await draining
        await self.host.stop()

    async def kill(self) -> None:
        """Stop as if the process had been killed: write nothing more and release nothing. For tests."""
        if self._serving is not None:
            self._serving.cancel()
        await self.host.kill()

    def _on_left(self, driver: RunDriver) -> None:  # noqa: ARG002 - whichever it was
        self._listener.wake()
