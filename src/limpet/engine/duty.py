"""A worker on duty: it claims runs by its lease, drives them, and gives back what it has when it goes."""

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Event as Flag
from threading import Thread
from typing import Any

from msgspec import structs

from limpet.clock import SECOND, Clock, Duration, microseconds
from limpet.engine.agents import Agent
from limpet.engine.drive import Drive
from limpet.engine.ear import Ear, Interest
from limpet.engine.execution import Kit
from limpet.engine.functions import wait_within
from limpet.errors import ConnectionLost, DefinitionError, LimpetError, NotFound, Tampered, UnknownEvent
from limpet.events import Wait, seal_all
from limpet.events import bodies as b
from limpet.stores import Claimed, Extend, Renewal, Store, WorkerRow

__all__ = ["Duty", "Pace", "Worker"]

log = logging.getLogger("limpet")

# How much longer a worker rests between empty claims while it drives something.
BUSY_RESTS = 10
# Renewal stops when the event loop has not turned for so long: its runs are better off elsewhere.
STUCK = 60 * SECOND


class Worker:
    """How a worker works: how many runs at once, how long its lease is, how long it waits when it goes."""

    def __init__(self, *, concurrency: int = 100, lease: Duration = "10s", grace: Duration = "10s") -> None:
        if concurrency < 1 or microseconds(lease) < 1000:
            raise DefinitionError(what="A worker", reason="it drives at least one run, for at least a millisecond")
        self.concurrency, self.lease, self.grace = concurrency, microseconds(lease), microseconds(grace)


