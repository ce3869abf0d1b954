"""Duties of a worker: work for the whole store, done in small bites by one worker at a time.

A worker tries to take each duty when it is due. It renews its lease on the duty between two bites. If it dies, another
worker starts a new round when the lease has expired; each bite is a transaction of its own, so nothing is half done.
"""

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from limpet.arguments import defining
from limpet.clock import SECOND, Clock, Duration, microseconds
from limpet.errors import InvalidArgument, LimpetError
from limpet.policy.retention import KeepRule
from limpet.stores import Store

__all__ = ["Duty", "DutyLoop", "Retention"]

log = logging.getLogger("limpet")

# Rest after each bite, so that runs are not delayed.
PAUSE = SECOND // 100
# Longest wait after a failed round.
RETRY = 60 * SECOND
MAX_ERROR = 500


@defining
@dataclass(frozen=True, kw_only=True)
class Retention(KeepRule):
    """Which runs a worker deletes after their end, and how often it looks for them.

    Runs that belong together (a fork and its origin, a caller and the runs it called) are deleted together.
    """

    archive: str | Path | None = None
    """Folder to export each run to before it is deleted."""
    snapshots: int | None = None
    """Number of snapshots to keep per run; None keeps all."""
    every: Duration = "1h"
    """Time between two rounds. All workers of a store together do one round in this time."""

    def __post_init__(self) -> None:
        """Raise InvalidArgument for an invalid duration, status or number."""
        super().__post_init__()
        if microseconds(self.every) < SECOND:
            raise InvalidArgument(path="every", reason="must be at least 1s")
        if self.snapshots is not None and self.snapshots < 1:
            raise InvalidArgument(path="snapshots", reason="must be at least 1, or None")


class Duty(Struct, frozen=True):
    """Work that one worker at a time does for the whole store, now and then."""

    name: str
    every: int
    """Time between two rounds, in microseconds."""
    bites: Callable[[], AsyncIterator[None]]
    """Performs a round, and yields after each small part of it."""


class DutyLoop:
    """One duty of one worker."""

    def __init__(self, duty: Duty, store: Store, clock: Clock, worker: str, lease: int) -> None:
        self._duty, self._store, self._clock, self._worker, self._lease = duty, store, clock, worker, lease
        self._is_holding = False

    async def run(self) -> None:
        """Do the duty whenever it is due, until cancelled."""
        while True:
            await self._clock.sleep(await self._try())

    async def release(self) -> None:
        """Let another worker continue immediately; called after `run` was cancelled."""
        if self._is_holding:
            self._is_holding = False
            await self._store.end_duty(self._duty.name, self._worker, is_done=False)

    async def _try(self) -> int:
        """Take the duty and do a round, if it is due. Return how long to wait for the next attempt."""
        try:
            turn = await self._store.take_duty(self._duty.name, self._worker, lease=self._lease, every=self._duty.every)
            if not turn.taken:
                return turn.wait
            self._is_holding = True
            return await self._do()
        except LimpetError as error:
            log.warning("worker %s: duty %s: %s", self._worker, self._duty.name, error)
            return min(self._duty.every, RETRY)

    async def _do(self) -> int:
        name, error = self._duty.name, ""
        try:
            if not await self._round():
                self._is_holding = False
                log.warning("worker %s: another worker continues the duty %s", self._worker, name)
                return self._lease
        except Exception as failed:
            # A LimpetError explains itself; only unexpected errors need a traceback.
            log.error("duty %s failed: %s", name, failed, exc_info=not isinstance(failed, LimpetError))  # noqa: TRY400
            error = f"{type(failed).__name__}: {failed}"[:MAX_ERROR]
        await self._store.end_duty(name, self._worker, is_done=not error, error=error)
        self._is_holding = False
        return min(self._duty.every, RETRY) if error else self._duty.every

    async def _round(self) -> bool:
        """Do a round, and renew the lease between bites. Return False if the lease was lost."""
        renewed = self._clock.ticks()
        async for _ in self._duty.bites():
            if self._clock.ticks() - renewed >= self._lease * 3 // 10:
                if not await self._store.keep_duty(self._duty.name, self._worker, lease=self._lease):
                    return False
                renewed = self._clock.ticks()
            await self._clock.sleep(PAUSE)
        return True
