"""A world in which everything goes wrong, the same for the same seed: workers that are killed, stall past their lease
and lose replies; tools that fail before and after they act; people who answer, cancel, pause and resume."""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import limpet
from limpet.clock import FrozenClock
from limpet.engine.duty import Pace, Worker
from limpet.errors import ConnectionLost, LimpetError, StoreUnavailable
from limpet.events import Codec
from limpet.ids import SeededIds
from limpet.service.app import App
from limpet.service.settings import Settings
from limpet.stores import Inline, RunRow, Store
from limpet.stores.handover import Lane
from limpet.stores.memory import MemoryBackend
from limpet.stores.ops import Op
from tests.simulation.agents import AGENTS, Outside, outside, sim_agent
from tests.simulation.invariants import Watcher

SECOND = 1_000_000


class SlowLane:
    """A lane whose work is done some turns of the event loop later, and not at all while its worker stalls."""

    def __init__(self, link: "Link") -> None:
        self._link = link
        self._queue: list[Callable[[], None]] = []
        self._busy = False

    def check(self) -> None:
        """There is always a turn."""

    def submit(self, work: Callable[[], None]) -> None:
        self._queue.append(work)
        if not self._busy:
            self._busy = True
            self._working = asyncio.ensure_future(self._work())

    async def _work(self) -> None:
        while self._queue:
            await self._link.pause()
            self._queue.pop(0)()
        self._busy = False

    def close(self, *, wait: bool = True) -> None:
        """Nothing to end."""