class Pace:
    """The pauses of a worker, in microseconds."""

    def __init__(self, *, look: int = SECOND, rest: int = SECOND // 100, threads: bool = True) -> None:
        self.look = look
        """How often it looks for runs whose time has come, and for dead workers."""
        self.rest = rest
        """How long it rests after it found nothing."""
        self.threads = threads
        """Whether the lease is renewed on a thread of its own."""


class Time:
    """An estimate of the store's clock: as it was told last, and what has passed since, whatever is done to clocks."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.now() - clock.ticks()

    def now(self) -> int:
        """The store's clock, about."""
        return self._clock.ticks() + self._offset

    def told(self, now: int) -> None:
        """The store said so."""
        self._offset = now - self._clock.ticks()


class Duty:
    """One worker of a store, while it works."""

    def __init__(self, kit: Kit, agents: Sequence[Agent[Any, Any]], worker: Worker, time: Time, pace: Pace) -> None:
        self._kit, self._worker, self._time, self._pace = kit, worker, time, pace
        self.id = kit.worker
        self._agents = _by_version(agents)
        self._row = WorkerRow(id=self.id, agents=_served(agents))
        self._drives: dict[str, Drive] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._small: set[asyncio.Task[None]] = set()
        self._claiming = asyncio.Lock()
        self._wakes: dict[str, int] = {}
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

    def drives(self, run: str) -> bool:
        """Whether it drives this run now; whoever waits for it hears when it has left."""
        return run in self._drives

    @property
    def waiting(self) -> "list[tuple[str, asyncio.Task[Any]]]":
        """Runs that only wait at this moment, each with the task of its code."""
        found = [(run, drive.waiting) for run, drive in self._drives.items()]
        return [(run, task) for run, task in found if task is not None]

    async def begin(self, ear: Ear) -> int:
        """Register, and take over at once what an earlier process of this machine left; how many runs."""
        self._ear = ear
        self._take_in(await self.store.register(self._row, lease=self._worker.lease))
        self._renewing()
        found = await self.claim()
        self._background.append(asyncio.create_task(self._work(), name="limpet:worker"))
        return found

    def ring(self) -> None:
        """There is work."""
        self._rung.set()
        self._urgent.set()

    async def end(self) -> None:
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
        if not self._pace.threads:
            self._background.append(asyncio.create_task(self._renew_here(), name="limpet:lease"))
            return
        loop = asyncio.get_running_loop()
        Thread(target=self._renew_on_thread, args=(loop,), name="limpet-lease", daemon=True).start()

    def _renew_on_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stop_renewing.wait(self._worker.lease * 0.3 / SECOND):
            if self._kit.clock.ticks() - self._ticked > STUCK:
                continue
            try:
                renewal = asyncio.run(self._renew())
            except Exception as error:  # noqa: BLE001 - a machine may lack files or threads for a moment
                self._not_renewed(error)
                continue
            try:
                loop.call_soon_threadsafe(self._renewed, renewal)
            except RuntimeError:
                return  # the loop was closed

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

    async def _check(self, run: str, drive: Drive) -> None:
        """A renewal may have been on its way while the run was claimed, parked or ended."""
        with suppress(LimpetError):
            row = await self.store.get(run)
            if self._drives.get(run) is drive and row.fence != drive.fence:
                drive.lose()

    def _take_in(self, renewal: Renewal) -> None:
        self._ticked = self._kit.clock.ticks()
        self._time.told(renewal.now)

    # Runs

    async def _work(self) -> None:
        self._ear.tell_all(self._rung.set)
        try:
            while not self._stopping:
                await self._wait_for_work()
                await self._claim_all()
        finally:
            self._ear.tell_no_more(self._rung.set)

    async def _wait_for_work(self) -> None:
        """Until somebody rings, or a time that is known has come."""
        soonest = min(self._wakes.values(), default=None)
        pause = self._pace.look if soonest is None else min(self._pace.look, max(soonest - self._time.now(), 0))
        take_back = self._kit.clock.later(pause, self._rung.set)
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
        except (ConnectionLost, NotFound):  # the reply was lost, or the worker was given up
            await self._recover()
        except Exception as error:
            is_ours = isinstance(error, LimpetError)
            log.error("worker %s cannot claim: %s", self.id, error, exc_info=not is_ours)  # noqa: TRY400 - ours say it all
            await self._kit.clock.sleep(SECOND)
        if self._pace.rest:
            await self._rest()

    async def _rest(self) -> None:
        """Claims cost, and most of what is written while runs are driven here is their own; a start rings at once."""
        self._urgent.clear()
        rest = self._pace.rest * (BUSY_RESTS if self._drives else 1)
        take_back = self._kit.clock.later(rest, self._urgent.set)
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
            claimed = await self.store.claim(self.id, limit=limit) if limit > 0 else ()
            for each in claimed:
                self._drive(each)
        return len(claimed)

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
        drive = self._drives[row.id] = Drive(self._kit, claimed, agent)
        task = asyncio.create_task(self._see_through(drive), name=f"limpet:drive:{row.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _see_through(self, drive: Drive) -> None:  # noqa: C901 - one way out after the other
        def known() -> int | None:
            return drive.seq if drive.is_listening else None

        def tell(place: Any) -> None:
            self._spawn(drive.hear(place.seq, place.fence))

        interest = Interest(drive.run, known, tell)
        self._ear.listen(interest)
        try:
            await drive.drive()
        except (Tampered, UnknownEvent) as error:
            log.error("run %s cannot be read, and waits for an operator: %s", drive.run, error)  # noqa: TRY400
            await self._set_aside(drive)
        except Exception as error:
            log.exception("run %s cannot be driven here", drive.run)
            for task in drive.kill():
                task.cancel()
            with suppress(LimpetError):
                await self.store.release(drive.run, fence=drive.fence, worker=self.id, reason=str(error)[:500])
            await self._kit.clock.sleep(SECOND)
        finally:
            self._ear.forget(interest)
            if self._drives.get(drive.run) is drive:
                del self._drives[drive.run]
            if drive.end is not None:
                self._ear.tell(drive.run, drive.end)
            if drive.wake is not None:
                self._wakes[drive.run] = drive.wake
            self.ring()
            self._ear.ring()

    async def _set_aside(self, drive: Drive) -> None:
        """Park a run whose log cannot be read: whoever claimed it next would come no further."""
        waiting = b.RunWaiting(waits=(Wait(what="operator", key="unreadable"),))
        with suppress(LimpetError):
            row = await self.store.get(drive.run)
            codec, now = self.store.codec, self._time.now()
            sealed = seal_all(row.head, row.id, [waiting], time=now, fence=drive.fence, actor=self.id, codec=codec)
            await self.store.append(Extend(run=row.id, after=row.head, fence=drive.fence, events=sealed))


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
