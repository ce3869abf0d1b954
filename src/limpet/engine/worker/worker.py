"""The worker: registers with a lease, claims runs, drives them concurrently, and releases them when it stops.

A lease belongs to the worker, a fence to each run it claims. The worker renews its lease at 30% of its length. If it
dies, another worker claims its runs under a higher fence, and the old worker can no longer append to them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from threading import Event as Flag
from threading import Thread
from typing import Any

from msgspec import structs

from limpet.arguments import defining
from limpet.clock import SECOND, Clock, Duration, microseconds
from limpet.engine.definitions.agents import Agent
from limpet.engine.execution.kit import Kit
from limpet.engine.execution.user_code import wait_within
from limpet.engine.worker.change_listener import ChangeListener, Subscription
from limpet.engine.worker.collector import RelaxedCollector
from limpet.engine.worker.duties import Duty, DutyLoop, Retention
from limpet.engine.worker.run_driver import RunDriver
from limpet.errors import (
    ConnectionLost,
    DamagedEvent,
    DefinitionError,
    LimpetError,
    NewerVersion,
    NotFound,
    Tampered,
)
from limpet.events import Wait, seal_all
from limpet.events import bodies as b
from limpet.journal import verify_run
from limpet.policy.quarantine import MAX_FRUITLESS, pause_before_retry
from limpet.stores import Claimed, Extend, Renewal, Store, WorkerRow
from limpet.stores.projection import project

__all__ = ["Timing", "Worker", "WorkerLoop"]

log = logging.getLogger("limpet")

# The idle time is multiplied by this while the worker drives runs.
BUSY_IDLE_FACTOR = 10
# How often the worker checks whether a suspect has settled a step, which allows it to claim others.
SUSPECT_POLL = SECOND // 20
# A worker whose event loop is blocked for this long stops renewing its lease, so that other workers claim its runs.
LOOP_STUCK_AFTER = 60 * SECOND


@defining
class Worker:
    """Settings of a worker.

    `concurrency` is the maximum number of concurrent runs, and `lease` the time for which the worker counts as alive
    without renewing. When the worker stops, running effects have `grace` to finish. `parole` lists how long a
    quarantined run rests before each retry; after the last one, an operator decides. With `keep`, the workers of a
    store delete runs that ended long ago, one worker at a time. `relaxed_gc` lets Python's garbage collector run less
    often in this process while the worker runs, which `limpet worker` does.
    """

    def __init__(
        self,
        *,
        concurrency: int = 100,
        lease: Duration = "10s",
        grace: Duration = "10s",
        parole: Sequence[Duration] = ("1m", "10m", "1h"),
        keep: Retention | None = None,
        relaxed_gc: bool = False,
    ) -> None:
        if concurrency < 1 or microseconds(lease) < 1000:
            raise DefinitionError(what="a worker", reason="concurrency must be at least 1, and lease at least 1 ms")
        self.concurrency, self.lease, self.grace = concurrency, microseconds(lease), microseconds(grace)
        self.parole = tuple(microseconds(each) for each in parole)
        """Rest of a quarantined run before each retry, in microseconds; after the last retry, an operator decides."""
        self.keep = keep
        """Which runs the worker deletes after their end; None for no run."""
        self.relaxed_gc = relaxed_gc
        """Whether the garbage collector of the process runs less often."""


class Timing:
    """Intervals of the worker loop, in microseconds."""

    def __init__(
        self, *, poll: int = SECOND, idle: int = SECOND // 100, sweep: int = SECOND // 10, lease_thread: bool = True
    ) -> None:
        self.poll = poll
        """Maximum time between two rounds of claims: how late a due timer or a dead worker is noticed."""
        self.idle = idle
        """Pause after each round of claims; 0 for none."""
        self.sweep = sweep
        """Time between two sweeps for events that wait for a flush, while the worker drives runs."""
        self.lease_thread = lease_thread
        """Whether to renew the lease on a separate thread, so that a blocked event loop does not lose it immediately.
        """


class StoreClock:
    """Local estimate of the store's clock: the last time it reported, plus the monotonic time since then.

    Setting the machine's clock does not change it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.now() - clock.ticks()

    def now(self) -> int:
        """Return the estimated store time, in microseconds."""
        return self._clock.ticks() + self._offset

    def sync(self, now: int) -> None:
        """Set the estimate to a time that the store just reported."""
        self._offset = now - self._clock.ticks()


