"""The runs that one worker drives: it registers with a lease, renews it, and supervises a driver for each run.

A lease belongs to the worker, a fence to each run it claims. The worker renews its lease at 30% of its length. If it
dies, another worker claims its runs under a higher fence, and the old worker can no longer append to them.

How a run comes here is up to its engine: `WorkerLoop` claims whatever is ready, and other engines call `drive`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from threading import Event as Flag
from threading import Thread
from typing import Any, Literal, TypeVar

from msgspec import Struct, structs
from msgspec.structs import replace

from limpet.clock import SECOND
from limpet.engine.definitions.agents import Agent
from limpet.engine.execution.kit import Kit
from limpet.engine.execution.user_code import wait_within
from limpet.engine.worker.change_listener import ChangeListener, Subscription
from limpet.engine.worker.collector import RelaxedCollector
from limpet.engine.worker.duties import Duty, DutyLoop
from limpet.engine.worker.run_driver import RunDriver
from limpet.engine.worker.worker_settings import StoreClock, Timing, Worker
from limpet.errors import (
    ConnectionLost,
    DamagedEvent,
    DefinitionError,
    LimpetError,
    NewerVersion,
    NotFound,
    StaleServer,
    StoreUnavailable,
    Tampered,
)
from limpet.events import Wait, seal_all
from limpet.events import bodies as b
from limpet.journal import verify_run
from limpet.policy.quarantine import MAX_FRUITLESS, pause_before_retry
from limpet.state import ENDED
from limpet.stores import Claimed, Extend, NotClaimed, Renewal, Store, WorkerRow
from limpet.stores.projection import project

__all__ = ["Drive", "NotNow", "RunHost"]

log = logging.getLogger("limpet")
T = TypeVar("T")

# A worker whose event loop is blocked for this long stops renewing its lease, so that other workers claim its runs.
LOOP_STUCK_AFTER = 60 * SECOND
# Before a run is asked for again that has no slot here, or that a worker is about to release.
ASK_AGAIN = SECOND
STOPPING = SECOND // 2
# The same, if a run is due by the local estimate of the store's clock, but not yet by that clock.
AHEAD = SECOND // 100


class Drive(Struct, frozen=True, kw_only=True):
    """The result of a drive: the run has ended, is parked, is driven by another engine now, or was deleted."""

    outcome: Literal["ended", "parked", "moved", "gone"]
    status: str = ""
    """Status of the run."""
    seq: int = 0
    """Sequence of the last event that was taken into account. A later one may make another drive necessary."""
    delay: int | None = None
    """Microseconds until a parked run is due; None if only a command or another run makes it continue."""


class NotNow(Struct, frozen=True, kw_only=True):
    """A run that cannot be driven here now."""

    why: str
    delay: int
    """Microseconds after which to ask again."""


class RunHost:
    """The runs that one worker drives, each in a task, under one lease."""

    def __init__(
        self, kit: Kit, agents: Sequence[Agent[Any, Any]], worker: Worker, store_clock: StoreClock, timing: Timing
    ) -> None:
        self._kit, self._worker, self._store_clock, self._timing = kit, worker, store_clock, timing
        self.id = kit.worker
        self._agents_by_version = _index_by_version(agents)
        limits = ((each.name, each.rules.concurrency) for each in agents)
        self.concurrency = {name: limit for name, limit in limits if limit is not None}
        """Maximum number of concurrent runs over all workers, of the agents that have one."""
        self._worker_row = WorkerRow(id=self.id, agents=_versions_by_agent(agents), engine=kit.engine)
        self._drivers: dict[str, RunDriver] = {}
        self._driver_tasks: dict[RunDriver, asyncio.Task[None]] = {}
        self._side_tasks: set[asyncio.Task[object]] = set()
        """Short background tasks; asyncio itself keeps only weak references."""
        self.claiming = asyncio.Lock()
        """Held while runs are claimed, so that none is taken for the result of an earlier claim with a lost reply."""
        self._asked: set[str] = set()
        """Runs that are being claimed by their ids, for the same reason."""
        self.on_left: Callable[[RunDriver], object] = lambda _: None
        """Called when a run has left this worker."""
        self._suspects: dict[str, RunDriver] = {}
        self._cleared = 0
        """Number of suspects that settled a step here, or left, without killing this worker."""
        self._skipped_agents: dict[str, tuple[int, int]] = {}
        """Agents whose logs a newer worker writes: how often that was noticed, and until when to claim none of their
        runs.
        """
        self._has_drivers = asyncio.Event()
        """Set while the worker may drive runs: the sweep then looks at them."""
        self.is_stopping = False
        """Whether the worker takes no runs any more."""
        self._loop_alive_at = kit.clock.ticks()
        """When the event loop last ran a callback, in monotonic microseconds."""
        self._stop_renewing = Flag()
        self._background: list[asyncio.Task[None]] = []
        self._collector = ExitStack()
        self._duty_tasks: dict[DutyLoop, asyncio.Task[None]] = {}

    @property
    def kit(self) -> Kit:
        """Dependencies and settings of the drivers."""
        return self._kit

    @property
    def store(self) -> Store:
        """The store of the runs."""
        return self._kit.store

    @property
    def is_busy(self) -> bool:
        """Whether the worker drives at least one run."""
        return bool(self._drivers)

    @property
    def size(self) -> int:
        """How many runs the worker may drive."""
        return self._worker.concurrency

    @property
    def lease(self) -> int:
        """How long the worker counts as alive without renewing its lease, in microseconds."""
        return self._worker.lease

    @property
    def grace(self) -> int:
        """How long running effects may take when the worker stops, in microseconds."""
        return self._worker.grace

    @property
    def room(self) -> int:
        """How many more runs the worker may drive."""
        return self._worker.concurrency - len(self._drivers)

    @property
    def has_suspects(self) -> bool:
        """Whether it drives runs that may have killed their workers."""
        return bool(self._suspects)

    @property
    def serving(self) -> tuple[tuple[str, str], ...]:
        """The agents that this worker serves, each with a version."""
        return tuple(self._agents_by_version)

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

    async def start(self, listener: ChangeListener) -> None:
        """Register, and start to renew the lease."""
        self._listener = listener
        if self._worker.relaxed_gc:
            self._collector.enter_context(RelaxedCollector())
        self._note_renewal(await self.store.register(self._worker_row, lease=self._worker.lease))
        self._start_renewal()
        self._background.append(asyncio.create_task(self._sweep_loop(), name="limpet:sweep"))

    def run_in_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run a loop until the worker stops."""
        self._background.append(asyncio.create_task(work, name=name))

    def start_duty(self, duty: Duty) -> None:
        """Do a duty for the whole store, whenever it is due and no other worker does it."""
        loop = DutyLoop(duty, self.store, self._kit.clock, self.id, self._worker.lease)
        self._duty_tasks[loop] = asyncio.create_task(loop.run(), name=f"limpet:duty:{duty.name}")

    async def stop(self) -> None:
        """Let running effects finish within the grace period, release every run, and retire."""
        await self.drain()
        for loop in self._duty_tasks:
            with suppress(LimpetError):  # its lease expires
                await loop.release()
        await self._retire()
        self._collector.close()

    async def drain(self) -> None:
        """Take no runs any more, and wait for running effects within the grace period."""
        self.is_stopping = True
        for task in (*self._background, *self._duty_tasks.values()):
            task.cancel()
        for driver in list(self._drivers.values()):
            driver.drain()
        tasks = {*self._driver_tasks.values(), *self._duty_tasks.values()}
        await wait_within(self._kit.clock, tasks, self._worker.grace)

    async def _retire(self) -> None:
        unfinished = [task for task in self._driver_tasks.values() if not task.done()]
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
        self.is_stopping = True
        self._stop_renewing.set()
        tasks = [*self._background, *self._duty_tasks.values(), *self._driver_tasks.values()]
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

    # Drives

    async def drive(self, run: str) -> Drive | NotNow:
        """Claim a run by its id, drive it until it parks or ends, and return which.

        If this worker drives the run already, this waits for that drive. Cancelling this does not stop the drive.
        """
        while True:
            driver = self._drivers.get(run)
            if driver is None:
                found = await self._ask_for(run)
                if isinstance(found, NotNow) or (isinstance(found, Drive) and not self._is_due(found)):
                    return found
                if isinstance(found, Drive):
                    continue
                driver = found
            await asyncio.wait({self._driver_tasks[driver]})
            reply = await self._reply(run)
            if isinstance(reply, NotNow) or not self._is_due(reply):
                return reply

    def _is_due(self, drive: Drive) -> bool:
        """Return whether a parked run can continue already, because something has come in the meantime."""
        return drive.outcome == "parked" and drive.delay == 0 and not self.is_stopping

    async def _ask_for(self, run: str) -> RunDriver | Drive | NotNow:
        """Claim a run and start to drive it; or return why not."""
        if self.is_stopping:
            return NotNow(why="the worker stops", delay=STOPPING)
        if self.room - len(self._asked) <= 0:
            return NotNow(why="the worker is full", delay=ASK_AGAIN)
        if run in self._asked:
            return NotNow(why="the worker is claiming it", delay=AHEAD)
        self._asked.add(run)
        try:
            found = await self._claim_run(run)
        except NotFound:
            return Drive(outcome="gone")
        except ConnectionLost:
            self.spawn(self.recover_lost_claim())
            raise
        finally:
            self._asked.discard(run)
        if isinstance(found, Claimed):
            return self.take(found)
        return await self._answer(run, found)

    async def _answer(self, run: str, found: NotClaimed) -> Drive | NotNow:
        """Return why a run was not claimed."""
        if found.why not in ("ended", "moved", "waiting", "not_before"):
            return self._refused(found)
        reply = await self._reply(run)
        if found.why == "not_before" and isinstance(reply, Drive) and self._is_due(reply):
            return NotNow(why="not_before", delay=AHEAD)
        return reply

    async def _claim_run(self, run: str) -> Claimed | NotClaimed:
        """Claim a run, unless its agent is skipped now."""
        if self.skipped and (row := await self.store.get(run)).agent in self.skipped:
            return NotClaimed("not_served", self._skipped_agents[row.agent][1])
        claim = partial(self.store.claim_run, self.id, run, concurrency=self.concurrency, cleared=self.cleared)
        return await self.registered(claim)

    def _refused(self, found: NotClaimed) -> NotNow:
        wait = ASK_AGAIN if found.until is None else max(found.until - self._store_clock.now(), 0) + SECOND // 100
        return NotNow(why=found.why, delay=min(wait, self._worker.lease) if found.why == "held" else wait)

    async def _reply(self, run: str) -> Drive | NotNow:
        """Return how a run stands, for its engine."""
        try:
            row = await self.store.get(run)
        except NotFound:
            return Drive(outcome="gone")
        if row.engine != self._kit.engine:
            return Drive(outcome="moved", status=row.status, seq=row.seq)
        if row.status in ENDED:
            return Drive(outcome="ended", status=row.status, seq=row.seq)
        if row.worker is not None:
            return NotNow(why="held", delay=ASK_AGAIN)
        delay = None if row.ready_at is None else max(row.ready_at - self._store_clock.now(), 0)
        if delay == 0 and self.is_stopping:
            return NotNow(why="the worker stops", delay=STOPPING)
        return Drive(outcome="parked", status=row.status, seq=row.seq, delay=delay)

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
                self.spawn(self._check_ownership(run, driver))
        if renewal.held.keys() - self._drivers.keys():
            self.spawn(self._adopt_held_runs(renewal.held))

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
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

    # Runs

    @property
    def skipped(self) -> list[str]:
        """Agents of which to claim no runs now."""
        now = self._store_clock.now()
        return [agent for agent, (_, until) in self._skipped_agents.items() if until > now]

    @property
    def cleared(self) -> int:
        """Number of suspects that made progress here; this worker may hold as many more."""
        left = {
            run for run, each in self._suspects.items() if self._drivers.get(run) is not each or not each.is_suspect
        }
        for run in left:
            del self._suspects[run]
        self._cleared += len(left)
        return self._cleared

    async def registered(self, claim: Callable[[], Awaitable[T]]) -> T:
        """Claim; if another worker dropped this one as dead, register again first."""
        try:
            return await claim()
        except NotFound:
            await self.renew_now()
            return await claim()

    async def renew_now(self) -> None:
        """Renew the lease, or register again, and compare the runs."""
        self._on_renewal(await self._renew())

    async def _adopt_held_runs(self, held: Mapping[str, int]) -> None:
        """Drive runs that the store assigned to this worker in a claim whose reply was lost."""
        async with self.claiming:
            for run, fence in held.items():
                if run in self._drivers or run in self._asked or self.is_stopping:
                    continue
                with suppress(LimpetError):
                    row = await self.store.get(run)
                    if row.worker == self.id and row.fence == fence and run not in (*self._drivers, *self._asked):
                        self.take(Claimed(row, died=False))

    async def recover_lost_claim(self) -> bool:
        """Find out, by renewing the lease, which runs a claim with a lost reply assigned to this worker.

        Returns whether that was possible.
        """
        try:
            await self.renew_now()
        except LimpetError as error:
            log.warning("worker %s: retrying a claim with a lost reply: %s", self.id, error)
            await self._kit.clock.sleep(SECOND)
            return False
        return True

    def take(self, claimed: Claimed) -> RunDriver:
        """Start to drive a claimed run."""
        row = claimed.row
        agent = self._agents_by_version[row.agent, row.agent_version]
        driver = self._drivers[row.id] = RunDriver(self._kit, claimed, agent)
        self._has_drivers.set()
        if driver.is_suspect:
            self._suspects[row.id] = driver
        task = asyncio.create_task(self._supervise(driver), name=f"limpet:drive:{row.id}")
        if not task.done():  # An eager task may be.
            self._driver_tasks[driver] = task
        return driver

    async def _supervise(self, driver: RunDriver) -> None:
        def notify(place: Any) -> None:
            self.spawn(driver.catch_up(place.seq, place.fence))

        subscription = Subscription(driver.run, driver.known_seq, notify)
        self._listener.subscribe(subscription)
        try:
            await driver.drive()
        except (Tampered, DamagedEvent) as error:
            await self._park_for_operator(driver, "unreadable", str(error))
        except NewerVersion as error:
            await self._release_to_newer(driver, error)
        except (StoreUnavailable, StaleServer) as error:
            driver.log.error("released after an error: %s", error)  # noqa: TRY400 - no mistake of the code
            await self._release_or_park(driver, error)
        except Exception as error:  # noqa: BLE001 - another worker may succeed
            driver.log.write(logging.ERROR, "unexpected error; releasing the run", error=error)
            await self._release_or_park(driver, error)
        finally:
            self._listener.unsubscribe(subscription)
            driver.stop_flushing()
            if self._drivers.get(driver.run) is driver:
                del self._drivers[driver.run]
            self._driver_tasks.pop(driver, None)
            if driver.end_place is not None:
                self._listener.notify(driver.run, driver.end_place)
            self.on_left(driver)

    async def _sweep_loop(self) -> None:
        """Flush events of all runs that have waited for long: one timer for the worker, none for each step."""
        while True:
            await self._has_drivers.wait()
            last = self._kit.clock.ticks()
            await self._kit.clock.sleep(self._timing.sweep)
            now = self._kit.clock.ticks()
            for driver in self._drivers.values():
                driver.flush_overdue(last, now)
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
        """Release a run that could not be driven here, with a growing pause; after too many failures, park it."""
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
