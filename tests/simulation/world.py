"""A world with all faults, deterministic by seed.

Workers are killed, stall past their lease, lose replies and have clocks that jump. Tools fail before and after they
act. People answer, edit, reject, ignore, cancel, pause, resume, fork and prune.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal

import limpet
from limpet.clock import SECOND, Clock, FrozenClock
from limpet.engine.worker.worker_settings import Timing, Worker
from limpet.errors import ConnectionLost, LimpetError, StoreUnavailable
from limpet.events import Codec, Effects, Event
from limpet.ids import SeededIds
from limpet.service.app import App
from limpet.service.settings import Settings
from limpet.state import ENDED
from limpet.stores import Inline, RunRow, Store
from limpet.stores.backend import Capabilities, Outcome
from limpet.stores.commit import transact
from limpet.stores.memory import MemoryBackend, MemoryTables
from limpet.stores.threads import SerialExecutor
from limpet.stores.writes import Op, Transact
from tests.simulation.agents import AGENTS, MAIN, Outside, doom, outside, sim_killer
from tests.simulation.invariants import CHANNEL, PEOPLE, Watcher
from tests.simulation.loop import run_in_turns

LEASE = 10 * SECOND
RUNS = 2
FORKS = 1
REFUSED = (limpet.WrongState, limpet.AlreadyAnswered, limpet.Expired, limpet.NotFound, limpet.NotAllowed)
# In simulated time, after faults have stopped.
PATIENCE = 600 * SECOND
MOST_TURNS = 100_000
FORKED = {agent.name for agent in AGENTS if agent is not sim_killer}
EFFECTS: Sequence[Effects] = ("ask", "ask", "stub", "live")


class Rows(MemoryTables):
    """The store's tables, and a table of the tools."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.own: dict[str, int] = {}

    @contextmanager
    def lend(self) -> Iterator[Callable[[str], None]]:
        """Lend a connection that counts a key in the tools' table."""
        yield lambda key: self._put(self.own, key, self.own.get(key, 0) + 1)


class Backend(MemoryBackend):
    """A memory store with transactions, in either of the two modes of stores."""

    def __init__(self, clock: Clock, transactions: Literal["between", "beside"]) -> None:
        super().__init__(clock)
        self.capabilities = Capabilities(processes=False, durable=False, sees_death=False, transactions=transactions)

    def make_tables(self, clock: Clock) -> Rows:
        self._rows = Rows(clock)
        return self._rows

    def transact(self, op: Transact, codec: Codec) -> Outcome:
        return transact(self._transaction, op, codec)

    @property
    def own_rows(self) -> dict[str, int]:
        return self._rows.own

    def log_of(self, number: int) -> list[Event]:
        return self._rows.log[number]


class SlowLane:
    """An executor whose work is delayed by some turns of the event loop, and blocked while its worker stalls."""

    def __init__(self, link: "Link") -> None:
        self._link = link
        self._queue: list[Callable[[], None]] = []
        self._busy = False

    def check(self) -> None:
        """Do nothing: a turn of the event loop always follows."""

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
        """Do nothing."""