class WorkerLoop:
    """One running worker: renews its lease, claims runs, and drives each of them in a task."""

    def __init__(
        self,
        kit: Kit,
        agents: Sequence[Agent[Any, Any]],
        worker: Worker,
        store_clock: StoreClock,
        timing: Timing,
        duties: Sequence[Duty] = (),
    ) -> None:
        self._kit, self._worker, self._store_clock, self._timing = kit, worker, store_clock, timing
        self.id = kit.worker
        self._agents_by_version = _index_by_version(agents)
        limits = ((each.name, each.rules.concurrency) for each in agents)
        self._concurrency = {name: limit for name, limit in limits if limit is not None}
        self._worker_row = WorkerRow(id=self.id, agents=_versions_by_agent(agents))
        self._drivers: dict[str, RunDriver] = {}
        self._driver_tasks: set[asyncio.Task[None]] = set()
        self._side_tasks: set[asyncio.Task[None]] = set()
        """Short background tasks; asyncio itself keeps only weak references."""
        self._claim_lock = asyncio.Lock()
        self._wake_times: dict[str, int] = {}
        """When each run that was parked here is due, by the store's clock."""
        self._suspects: dict[str, RunDriver] = {}
        self._cleared = 0
        """Number of suspects that settled a step here, or left, without killing this worker."""
        self._skipped_agents: dict[str, tuple[int, int]] = {}
        """Agents whose logs a newer worker writes: how often that was noticed, and until when to claim none of their
        runs.
        """
        self._coming = 0
        """Number of runs that are being created here."""
        self._has_backlog = False
        """Whether other runs may wait until this worker has room."""
        self._work_hint = asyncio.Event()
        """Set when something in the store changed or a timer is due: a claim may find something."""
        self._work_now = asyncio.Event()
        """Set by `wake`: a claim will probably find something, so do not idle."""
        self._has_drivers = asyncio.Event()
        """Set while the worker may drive runs: the sweep then looks at them."""
        self._stopping = False
        self._loop_alive_at = kit.clock.ticks()
        """When the event loop last ran a callback, in monotonic microseconds."""
        self._stop_renewing = Flag()
        self._background: list[asyncio.Task[None]] = []
        self._collector = ExitStack()
        self._duties = duties
        self._duty_tasks: dict[DutyLoop, asyncio.Task[None]] = {}

    @property
    def store(self) -> Store:
        """The store of the runs."""
        return self._kit.store

    @property
    def is_busy(self) -> bool:
        """Whether the worker drives at least one run."""
        return bool(self._drivers)

    def serves(self, agent: str, version: str) -> bool:
        """Return whether this worker claims runs of a version of an agent."""
        return (agent, version) in self._agents_by_version

    def is_driving(self, run: str) -> bool:
        """Return whether this worker drives the run now; subscribers are notified when it no longer does."""
        return run in self._drivers

    @property
    def waiting(self) -> "list[tuple[str, asyncio.Task[Any]]]":
        """Runs whose code only waits at this moment, each with the task of that code."""
        found = [(run, driver.waiting_task) for run, driver in self._drivers.items()]
        return [(run, task) for run, task in found if task is not None]

    async def start(self, listener: ChangeListener) -> int:
        """Register, claim ready runs (such as those of a dead process on this machine), and start the claim loop.

        Returns the number of runs claimed.
        """
        self._listener = listener
        if self._worker.relaxed_gc:
            self._collector.enter_context(RelaxedCollector())
        self._note_renewal(await self.store.register(self._worker_row, lease=self._worker.lease))
        self._start_renewal()
        found = await self.claim()
        self._background.append(asyncio.create_task(self._claim_loop(), name="limpet:worker"))
        self._background.append(asyncio.create_task(self._sweep_loop(), name="limpet:sweep"))
        for duty in self._duties:
            loop = DutyLoop(duty, self.store, self._kit.clock, self.id, self._worker.lease)
            self._duty_tasks[loop] = asyncio.create_task(loop.run(), name=f"limpet:duty:{duty.name}")
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
            await write(None)
            self.wake()
            return
        self._coming += 1
        try:
            claimed = await write(self.id)
        except BaseException:
            self._spawn(self._recover_lost_claim())  # it may have been created all the same
            raise
        finally:
            self._coming -= 1
        if claimed is None:
            self.wake()
        elif claimed.row.id not in self._drivers and not self._stopping:
            self._start_driver(claimed)

    def _has_room(self, agent: str, version: str) -> bool:
        """Return whether a new run can be driven here immediately, without overtaking others."""
        if self._stopping or self._has_backlog or agent in self._concurrency or agent in self._skipped_agents:
            return False
        self._has_backlog = len(self._drivers) + self._coming >= self._worker.concurrency
        return not self._has_backlog and self.serves(agent, version)

    async def stop(self) -> None:
        """Stop claiming, let running effects finish within the grace period, release every run, and retire."""
        self._stopping = True
        for task in (*self._background, *self._duty_tasks.values()):
            task.cancel()
        for driver in list(self._drivers.values()):
            driver.drain()
        await wait_within(self._kit.clock, {*self._driver_tasks, *self._duty_tasks.values()}, self._worker.grace)
        for loop in self._duty_tasks:
            with suppress(LimpetError):  # its lease expires
                await loop.release()
        await self._retire()
        self._collector.close()

    async def _retire(self) -> None:
        unfinished = [task for task in self._driver_tasks if not task.done()]
        if unfinished:
            log.warning("%d runs did not finish within the grace period; releasing them", len(unfinished))
            code = [task for driver in self._drivers.values() for task in driver.kill()]
            for task in (*unfinished, *code):
                task.cancel()
            await wait_within(self._kit.clock, {*unfinished, *code}, SECOND)
        self._stop_renewing.set()
        with suppress(LimpetError):
            await self.store.retire(self.id)

    async def kill(self) -> None:
        """Stop as if the process had been killed: write nothing more and release nothing. For tests."""
        self._stopping = True
        self._stop_renewing.set()
        tasks = [*self._background, *self._duty_tasks.values(), *self._driver_tasks]
        for driver in self._drivers.values():
            tasks += driver.kill()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def rename(self, id: str) -> None:
        """Change the worker's id; only before `start`."""
        self.id = id
        self._kit = replace(self._kit, worker=id)
        self._worker_row = structs.replace(self._worker_row, id=id)

    # Lease

    @property
    def _renewal_interval(self) -> int:
        """Microseconds between two renewals of the lease."""
        return self._worker.lease * 3 // 10

    def _start_renewal(self) -> None:
        if not self._timing.lease_thread:
            self._background.append(asyncio.create_task(self._renew_on_loop(), name="limpet:lease"))
            return
        loop = asyncio.get_running_loop()
        Thread(target=self._renew_on_thread, args=(loop,), name="limpet-lease", daemon=True).start()

    def _renew_on_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stop_renewing.wait(self._renewal_interval / SECOND):
            try:
                loop.call_soon_threadsafe(self._note_loop_alive)
                if self._kit.clock.ticks() - self._loop_alive_at <= LOOP_STUCK_AFTER:
                    loop.call_soon_threadsafe(self._on_renewal, asyncio.run(self._renew()))
            except Exception as error:  # noqa: BLE001 - also OSError: files or threads may run out for a moment
                if loop.is_closed():
                    return
                self._log_failed_renewal(error)

    def _note_loop_alive(self) -> None:
        """Record that the event loop is alive, whether or not the store can be reached."""
        self._loop_alive_at = self._kit.clock.ticks()

    async def _renew_on_loop(self) -> None:
        while True:
            await self._kit.clock.sleep(self._renewal_interval)
            try:
                self._on_renewal(await self._renew())
            except LimpetError as error:
                self._log_failed_renewal(error)

    def _log_failed_renewal(self, error: Exception) -> None:
        log.warning("worker %s: lease renewal failed: %s", self.id, error)

    async def _renew(self) -> Renewal:
        try:
            return await self.store.renew(self.id, lease=self._worker.lease)
        except NotFound:  # the lease expired, and other workers have claimed its runs
            return await self.store.register(self._worker_row, lease=self._worker.lease)

    def _on_renewal(self, renewal: Renewal) -> None:
        """Compare the runs that the store says this worker holds with those it drives. Runs on the event loop."""
        self._note_renewal(renewal)
        for run, driver in self._drivers.items():
            if renewal.held.get(run) != driver.fence and driver.seq:
                self._spawn(self._check_ownership(run, driver))
        if renewal.held.keys() - self._drivers.keys():
            self._spawn(self._adopt_held_runs(renewal.held))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a short coroutine in the background, and keep a reference to it until it ends."""
        task = asyncio.create_task(work)
        self._side_tasks.add(task)
        task.add_done_callback(self._side_tasks.discard)

    async def _check_ownership(self, run: str, driver: RunDriver) -> None:
        """Stop the driver if its run has another fence in the store.

        The renewal alone is no proof: the run may have been claimed, parked or ended while the reply was in flight.
        """
        with suppress(LimpetError):
            row = await self.store.get(run)
            if self._drivers.get(run) is driver and row.fence != driver.fence:
                driver.lose_lease()

    def _note_renewal(self, renewal: Renewal) -> None:
        self._note_loop_alive()
        self._store_clock.sync(renewal.now)

    # Claims

    async def _claim_loop(self) -> None:
        self._listener.add_callback(self._work_hint.set)
        try:
            while not self._stopping:
                await self._wait_for_work()
                await self._claim_until_full()
        finally:
            self._listener.remove_callback(self._work_hint.set)

    async def _wait_for_work(self) -> None:
        """Wait for `wake`, a change in the store, the next known wake time, or the poll interval."""
        next_wake = min(self._wake_times.values(), default=None)
        poll = min(self._timing.poll, SUSPECT_POLL) if self._suspects else self._timing.poll
        delay = poll if next_wake is None else min(poll, max(next_wake - self._store_clock.now(), 0))
        cancel_timer = self._kit.clock.call_later(delay, self._work_hint.set)
        try:
            await self._work_hint.wait()
        finally:
            cancel_timer()
        self._work_hint.clear()

    async def _claim_until_full(self) -> None:
        """Claim until no run is ready or the worker is full, then idle."""
        try:
            while not self._stopping and len(self._drivers) < self._worker.concurrency:
                if not await self.claim():
                    break
        except ConnectionLost:  # the claim may have succeeded although its reply was lost
            await self._recover_lost_claim()
        except Exception as error:
            is_expected = isinstance(error, LimpetError)
            # A LimpetError explains itself; only unexpected errors need a traceback.
            log.error("worker %s: claim failed: %s", self.id, error, exc_info=not is_expected)  # noqa: TRY400
            await self._kit.clock.sleep(SECOND)
        if self._timing.idle:
            await self._idle()

    async def _idle(self) -> None:
        """Pause between rounds of claims; `wake` ends the pause.

        A claim is a write. While runs are driven here, most changes in the store are their own appends, and claiming
        after each of them would find nothing.
        """
        self._work_now.clear()
        idle = self._timing.idle * (BUSY_IDLE_FACTOR if self._drivers else 1)
        cancel_timer = self._kit.clock.call_later(idle, self._work_now.set)
        try:
            await self._work_now.wait()
        finally:
            cancel_timer()

    async def claim(self) -> int:
        """Claim as many ready runs as fit, start driving them, and return their number."""
        now = self._store_clock.now()
        self._wake_times = {run: wake for run, wake in self._wake_times.items() if wake > now}
        async with self._claim_lock:
            limit = self._worker.concurrency - len(self._drivers)
            claimed = await self._claim(limit) if limit > 0 else ()
            self._has_backlog = len(claimed) >= limit
            for each in claimed:
                self._start_driver(each)
        return len(claimed)

    async def _claim(self, limit: int) -> Sequence[Claimed]:
        """Claim runs; if another worker dropped this one as dead, register again first."""
        self._clear_suspects()
        skip = [agent for agent, (_, until) in self._skipped_agents.items() if until > self._store_clock.now()]
        claim = partial(
            self.store.claim, self.id, limit=limit, concurrency=self._concurrency, skip=skip, cleared=self._cleared
        )
        try:
            return await claim()
        except NotFound:
            self._on_renewal(await self._renew())
            return await claim()

    def _clear_suspects(self) -> None:
        left = {
            run for run, each in self._suspects.items() if self._drivers.get(run) is not each or not each.is_suspect
        }
        for run in left:
            del self._suspects[run]
        self._cleared += len(left)

    async def _adopt_held_runs(self, held: Mapping[str, int]) -> None:
        """Drive runs that the store assigned to this worker in a claim whose reply was lost."""
        async with self._claim_lock:
            for run, fence in held.items():
                if run in self._drivers or self._stopping:
                    continue
                with suppress(LimpetError):
                    row = await self.store.get(run)
                    if row.worker == self.id and row.fence == fence and run not in self._drivers:
                        self._start_driver(Claimed(row, died=False))

    async def _recover_lost_claim(self) -> None:
        """Find out, by renewing the lease, which runs a claim with a lost reply assigned to this worker."""
        try:
            self._on_renewal(await self._renew())
        except LimpetError as error:
            log.warning("worker %s: retrying a claim with a lost reply: %s", self.id, error)
            self._work_hint.set()
            await self._kit.clock.sleep(SECOND)

    def _start_driver(self, claimed: Claimed) -> None:
        row = claimed.row
        self._wake_times.pop(row.id, None)
        agent = self._agents_by_version[row.agent, row.agent_version]
        driver = self._drivers[row.id] = RunDriver(self._kit, claimed, agent)
        self._has_drivers.set()
        if driver.is_suspect:
            self._suspects[row.id] = driver
        task = asyncio.create_task(self._supervise(driver), name=f"limpet:drive:{row.id}")
        self._driver_tasks.add(task)
        task.add_done_callback(self._driver_tasks.discard)

    async def _supervise(self, driver: RunDriver) -> None:  # noqa: C901 - one branch per way a run can leave
        def known_seq() -> int | None:
            return driver.seq if driver.wants_changes else None

        def notify(place: Any) -> None:
            self._spawn(driver.catch_up(place.seq, place.fence))

        subscription = Subscription(driver.run, known_seq, notify)
        self._listener.subscribe(subscription)
        try:
            await driver.drive()
        except (Tampered, DamagedEvent) as error:
            await self._park_for_operator(driver, "unreadable", str(error))
        except NewerVersion as error:
            await self._release_to_newer(driver, error)
        except Exception as error:  # noqa: BLE001 - another worker may succeed
            driver.log.write(logging.ERROR, "unexpected error; releasing the run", error=error)
            await self._release_or_park(driver, error)
        finally:
            self._listener.unsubscribe(subscription)
            driver.stop_flushing()
            if self._drivers.get(driver.run) is driver:
                del self._drivers[driver.run]
            if driver.end_place is not None:
                self._listener.notify(driver.run, driver.end_place)
            if driver.wake_at is not None:
                self._wake_times[driver.run] = driver.wake_at
            if self._may_ready_others(driver):
                self.wake()
                self._listener.wake()

    def _may_ready_others(self, driver: RunDriver) -> bool:
        """Return whether another run may be claimable because this one has left: one that it freed a place for, its
        caller, or the run itself. A run that has ended and that no other needs leaves nothing to do.
        """
        is_limited = self._has_backlog or driver.agent in self._concurrency or self._stopping
        return is_limited or driver.end_place is None or driver.matters_to_others

    async def _sweep_loop(self) -> None:
        """Flush events of all runs that have waited for long: one timer for the worker, none for each step."""
        while True:
            await self._has_drivers.wait()
            await self._kit.clock.sleep(self._timing.sweep)
            for driver in self._drivers.values():
                driver.flush_overdue()
            if not self._drivers:
                self._has_drivers.clear()

    async def _park_for_operator(self, driver: RunDriver, key: str, why: str) -> None:
        """Park a run for an operator, because every other worker would fail in the same way."""
        driver.log.error("parked for an operator (%s): %s", key, why)
        bodies = (
            b.RiskFlagged(flag=key, detail=why[:2000]),
            b.RunWaiting(waits=(Wait(what="operator", key=key),)),
        )
        with suppress(LimpetError):
            row = await self.store.get(driver.run)
            codec, now = self.store.codec, self._store_clock.now()
            sealed = seal_all(row.head, row.id, bodies, time=now, fence=driver.fence, actor=self.id, codec=codec)
            await self.store.append(Extend(run=row.id, after=row.head, fence=driver.fence, events=sealed))

    async def _release_or_park(self, driver: RunDriver, error: Exception) -> None:
        """Release a run that raised an unexpected error, with a growing pause; after too many failures, park it."""
        _cancel_code(driver)
        why = f"{type(error).__name__}: {error}"[:500]
        with suppress(LimpetError):  # if the store is unreachable, a later renewal returns the run and it is adopted
            fruitless = await self._count_failures(driver.run) + 1
            if fruitless >= MAX_FRUITLESS:
                await self._park_for_operator(driver, "stuck", f"{fruitless} attempts to drive the run failed: {why}")
            else:
                await self._release(driver, why, pause_before_retry(fruitless), fruitless=True)

    async def _count_failures(self, run: str) -> int:
        """Return how often workers failed to drive a run since it last settled a step or was resumed."""
        count = 0
        async for event in self.store.log(run):
            body = self.store.decode(event)
            if isinstance(body, b.RunReleased):
                count += body.fruitless
            elif isinstance(body, b.ResumeRequested) or project(event, body).settled:
                count = 0
        return count

    async def _release_to_newer(self, driver: RunDriver, error: NewerVersion) -> None:
        """Release a run that a newer worker has written to, and claim no runs of its agent for a while.

        First check that the log matches its hashes: otherwise it was tampered with, and is not newer.
        """
        _cancel_code(driver)
        try:
            await verify_run(self.store, driver.run)
        except Tampered as tampered:
            await self._park_for_operator(driver, "unreadable", str(tampered))
            return
        except LimpetError as failed:
            driver.log.warning("verification failed, retrying later: %s", failed)
            return  # a later renewal returns the run, and it is adopted
        met, until = self._skipped_agents.get(driver.agent, (0, 0))
        if until <= self._store_clock.now():
            pause = pause_before_retry(met + 1)
            self._skipped_agents[driver.agent] = (met + 1, self._store_clock.now() + pause)
            log.error("worker %s: claiming no runs of %s for %d s: %s", self.id, driver.agent, pause // SECOND, error)
        with suppress(LimpetError):
            await self._release(driver, f"worker too old: {error}"[:500], SECOND)

    async def _release(self, driver: RunDriver, why: str, pause: int, *, fruitless: bool = False) -> None:
        driver.wake_at = self._store_clock.now() + pause
        await self.store.release(
            driver.run, fence=driver.fence, worker=self.id, reason=why, retry_at=driver.wake_at, fruitless=fruitless
        )


def _cancel_code(driver: RunDriver) -> None:
    for task in driver.kill():
        task.cancel()


def _index_by_version(agents: Sequence[Agent[Any, Any]]) -> dict[tuple[str, str], Agent[Any, Any]]:
    found: dict[tuple[str, str], Agent[Any, Any]] = {}
    for agent in agents:
        if (agent.name, agent.version) in found and found[agent.name, agent.version] is not agent:
            raise DefinitionError(what=agent.name, reason=f"two agents have this name and version {agent.version!r}")
        found[agent.name, agent.version] = agent
    for agent in agents:
        for version in agent.rules.accepts:
            found.setdefault((agent.name, version), agent)
    return found


def _versions_by_agent(agents: Sequence[Agent[Any, Any]]) -> dict[str, tuple[str, ...]]:
    served: dict[str, tuple[str, ...]] = {}
    for name, version in _index_by_version(agents):
        served[name] = (*served.get(name, ()), version)
    return served
