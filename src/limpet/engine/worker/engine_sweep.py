"""The sweep: find runs of an engine that can continue and that no worker drives, and wake them.

A process that commits a command wakes the run, if it knows the engine. The sweep stands behind. It finds commands of
processes that do not know the engine, runs whose creator died before it could wake them, and runs that the engine has
lost. One worker at a time does it for the whole store.
"""

import asyncio
import logging
from collections.abc import AsyncIterator

from limpet.clock import SECOND, Clock
from limpet.engine.worker.change_listener import ChangeListener
from limpet.engine.worker.duties import Duty
from limpet.engine.worker.engine import Engine
from limpet.engine.worker.wake_calls import CALLS, WakeCalls, shown
from limpet.errors import NotFound
from limpet.state import ENDED
from limpet.stores import ReadyRun, RunRow, Store

__all__ = ["EngineSweep"]

log = logging.getLogger("limpet")

# How long a run must be ready before the sweep wakes it: the process that made it ready is about to do so.
GRACE = SECOND // 4
# Time between two looks at runs that became ready, without a change in the store.
LOOK = 2 * SECOND
# A run that became ready this long before the last look may have been committed after it.
OVERLAP = 10 * SECOND
# Time between two looks at all runs, also at those that were woken already.
ALL = 3_600 * SECOND
# The same, after it failed; and the time between two log lines about runs that the engine was not told of.
SOON = 60 * SECOND
# Runs that are looked at together: as many as are woken at a time, so that the lease on the duty is renewed in between,
# however slow the engine is, and so that what was read of a run is not old when it is woken.
PAGE = CALLS
# Later than every event: the engine must look, whatever it knows.
LOOK_ANYWAY = 2**53


class EngineSweep:
    """The sweep of one worker."""

    def __init__(self, store: Store, engine: Engine, clock: Clock, worker: str, lease: int) -> None:
        self._store, self._engine, self._clock, self._worker = store, engine, clock, worker
        # The lease on the duty is renewed between two looks.
        self._pause = min(LOOK, lease * 3 // 10)
        self._grace = min(GRACE, lease * 3 // 10)
        self._calls = WakeCalls(engine, clock)
        self._changed = asyncio.Event()
        self._woken: dict[str, tuple[int, int]] = {}
        """The runs woken in the last seconds: the sequence, and since when they were ready."""
        self._has_failed = False
        """Whether the engine could not be told of a run in the last look; the next one begins where that did."""
        self._silent_until = 0

    def duty(self, listener: ChangeListener) -> Duty:
        """Return the duty, whose round lasts as long as its worker."""

        async def sweep() -> AsyncIterator[None]:
            listener.add_callback(self._changed.set)
            try:
                async for _ in self._look_forever():
                    yield
            finally:
                listener.remove_callback(self._changed.set)

        return Duty(f"{self._engine.name}-sweep", SECOND, sweep)

    async def _look_forever(self) -> AsyncIterator[None]:
        looked, all_at = 0, 0
        while True:
            now = await self._store.now()
            try:
                await self._store.claim(self._worker, limit=0)  # releases the runs of dead workers
            except NotFound:
                return  # this worker counted as dead, and registers again soon
            if now >= all_at:
                self._woken.clear()
                looked, all_at = 0, now + ALL
                try:
                    async for _ in self._wake_forgotten():
                        yield
                except Exception as error:  # noqa: BLE001 - whatever the other system raises
                    all_at = now + SOON
                    log.warning("%s could not list its runs: %s", self._engine.name, error)
            self._has_failed = False
            async for _ in self._wake_ready(looked - OVERLAP, now - GRACE):
                yield
            if not self._has_failed:
                looked = now - GRACE
            self._woken = {run: known for run, known in self._woken.items() if known[1] >= looked - OVERLAP}
            await self._rest()

    async def _rest(self) -> None:
        """Wait for a change in the store, and a moment longer; or for the next look."""
        cancel_timer = self._clock.call_later(self._pause, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            cancel_timer()
        await self._clock.sleep(self._grace)
        self._changed.clear()

    async def _wake_ready(self, after: int, until: int) -> AsyncIterator[None]:
        """Wake runs that became ready in a time, and that were not woken for it."""
        place = (max(after, 0), 0)
        while True:
            rows = await self._store.due(self._engine.name, after=place, until=until, limit=PAGE)
            await self._wake([row for row in rows if self._woken.get(row.id, (0, 0))[0] != row.seq])
            yield
            if len(rows) < PAGE:
                return
            place = (rows[-1].ready_at or 0, rows[-1].number)

    async def _wake(self, rows: list[RunRow]) -> None:
        ready = [ReadyRun(row.id, row.agent, row.agent_version, row.seq, row.engine) for row in rows]
        errors = await asyncio.gather(*(self._calls.try_call(run, is_missed=True) for run in ready))
        for row, error in zip(rows, errors, strict=True):
            if error is None:
                self._woken[row.id] = row.seq, row.ready_at or 0
        failed = [(row.id, error) for row, error in zip(rows, errors, strict=True) if error is not None]
        if failed:
            self._has_failed = True
            self._log_failed(*failed[0], len(failed))

    def _log_failed(self, run: str, error: Exception, count: int) -> None:
        """Log now and then that the engine was not told of runs. Each look repeats the calls."""
        now = self._clock.ticks()
        if now < self._silent_until:
            return
        self._silent_until = now + SOON
        name = self._engine.name
        log.warning("%s could not be told of %d ready runs, such as %s: %s", name, count, run, shown(error))

    async def _wake_forgotten(self) -> AsyncIterator[None]:
        """Wake runs that the engine still has driven although they have ended, moved, or were deleted."""
        page: list[str] = []
        async for run in self._engine.unfinished():
            page.append(run)
            if len(page) == PAGE:
                await self._wake_if_over(page)
                page = []
                yield
        await self._wake_if_over(page)
        yield

    async def _wake_if_over(self, runs: list[str]) -> None:
        rows = await self._store.rows(runs)
        for run in runs:
            row = rows.get(run)
            if row is None or row.status in ENDED or row.engine != self._engine.name:
                agent, version = ("", "") if row is None else (row.agent, row.agent_version)
                await self._calls.call(ReadyRun(run, agent, version, LOOK_ANYWAY, self._engine.name))