class Link(Inline):
    """The connection of one worker to the store."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.open = asyncio.Event()
        self.open.set()

    def lane(self, name: str) -> SerialExecutor:  # noqa: ARG002
        return SlowLane(self)

    async def call(self, work: Callable[[], Any]) -> Any:
        await self.pause()
        return work()

    async def pause(self) -> None:
        for _ in range(self._chance.randrange(3)):
            await asyncio.sleep(0)
        await self.open.wait()


class Faulty:
    """The backend of one process: commits may be lost before or after they are written; a dead one is refused."""

    def __init__(self, world: "World") -> None:
        self._backend, self._world = world.backend, world
        self.is_dead = False
        self.trouble = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def commit(self, ops: Sequence[Op[Any]], codec: Codec) -> list[Outcome]:
        return self._faultily(lambda: self._backend.commit(ops, codec))

    def transact(self, op: Transact, codec: Codec) -> Outcome:
        return self._faultily(lambda: [self._backend.transact(op, codec)])[0]

    def _faultily(self, commit: Callable[[], list[Outcome]]) -> list[Outcome]:
        backend, watcher = self._backend, self._world.watcher
        if self.is_dead:
            raise StoreUnavailable(reason="its process was killed")
        if self.trouble and self._world.chance.random() < self.trouble:
            raise ConnectionLost(reason="before it was written")
        before = backend.feed_end()
        done = commit()
        watcher.look(backend)
        if self.trouble and self._world.chance.random() < self.trouble:
            raise ConnectionLost(reason="after it was written")
        watcher.committed(done, before, backend.feed_end())
        return done

    def close(self) -> None:
        """Do nothing: the store outlives its processes."""


class OwnClock:
    """The clock of one process, which may be wrong; durations are still measured correctly."""

    def __init__(self, clock: Clock, off: int) -> None:
        self._clock, self.off = clock, off
        self.ticks, self.call_later, self.sleep = clock.ticks, clock.call_later, clock.sleep

    def now(self) -> int:
        return self._clock.now() + self.off


class Process:
    """A process with a worker, until it is killed."""

    def __init__(self, world: "World", number: int) -> None:
        self.backend, self.link = Faulty(world), Link(world.chance)
        self.clock = OwnClock(world.clock, world.jump())
        settings = Settings(Store(self.backend, self.link), self.clock, SeededIds(number))
        settings.worker = Worker(concurrency=5, lease=LEASE / SECOND, parole=("20s", "40s", "1m"))
        settings.timing = Timing(idle=SECOND // 20, lease_thread=False)
        settings.listen_interval = settings.command_poll
        settings.channels = {CHANNEL: world.outside.page}
        self.app = App(settings, AGENTS)

    async def begin(self, trouble: float, die: Callable[[], None]) -> None:
        doom.set(die)
        await self.app.open()
        self.backend.trouble = trouble

    async def kill(self) -> None:
        self.backend.is_dead = True
        self.link.open.set()
        loop, self.app._worker_loop = self.app._worker_loop, None
        if loop is not None:
            await loop.kill()
        await self.app.close()


class World:
    """The whole simulation."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = FrozenClock()
        self.backend = Backend(self.clock, self.chance.choice(["between", "beside"]))
        self.watcher = Watcher()
        self.outside = Outside(self.chance, self.clock, self.watcher)
        self.lives = seed * 1000
        self.processes: list[Process] = []
        self.started: list[str] = []
        self.forks: list[str] = []
        self.calm = False
        self._doomed: asyncio.Queue[Process] = asyncio.Queue()
        self._ignored: set[str] = set()
        self._turns, self._until_time_moves = 0, 1
        settings = Settings(Store(Faulty(self), Inline()), OwnClock(self.clock, self.jump()), SeededIds(seed))
        settings.worker, settings.people = None, PEOPLE
        self.people = App(settings, ())

    def tick(self, idle: bool) -> None:
        """Move time at random while tasks are ready; if none is, move it to the next alarm."""
        self._turns += 1
        self._until_time_moves -= 1
        if self._turns > MOST_TURNS:
            raise AssertionError("I8 live: the simulation never ends")
        if idle or not self._until_time_moves:
            due = self.clock.next_alarm if idle else None
            self.clock.set(max(due or 0, self.clock.now()) + self.chance.randrange(1, SECOND // 3))
            self._until_time_moves = self.chance.randrange(2, 15)

    def jump(self) -> int:
        """Return the offset of a clock: mostly zero, or up to an hour."""
        return self.chance.choice([0, 0, self.chance.randrange(-3600, 3600) * SECOND])

    async def run(self, acts: int) -> None:
        outside.set(self.outside)
        await self.people.open()
        killing = asyncio.ensure_future(self._kill_all())
        try:
            for _ in range(2):
                await self._begin()
            for agent in [*self.chance.choices(MAIN, k=RUNS), *[sim_killer] * (self.chance.random() < 0.1)]:
                number = len(self.started)
                await self.people.start(agent, (number + 1) * 1000, id=f"r{number}")
                self.started.append(f"r{number}")
            for _ in range(acts):
                await self._something()
            await self._calm_down()
        finally:
            killing.cancel()
            for process in self.processes:
                await process.kill()
            await self.people.close()

    async def _begin(self) -> None:
        self.lives += 1
        process = Process(self, self.lives)
        self.processes.append(process)
        with suppress(LimpetError):
            await process.begin(0.0 if self.calm else 0.03, lambda: self._doomed.put_nowait(process))

    async def _kill_all(self) -> None:
        """Kill doomed processes, and start a new one for each."""
        while True:
            process = await self._doomed.get()
            if process in self.processes:
                self.processes.remove(process)
                await process.kill()
                await self._begin()

    async def _something(self) -> None:
        await self.clock.sleep(int(5 * SECOND * self.chance.random() ** 2))
        self.watcher.check()
        acts = [self._kill, self._stall, self._jump, self._signal, self._revoke, *[self._answer, self._steer] * 2]
        acts += [self._fork, self._prune]
        with suppress(*REFUSED):
            await self.chance.choice(acts)()

    async def _kill(self) -> None:
        self._doomed.put_nowait(self.chance.choice(self.processes))

    async def _stall(self) -> None:
        """Stall a worker, possibly past its lease, while the others continue."""
        link = self.chance.choice(self.processes).link
        link.open.clear()
        self.clock.call_later(self.chance.randrange(1, 25) * SECOND, link.open.set)

    async def _jump(self) -> None:
        self.chance.choice(self.processes).clock.off = self.jump()

    async def _answer(self) -> None:
        inbox = await self.people.inbox()
        if inbox:
            await self._decide(self.chance.choice(inbox))

    async def _signal(self) -> None:
        run = self.chance.choice(self.started[:RUNS])
        value = (int(run[1:]) + 1) * 1000 + self.watcher.signals[run] + 1
        await self.people.signal(run, "go", value)
        self.watcher.signals[run] += 1

    async def _revoke(self) -> None:
        for run in self.started:
            for grant in await self.people.grants(run):
                await self.people.revoke(run, grant.grant, by="bob")

    async def _steer(self) -> None:
        run = self.chance.choice([*self.started[:RUNS], *self.forks])
        if self.chance.random() < 0.1:
            await self.people.cancel(run, reason="enough")
            self.watcher.cancelled.add(run)
        elif self.chance.random() < 0.5:
            await self.people.pause(run)
        else:
            await self.people.resume(run)

    async def _fork(self) -> None:
        """Fork a random run at a random step."""
        rows = [row for row in (await self.people.store.runs(limit=1000)).rows if row.agent in FORKED]
        if rows and len(self.forks) < FORKS:
            row, effects = self.chance.choice(rows), self.chance.choice(EFFECTS)
            fork = await self.people.fork(row.id, at=self.chance.randint(1, row.step + 1), effects=effects)
            self.forks.append(fork.id)

    async def _prune(self) -> None:
        """Prune ended runs with a random age."""
        done = await self.people.prune(older_than=self.chance.choice([0, 20, 60]), dry_run=False, snapshots=1)
        self.watcher.prune(done.runs)

    async def _calm_down(self) -> None:
        """Stop all faults. Then every run must end, and no ready run may stay unclaimed."""
        self.calm = self.outside.calm = True
        for process in self.processes:
            process.backend.trouble = 0.0
            process.link.open.set()
        since = self.clock.now()
        while True:
            self.watcher.check()
            rows = (await self.people.store.runs(limit=1000)).rows
            going = [row for row in rows if row.status not in ENDED and row.waits != ("operator:quarantined",)]
            helped = await self._help([row for row in rows if row.agent != "sim_killer"])
            if not helped and all(row.agent == "sim_killer" and row.waits for row in rows if row.status not in ENDED):
                return
            with self.watcher.naming("I8 live"):
                now = self.clock.now()
                assert now < since + PATIENCE, [(row.id, row.status, row.waits, row.worker) for row in going]
                for row in going:
                    ready = row.ready_at is not None and row.worker is None
                    assert not ready or now - max(row.ready_at or 0, since) < 2 * LEASE, (
                        f"{row.id} is ready but not claimed"
                    )
            await self.clock.sleep(SECOND)

    async def _help(self, rows: Sequence[RunRow]) -> bool:
        """Resume stuck runs and decide requests, except some that shall expire. Return whether anything was done."""
        helped = False
        for row in rows:
            stuck = row.status == "waiting" and any(wait.startswith("operator:") for wait in row.waits)
            if stuck or (row.status == "failed" and row.id not in self._ignored):
                self._ignored.add(row.id)
                with suppress(*REFUSED):
                    await self.people.resume(row.id)
                    helped = True
        for request in await self.people.inbox():
            is_decided_anyway = request.kind == "approval" and request.expires is not None
            if is_decided_anyway and request.id not in self._ignored and self.chance.random() < 0.2:
                self._ignored.add(request.id)
            if request.id not in self._ignored:
                with suppress(*REFUSED):
                    await self._decide(request)
                    helped = True
        return helped

    async def _decide(self, request: limpet.Request) -> None:
        by = self.chance.choice([*PEOPLE.get(request.to[0], ["ann"]) * 4, "eve"])
        match request.kind:
            case "ask":
                await self.people.answer(request, self.chance.random() < 0.5, by=by)
            case "unknown":
                known = {"applied": "by hand"} if self._is_done(request) else "not_applied"
                await self.people.answer(request, self.chance.choice([known, known, "unknown"]), by=by)
            case "approval":
                await self._approve(request, by)
            case "budget" if self.chance.random() < 0.5:
                await self.people.reject(request, by=by, because="no")
            case "budget":
                await self.people.answer(request, {"max_steps": 50}, by=by)
            case "escalation":
                choices = ["retry", "fail", {"result": "by hand"}] if request.tool else request.options
                await self.people.answer(request, self.chance.choice(choices), by=by)
            case _:
                await self.people.answer(request, request.options[0], by=by)
        self.watcher.answered.add((request.run, request.id))

    def _is_done(self, request: limpet.Request) -> bool:
        """Return whether the external world has seen the action of a request."""
        started = [step.first for step in self.watcher.runs[request.run].steps.values()]
        same = (step.key for step in started if (step.tool, step.args.value()) == (request.tool, dict(request.args)))
        return any(key in self.outside.sent or key in self.outside.applied for key in same)

    async def _approve(self, request: limpet.Request, by: str) -> None:
        if self.chance.random() < 0.2:
            await self.people.reject(request, by=by, because="no")
        else:
            args = {"cents": 99} if "cents" in request.args and self.chance.random() < 0.3 else None
            await self.people.approve(request, by=by, args=args, standing=self.chance.random() < 0.3)


def simulate(seed: int, acts: int = 12, *, check: Callable[[World], Any] | None = None) -> World:
    """Run one simulation, and return its world."""
    world = World(seed)

    async def live() -> None:
        await world.run(acts)
        if check is not None:
            await check(world)

    run_in_turns(live(), world.tick)
    return world
