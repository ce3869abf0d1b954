"""The built-in engine: a worker that claims whatever is ready, and drives it.

It is one user of `RunHost`, which has the lease and the drivers.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from limpet.clock import SECOND
from limpet.engine.worker.change_listener import ChangeListener
from limpet.engine.worker.duties import Duty
from limpet.engine.worker.run_driver import RunDriver
from limpet.engine.worker.run_host import RunHost
from limpet.engine.worker.worker_settings import Timing
from limpet.errors import ConnectionLost, LimpetError
from limpet.stores import Claimed

__all__ = ["WorkerLoop"]

log = logging.getLogger("limpet")

# The idle time is multiplied by this while the worker drives runs.
BUSY_IDLE_FACTOR = 10


class WorkerLoop:
    """One running worker: claims runs, and drives each of them in a task."""

    def __init__(self, host: RunHost, timing: Timing, duties: Sequence[Duty] = ()) -> None:
        self._timing, self._duties = timing, duties
        self.host = host
        """The runs that it drives."""
        host.on_left = self._on_left
        self._wake_times: dict[str, int] = {}
        """When each run that was parked here is due, by the store's clock."""
        self._cancel_look: Callable[[], None] = lambda: None
        self._coming = 0
        """Number of runs that are being created here."""
        self._has_backlog = False
        """Whether other runs may wait until this worker has room."""
        self._queueing = self._queued = 0
        """Number of runs that are being created here and have to queue, and of those that had to."""
        self._work_hint = asyncio.Event()
        """Set when something in the store changed or a timer is due: a claim may find something."""
        self._work_now = asyncio.Event()
        """Set by `wake`: a claim will probably find something, so do not idle."""

    @property
    def id(self) -> str:
        """The worker's id."""
        return self.host.id

    async def start(self, listener: ChangeListener) -> int:
        """Register, claim ready runs (such as those of a dead process on this machine), and start the claim loop.

        Returns the number of runs claimed.
        """
        self._listener = listener
        listener.add_callback(self._work_hint.set)  # first, because the store's watch takes time to connect
        await self.host.start(listener)
        self._work_hint.clear()  # the claim finds what has changed until now
        found = await self.claim()
        self.host.run_in_background(self._claim_loop(), "limpet:worker")
        for duty in self._duties:
            self.host.start_duty(duty)
        return found

    def wake(self) -> None:
        """Claim now: a run was started, or one has left this worker."""
        self._work_hint.set()
        self._work_now.set()

    async def create(self, agent: str, version: str, write: Callable[[str | None], Awaitable[Claimed | None]]) -> None:
        """Create a run, and start to drive it here if there is room. Otherwise it queues.

        `write` creates it; if it gets a worker, it also claims the run for that worker, unless the run must queue.
        """
        if not self._has_room(agent, version):
            self._queueing += 1
            try:
                await write(None)
            finally:
                self._queueing, self._queued = self._queueing - 1, self._queued + 1
                self.wake()
            return
        self._coming += 1
        try:
            claimed = await write(self.host.id)
        except BaseException:
            self.host.spawn(self._recover_lost_claim())  # it may have been created all the same
            raise
        finally:
            self._coming -= 1
        if claimed is None:
            self.wake()
        elif not self.host.is_driving(claimed.row.id) and not self.host.is_stopping:
            self._take(claimed)

    def _has_room(self, agent: str, version: str) -> bool:
        """Return whether a new run can be driven here immediately, without overtaking others."""
        host = self.host
        if host.is_stopping or self._has_backlog or agent in host.concurrency or agent in host.skipped:
            return False
        self._has_backlog = host.room - self._coming <= 0
        return not self._has_backlog and host.serves(agent, version)

    async def stop(self) -> None:
        """Stop claiming, let running effects finish within the grace period, release every run, and retire."""
        await self.host.stop()

    async def kill(self) -> None:
        """Stop as if the process had been killed: write nothing more and release nothing. For tests."""
        await self.host.kill()

    # Claims

    async def _claim_loop(self) -> None:
        try:
            while not self.host.is_stopping:
                await self._wait_for_work()
                await self._claim_until_full()
        finally:
            self._listener.remove_callback(self._work_hint.set)

    async def _wait_for_work(self) -> None:
        """Wait for `wake`, a change in the store, the next known wake time, the poll interval, or a suspect that has
        settled a step, which allows this worker to claim others.
        """
        next_wake = min(self._wake_times.values(), default=None)
        poll = self._timing.poll
        delay = poll if next_wake is None else min(poll, max(next_wake - self.host.kit.now(), 0))
        cancel_timer = self.host.kit.clock.call_later(delay, self._work_hint.set)
        self._look_at_suspects(self.host.cleared)
        try:
            await self._work_hint.wait()
        finally:
            cancel_timer()
            self._cancel_look()
        self._work_hint.clear()

    def _look_at_suspects(self, cleared: int) -> None:
        """Look from time to time, without asking the store, whether more suspects are cleared than were."""
        if self.host.cleared > cleared:
            self._work_hint.set()
        elif self.host.has_suspects:
            look = partial(self._look_at_suspects, cleared)
            self._cancel_look = self.host.kit.clock.call_later(self._timing.look, look)

    async def _claim_until_full(self) -> None:
        """Claim until no run is ready or the worker is full, then idle."""
        try:
            while not self.host.is_stopping and self.host.room > 0:
                if not await self.claim():
                    break
        except ConnectionLost:  # the claim may have succeeded although its reply was lost
            await self._recover_lost_claim()
        except Exception as error:
            is_expected = isinstance(error, LimpetError)
            # A LimpetError explains itself; only unexpected errors need a traceback.
            log.error("worker %s: claim failed: %s", self.host.id, error, exc_info=not is_expected)  # noqa: TRY400
            await self.host.kit.clock.sleep(SECOND)
        if self._timing.idle:
            await self._idle()

    async def _idle(self) -> None:
        """Pause between rounds of claims; `wake` ends the pause.

        A claim is a write. While runs are driven here, most changes in the store are their own appends, and claiming
        after each of them would find nothing.
        """
        self._work_now.clear()
        idle = self._timing.idle * (BUSY_IDLE_FACTOR if self.host.is_busy else 1)
        cancel_timer = self.host.kit.clock.call_later(idle, self._work_now.set)
        try:
            await self._work_now.wait()
        finally:
            cancel_timer()

    async def claim(self) -> int:
        """Claim as many ready runs as fit, start driving them, and return their number."""
        now = self.host.kit.now()
        self._wake_times = {run: wake for run, wake in self._wake_times.items() if wake > now}
        async with self.host.claiming:
            limit, queued = self.host.room, self._queued
            claimed = await self._claim(limit) if limit > 0 else ()
            # A run that was being created meanwhile queues, although this claim may not have seen it.
            self._has_backlog = len(claimed) >= limit or self._queueing > 0 or self._queued > queued
            for each in claimed:
                self._take(each)
        return len(claimed)

    async def _claim(self, limit: int) -> Sequence[Claimed]:
        host = self.host
        claim = partial(
            host.store.claim,
            host.id,
            limit=limit,
            concurrency=host.concurrency,
            skip=host.skipped,
            cleared=host.cleared,
        )
        return await host.registered(claim)

    def _take(self, claimed: Claimed) -> None:
        self._wake_times.pop(claimed.row.id, None)
        self.host.take(claimed)

    async def _recover_lost_claim(self) -> None:
        if not await self.host.recover_lost_claim():
            self._work_hint.set()

    def _on_left(self, driver: RunDriver) -> None:
        """Claim again, if a run that has left this worker may have made another one ready."""
        if driver.wake_at is not None:
            self._wake_times[driver.run] = driver.wake_at
        if self._may_ready_others(driver):
            self.wake()
            self._listener.wake()

    def _may_ready_others(self, driver: RunDriver) -> bool:
        """Return whether another run may be claimable because this one has left: one that it freed a place for, its
        caller, or the run itself. A run that has ended and that no other needs leaves nothing to do.
        """
        is_limited = self._has_backlog or driver.agent in self.host.concurrency or self.host.is_stopping
        return is_limited or driver.end_place is None or driver.matters_to_others
