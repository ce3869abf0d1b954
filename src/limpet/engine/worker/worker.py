"""A worker on duty: it claims runs by its lease, drives them, and gives back what it has when it goes."""

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Event as Flag
from threading import Thread
from typing import Any

from msgspec import structs

from limpet.arguments import defining
from limpet.clock import SECOND, Clock, Duration, microseconds
from limpet.engine.definitions.agents import Agent
from limpet.engine.execution.execution import Kit
from limpet.engine.execution.user_code import wait_within
from limpet.engine.worker.change_listener import ChangeListener, Subscription
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

# How much longer a worker rests between empty claims while it drives something.
BUSY_RESTS = 10
# How often it looks whether a suspect has got on, and made room for others.
LOOK_AT_SUSPECTS = SECOND // 20
# Renewal stops when the event loop has not turned for so long: its runs are better off elsewhere.
STUCK = 60 * SECOND


@defining
class Worker:
    """How a worker works: number of concurrent runs, length of its lease, time to finish when it stops, parole."""

    def __init__(
        self,
        *,
        concurrency: int = 100,
        lease: Duration = "10s",
        grace: Duration = "10s",
        parole: Sequence[Duration] = ("1m", "10m", "1h"),
    ) -> None:
        if concurrency < 1 or microseconds(lease) < 1000:
            raise DefinitionError(what="A worker", reason="it drives at least one run, for at least a millisecond")
        self.concurrency, self.lease, self.grace = concurrency, microseconds(lease), microseconds(grace)
        self.parole = tuple(microseconds(each) for each in parole)
        """How long a run that killed its workers rests before each further try; then an operator decides."""