class Link(Inline):
    """How one worker is connected to the store."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.open = asyncio.Event()
        self.open.set()

    def lane(self, name: str) -> Lane:  # noqa: ARG002
        return SlowLane(self)

    async def call(self, work: Callable[[], Any]) -> Any:
        await self.pause()
        return work()

    async def pause(self) -> None:
        for _ in range(self._chance.randrange(4)):
            await asyncio.sleep(0)
        await self.open.wait()


class Faulty:
    """A backend as one worker sees it: commits may be lost before or after they happened; a dead one sees nothing."""

    def __init__(self, backend: MemoryBackend, world: "World") -> None:
        self._backend, self._world = backend, world
        self.is_dead = False
        self.trouble = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def commit(self, ops: Sequence[Op[Any]], codec: Codec) -> list[Any]:
        if self.is_dead:
            raise StoreUnavailable(reason="its process was killed")
        if self._world.chance.random() < self.trouble:
            raise ConnectionLost(reason="before it was written")
        done = self._backend.commit(ops, codec)
        self._world.watcher.look()
        if self._world.chance.random() < self.trouble:
            raise ConnectionLost(reason="after it was written")
        return done

    def close(self) -> None:
        """The store outlives its workers."""


class Process:
    """A process with a worker, until it is killed."""

    def __init__(self, world: "World", number: int) -> None:
        self.backend, self.link = Faulty(world.backend, world), Link(world.chance)
        settings = Settings(Store(self.backend, self.link), world.clock, SeededIds(number))
        settings.worker = Worker(concurrency=5, lease="10s")
        settings.pace = Pace(threads=False)
        self.app = App(settings, AGENTS)

    async def begin(self, trouble: float) -> None:
        await self.app.open()
        self.backend.trouble = trouble

    async def kill(self) -> None:
        self.backend.is_dead = True
        self.link.open.set()
        duty, self.app._duty = self.app._duty, None
        if duty is not None:
            await duty.kill()
        await self.app.close()


class World:
    """Everything there is in one simulation."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = FrozenClock()
        self.backend = MemoryBackend(self.clock)
        self.watcher = Watcher(self.backend)
        self.outside = Outside(self.chance)
        self.processes: list[Process] = []
        self.lives = seed * 1000
        self.people = App(Settings(Store(self.backend, Inline()), self.clock, SeededIds(seed)), ())
        self.people._settings.worker = None
        self.calm = False

    async def run(self, turns: int) -> None:
        outside.set(self.outside)
        await self.people.open()
        moving = asyncio.ensure_future(self._move_time())
        try:
            for _ in range(2):
                await self._begin()
            for number in range(4):
                await self._start(number)
            for _ in range(turns):
                await self._something()
            await self._calm_down()
        finally:
            moving.cancel()
            for process in self.processes:
                await process.kill()
            await self.people.close()

    async def _begin(self) -> None:
        self.lives += 1
        process = Process(self, self.lives)
        self.processes.append(process)
        with suppress(LimpetError):
            await process.begin(0.0 if self.calm else 0.03)

    async def _move_time(self) -> None:
        """Time passes, faster than anything happens."""
        while True:
            for _ in range(self.chance.randrange(3, 20)):
                await asyncio.sleep(0)
            self.clock.set(self.clock.now() + self.chance.randrange(1, SECOND // 3))

    async def _start(self, number: int) -> None:
        await self.people.start(sim_agent, number, id=f"r{number}")

    async def _something(self) -> None:
        for _ in range(self.chance.randrange(60)):
            await asyncio.sleep(0)
        acts = [self._kill, self._stall, self._answer, self._answer, self._signal, self._steer, self._steer]
        act = self.chance.choice(acts)
        with suppress(limpet.WrongState, limpet.AlreadyAnswered, limpet.Expired, limpet.NotFound):
            await act()

    async def _kill(self) -> None:
        process = self.processes.pop(self.chance.randrange(len(self.processes)))
        await process.kill()
        await self._begin()

    async def _stall(self) -> None:
        """Past its lease, while everybody else goes on."""
        process = self.chance.choice(self.processes)
        process.link.open.clear()
        until = self.clock.now() + self.chance.randrange(1, 25) * SECOND
        while self.clock.now() < until:
            await asyncio.sleep(0)
        process.link.open.set()

    async def _answer(self) -> None:
        inbox = await self.people.inbox()
        if not inbox:
            return
        await self._decide(self.chance.choice(inbox))

    async def _signal(self) -> None:
        run = f"r{self.chance.randrange(4)}"
        await self.people.signal(run, "go", self.watcher.signals[run] + 1)
        self.watcher.signals[run] += 1

    async def _steer(self) -> None:
        run = f"r{self.chance.randrange(4)}"
        if self.chance.random() < 0.1:
            await self.people.cancel(run, reason="enough")
            self.watcher.cancelled.add(run)
        elif self.chance.random() < 0.5:
            await self.people.pause(run)
        else:
            await self.people.resume(run)

    async def _calm_down(self) -> None:
        """Faults stop: every run must come to its end."""
        self.calm = True
        self.outside.calm = True
        for process in self.processes:
            process.backend.trouble = 0.0
            process.link.open.set()
        for _ in range(3000):
            if self.watcher.broken is not None:
                raise self.watcher.broken
            rows = (await self.people.store.runs(limit=1000)).rows
            if all(row.status in ("completed", "failed", "cancelled") for row in rows):
                return
            await self._help(rows)
            for _ in range(40):
                await asyncio.sleep(0)
        rows = (await self.people.store.runs(limit=1000)).rows
        late = [(row.id, row.status, row.waits, row.worker) for row in rows if row.ended is None]
        raise AssertionError(f"I8: {late}")

    async def _help(self, rows: Sequence[RunRow]) -> None:
        """Operators and people do what is asked of them."""
        for row in rows:
            if row.status == "waiting" and any(wait.startswith("operator:") for wait in row.waits):
                with suppress(limpet.WrongState):
                    await self.people.resume(row.id)
        for request in await self.people.inbox():
            with suppress(limpet.AlreadyAnswered, limpet.Expired, limpet.WrongState):
                await self._decide(request)

    async def _decide(self, request: limpet.Request) -> None:
        if request.kind == "ask":
            await self.people.answer(request, self.chance.random() < 0.5, by="ann")
        elif request.kind == "unknown":
            applied = self.outside.count_of(request.run, str(request.tool))
            await self.people.answer(request, {"applied": "by hand"} if applied else "not_applied", by="ann")
        else:
            await self.people.answer(request, "retry", by="ann")
        self.watcher.answered.add(request.id)