class Timing:
    """The pauses of a worker, in microseconds."""

    def __init__(self, *, look: int = SECOND, rest: int = SECOND // 100, threads: bool = True) -> None:
        self.poll = look
        """How often it looks for runs whose time has come, and for dead workers."""
        self.idle = rest
        """How long it rests after it found nothing."""
        self.lease_thread = threads
        """Whether the lease is renewed on a thread of its own."""


class StoreClock:
    """An estimate of the store's clock: as it was told last, and what has passed since, whatever is done to clocks."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.now() - clock.ticks()

    def now(self) -> int:
        """The store's clock, about."""
        return self._clock.ticks() + self._offset

    def sync(self, now: int) -> None:
        """The store said so."""
        self._offset = now - self._clock.ticks()


class WorkerLoop:
    """One worker of a store, while it works."""

    def __init__(
        self, kit: Kit, agents: Sequence[Agent[Any, Any]], worker: Worker, time: StoreClock, pace: Timing
    ) -> None:
        self._kit, self._worker, self._time, self._pace = kit, worker, time, pace
        self.id = kit.worker
        self._agents = _by_version(agents)
        self._row = WorkerRow(id=self.id, agents=_served(agents))
        self._drives: dict[str, RunDriver] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._small: set[asyncio.Task[None]] = set()
        self._claiming = asyncio.Lock()
        self._wakes: dict[str, int] = {}
        self._suspects: dict[str, RunDriver] = {}
        self._cleared = 0
        """How many suspects have settled something here, or left, and did not kill this worker."""
        self._left_alone: dict[str, tuple[int, int]] = {}
        """Agents whose logs a newer worker writes: how often such a log was met, and until when none is claimed."""
        self._rung = asyncio.Event()
        self._urgent = asyncio.Event()
        self._stopping = False
        self._ticked = kit.clock.ticks()
        self._stop_renewing = Flag()
        self._background: list[asyncio.Task[None]] = []

    @property
    def store(self) -> Store:
        """Where its runs are."""
        return self._kit.store

    @property
    def is_busy(self) -> bool:
        """Whether it drives anything."""
        return bool(self._drives)

    def is_driving(self, run: str) -> bool:
        """Whether it drives this run now; whoever waits for it hears when it has left."""
        return run in self._drives

    @property
    def waiting(self) -> "list[tuple[str, asyncio.Task[Any]]]":
        """Runs that only wait at this moment, each with the task of its code."""
        found = [(run, drive.waiting) for run, drive in self._drives.items()]
        return [(run, task) for run, task in found if task is not None]

    async def start(self, ear: ChangeListener) -> int:
        """Register, and take over at once what an earlier process of this machine left; how many runs."""
        self._ear = ear
        self._take_in(await self.store.register(self._row, lease=self._worker.lease))
        self._renewing()
        found = await self.claim()
        self._background.append(asyncio.create_task(self._work(), name="limpet:worker"))
        return found

    def wake(self) -> None:
        """There is work."""
        self._rung.set()
        self._urgent.set()

    async def stop(self) -> None:
        """Claim nothing any more, let effects under way finish within the grace, give back everything, and go."""
        self._stopping = True
        for task in self._background:
            task.cancel()
        for drive in list(self._drives.values()):
            drive.drain()
        await wait_within(self._kit.clock, set(self._tasks), self._worker.grace)
        await self._leave()

    async def _leave(self) -> None:
        left = [task for task in self._tasks if not task.done()]
        if left:
            log.warning("%d runs were not finished within the grace, and are given back as they are", len(left))
            code = [task for drive in self._drives.values() for task in drive.kill()]
            for task in (*left, *code):
                task.cancel()
            await wait_within(self._kit.clock, {*left, *code}, SECOND)
        self._stop_renewing.set()
        with suppress(LimpetError):
            await self.store.retire(self.id)

    async def kill(self) -> None:
        """End as a killed process does: nothing more is written, nothing is given back."""
        self._stopping = True
        self._stop_renewing.set()
        ending = [*self._background, *self._tasks]
        for drive in self._drives.values():
            ending += drive.kill()
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)

    def rename(self, id: str) -> None:
        """Work under another name, chosen before it begins."""
        self.id = id
        self._kit = replace(self._kit, worker=id)
        self._row = structs.replace(self._row, id=id)

    # The lease

    def _renewing(self) -> None:
        if not self._pace.lease_thread:
            self._background.append(asyncio.create_task(self._renew_here(), name="limpet:lease"))
            return
        loop = asyncio.get_running_loop()
        Thread(target=self._renew_on_thread, args=(loop,), name="limpet-lease", daemon=True).start()

    def _renew_on_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stop_renewing.wait(self._worker.lease * 0.3 / SECOND):
            try:
                loop.call_soon_threadsafe(self._tick)
                if self._kit.clock.ticks() - self._ticked <= STUCK:
                    loop.call_soon_threadsafe(self._renewed, asyncio.run(self._renew()))
            except Exception as error:  # noqa: BLE001 - a machine may lack files or threads for a moment
                if loop.is_closed():
                    return
                self._not_renewed(error)

    def _tick(self) -> None:
        """The event loop turns, whether or not the store can be reached."""
        self._ticked = self._kit.clock.ticks()

    async def _renew_here(self) -> None:
        while True:
            await self._kit.clock.sleep(self._worker.lease * 3 // 10)
            try:
                self._renewed(await self._renew())
            except LimpetError as error:
                self._not_renewed(error)

    def _not_renewed(self, error: Exception) -> None:
        log.warning("the lease of worker %s was not renewed: %s", self.id, error)

    async def _renew(self) -> Renewal:
        try:
            return await self.store.renew(self.id, lease=self._worker.lease)
        except NotFound:  # it was given up, and what it had is somebody else's
            return await self.store.register(self._row, lease=self._worker.lease)

    def _renewed(self, renewal: Renewal) -> None:
        """Runs that are not ours any more are stopped; our event loop is alive."""
        self._take_in(renewal)
        for run, drive in self._drives.items():
            if renewal.held.get(run) != drive.fence and drive.seq:
                self._spawn(self._check(run, drive))
        if renewal.held.keys() - self._drives.keys():
            self._spawn(self._adopt(renewal.held))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Something small beside everything else."""
        task = asyncio.create_task(work)
        self._small.add(task)
        task.add_done_callback(self._small.discard)

    async def _check(self, run: str, drive: RunDriver) -> None:
        """A renewal may have been on its way while the run was claimed, parked or ended."""
        with suppress(LimpetError):
            row = await self.store.get(run)
            if self._drives.get(run) is drive and row.fence != drive.fence:
                drive.lose_lease()

    def _take_in(self, renewal: Renewal) -> None:
        self._tick()
        self._time.sync(renewal.now)

    # Runs

    async def _work(self) -> None:
        self._ear.add_callback(self._rung.set)
        try:
            while not self._stopping:
                await self._wait_for_work()
                await self._claim_all()
        finally:
            self._ear.remove_callback(self._rung.set)

    async def _wait_for_work(self) -> None:
        """Until somebody rings, or a time that is known has come."""
        soonest = min(self._wakes.values(), default=None)
        look = min(self._pace.poll, LOOK_AT_SUSPECTS) if self._suspects else self._pace.poll
        pause = look if soonest is None else min(look, max(soonest - self._time.now(), 0))
        take_back = self._kit.clock.call_later(pause, self._rung.set)
        try:
            await self._rung.wait()
        finally:
            take_back()
        self._rung.clear()

    async def _claim_all(self) -> None:
        """Claim until there is nothing more, or no room."""
        try:
            while not self._stopping and len(self._drives) < self._worker.concurrency:
                if not await self.claim():
                    break
        except ConnectionLost:  # what the claim gave us is ours all the same
            await self._recover()
        except Exception as error:
            is_ours = isinstance(error, LimpetError)
            log.error("worker %s cannot claim: %s", self.id, error, exc_info=not is_ours)  # noqa: TRY400 - ours say it all
            await self._kit.clock.sleep(SECOND)
        if self._pace.idle:
            await self._rest()

    async def _rest(self) -> None:
        """Claims cost, and most of what is written while runs are driven here is their own; a start rings at once."""
        self._urgent.clear()
        rest = self._pace.idle * (BUSY_RESTS if self._drives else 1)
        take_back = self._kit.clock.call_later(rest, self._urgent.set)
        try:
            await self._urgent.wait()
        finally:
            take_back()

    async def claim(self) -> int:
        """Take what can be taken now, and begin to drive it; how many runs."""
        now = self._time.now()
        self._wakes = {run: wake for run, wake in self._wakes.items() if wake > now}
        async with self._claiming:
            limit = self._worker.concurrency - len(self._drives)
            claimed = await self._claim(limit) if limit > 0 else ()
            for each in claimed:
                self._drive(each)
        return len(claimed)

    async def _claim(self, limit: int) -> Sequence[Claimed]:
        """Claim runs; register again first if another worker took this one for dead."""
        self._clear_suspects()
        skip = [agent for agent, (_, until) in self._left_alone.items() if until > self._time.now()]
        claim = partial(self.store.claim, self.id, limit=limit, skip=skip, cleared=self._cleared)
        try:
            return await claim()
        except NotFound:
            self._renewed(await self._renew())
            return await claim()

    def _clear_suspects(self) -> None:
        left = {run for run, each in self._suspects.items() if self._drives.get(run) is not each or not each.is_suspect}
        for run in left:
            del self._suspects[run]
        self._cleared += len(left)

    async def _adopt(self, held: Mapping[str, int]) -> None:
        """Drive runs that were claimed for us though the reply was lost."""
        async with self._claiming:
            for run, fence in held.items():
                if run in self._drives or self._stopping:
                    continue
                with suppress(LimpetError):
                    row = await self.store.get(run)
                    if row.worker == self.id and row.fence == fence and run not in self._drives:
                        self._drive(Claimed(row, died=False))

    async def _recover(self) -> None:
        """The reply to a claim was lost: what it gave us is ours all the same."""
        try:
            self._renewed(await self._renew())
        except LimpetError as error:
            log.warning("worker %s will look again for its runs: %s", self.id, error)
            self._rung.set()
            await self._kit.clock.sleep(SECOND)

    def _drive(self, claimed: Claimed) -> None:
        row = claimed.row
        self._wakes.pop(row.id, None)
        agent = self._agents[row.agent, row.agent_version]
        drive = self._drives[row.id] = RunDriver(self._kit, claimed, agent)
        if drive.is_suspect:
            self._suspects[row.id] = drive
        task = asyncio.create_task(self._see_through(drive), name=f"limpet:drive:{row.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _see_through(self, drive: RunDriver) -> None:  # noqa: C901 - one way out after the other
        def known() -> int | None:
            return drive.seq if drive.wants_changes else None

        def tell(place: Any) -> None:
            self._spawn(drive.catch_up(place.seq, place.fence))

        interest = Subscription(drive.run, known, tell)
        self._ear.subscribe(interest)
        try:
            await drive.drive()
        except (Tampered, DamagedEvent) as error:
            await self._set_aside(drive, "unreadable", str(error))
        except NewerVersion as error:
            await self._leave_to_newer(drive, error)
        except Exception as error:
            log.exception("run %s cannot be driven here", drive.run)
            await self._try_later(drive, error)
        finally:
            self._ear.unsubscribe(interest)
            if self._drives.get(drive.run) is drive:
                del self._drives[drive.run]
            if drive.end_place is not None:
                self._ear.notify(drive.run, drive.end_place)
            if drive.wake_at is not None:
                self._wakes[drive.run] = drive.wake_at
            self.wake()
            self._ear.wake()

    async def _set_aside(self, drive: RunDriver, key: str, why: str) -> None:
        """Park a run that the next worker could not drive either."""
        log.error("run %s waits for an operator: %s", drive.run, why)
        bodies = (
            b.RiskFlagged(flag=key, detail=why[:2000]),
            b.RunWaiting(waits=(Wait(what="operator", key=key),)),
        )
        with suppress(LimpetError):
            row = await self.store.get(drive.run)
            codec, now = self.store.codec, self._time.now()
            sealed = seal_all(row.head, row.id, bodies, time=now, fence=drive.fence, actor=self.id, codec=codec)
            await self.store.append(Extend(run=row.id, after=row.head, fence=drive.fence, events=sealed))

    async def _try_later(self, drive: RunDriver, error: Exception) -> None:
        """Give back a run that could not be driven, for ever longer; after too many times, park it."""
        _cut(drive)
        why = f"{type(error).__name__}: {error}"[:500]
        with suppress(LimpetError):  # a store that is away: the run is adopted again when it is there
            fruitless = await self._fruitless(drive.run) + 1
            if fruitless >= MAX_FRUITLESS:
                await self._set_aside(drive, "stuck", f"{fruitless} workers could not drive it: {why}")
            else:
                await self._give_back(drive, why, pause_before_retry(fruitless), fruitless=True)

    async def _fruitless(self, run: str) -> int:
        """How often workers could not drive a run since it settled anything."""
        count = 0
        async for event in self.store.log(run):
            body = self.store.decode(event)
            if isinstance(body, b.RunReleased):
                count += body.fruitless
            elif isinstance(body, b.ResumeRequested) or project(event, body).settled:
                count = 0
        return count

    async def _leave_to_newer(self, drive: RunDriver, error: NewerVersion) -> None:
        """Give back a run that a newer worker has written to, and claim no run of its agent for a while.

        A log that does not fit its own hashes is not newer: it was tampered with.
        """
        _cut(drive)
        try:
            await verify_run(self.store, drive.run)
        except Tampered as tampered:
            await self._set_aside(drive, "unreadable", str(tampered))
            return
        except LimpetError as failed:
            log.warning("run %s will be looked at again: %s", drive.run, failed)
            return  # it is adopted again when the store can be reached
        met, until = self._left_alone.get(drive.agent, (0, 0))
        if until <= self._time.now():
            pause = pause_before_retry(met + 1)
            self._left_alone[drive.agent] = (met + 1, self._time.now() + pause)
            log.error("worker %s claims no run of %s for %d s: %s", self.id, drive.agent, pause // SECOND, error)
        with suppress(LimpetError):
            await self._give_back(drive, f"its worker is too old: {error}"[:500], SECOND)

    async def _give_back(self, drive: RunDriver, why: str, pause: int, *, fruitless: bool = False) -> None:
        drive.wake_at = self._time.now() + pause
        await self.store.release(
            drive.run, fence=drive.fence, worker=self.id, reason=why, retry_at=drive.wake_at, fruitless=fruitless
        )


def _cut(drive: RunDriver) -> None:
    for task in drive.kill():
        task.cancel()


def _by_version(agents: Sequence[Agent[Any, Any]]) -> dict[tuple[str, str], Agent[Any, Any]]:
    found: dict[tuple[str, str], Agent[Any, Any]] = {}
    for agent in agents:
        if (agent.name, agent.version) in found and found[agent.name, agent.version] is not agent:
            raise DefinitionError(what=agent.name, reason=f"two agents have this name and version {agent.version!r}")
        found[agent.name, agent.version] = agent
    for agent in agents:
        for version in agent.rules.accepts:
            found.setdefault((agent.name, version), agent)
    return found


def _served(agents: Sequence[Agent[Any, Any]]) -> dict[str, tuple[str, ...]]:
    served: dict[str, tuple[str, ...]] = {}
    for name, version in _by_version(agents):
        served[name] = (*served.get(name, ()), version)
    return served
