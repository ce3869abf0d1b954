"""Other processes see what a run does now: the open step of a slow read or model call is stored while it runs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.clock import SECOND, FrozenClock
from limpet.engine.worker.worker_settings import Timing, Worker
from limpet.errors import StoreUnavailable
from limpet.events import Codec
from limpet.events import bodies as b
from limpet.ids import SeededIds
from limpet.llm.model import Prompt, Reply
from limpet.service.settings import Settings
from limpet.stores import WorkerRow
from limpet.stores.backend import Outcome
from limpet.stores.memory import MemoryBackend
from limpet.stores.writes import Append, Extend, Extension, Op
from limpet.testing.app import TestApp, TestSettings

# Turns of the event loop that a flush needs at most, in a store without threads.
TURNS = 50


class Slow:
    """Something that takes three seconds of a scripted clock."""

    def __init__(self) -> None:
        self.clock = FrozenClock()
        self.calls = 0
        self.called = asyncio.Event()

    async def take(self) -> None:
        self.calls += 1
        self.called.set()
        await self.clock.sleep(3 * SECOND)
        self.called.clear()

    async def advance(self, milliseconds: int) -> None:
        """Let time pass, in small pieces, so that every timer is on time."""
        for _ in range(milliseconds // 50):
            self.clock.advance(0.05)
            for _ in range(TURNS):
                await asyncio.sleep(0)  # noqa: TID251 - a turn


@pytest.fixture
async def slow() -> Slow:
    return Slow()


def reader(slow: Slow) -> limpet.Agent[None, str]:
    """Return an agent that reads slowly."""

    @limpet.tool(effect="none", name="open_read")
    async def read() -> str:
        await slow.take()
        return "read"

    @limpet.agent(name="open_reader")
    async def agent(run: limpet.Run) -> str:
        return await run.step(read)

    return agent


def thinker(slow: Slow) -> limpet.Agent[str, str]:
    """Return an agent with a slow model."""

    class Model:
        name = "slow:model"

        async def reply(self, prompt: Prompt, /, *, on_text: Callable[[str], object] | None = None) -> Reply:  # noqa: ARG002
            await slow.take()
            return Reply(text="thought")

    return limpet.llm_agent("open_thinker", model=Model(), instructions="Think.")


@asynccontextmanager
async def working(slow: Slow, url: str, *agents: limpet.Agent[Any, Any]) -> AsyncIterator[limpet.App]:
    """Open an app with a worker on a real store, whose clock the test moves."""
    settings = Settings(limpet.open_store(url), slow.clock, SeededIds(0))
    settings.worker = Worker(lease="1d", grace=0)
    settings.timing = Timing(lease_thread=False)
    async with limpet.App(settings, agents) as app:
        yield app


async def kinds(app: limpet.App, run: str) -> list[str]:
    return [event.kind for event in await app.log(run)]


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
@pytest.mark.parametrize(("make", "input"), [(reader, None), (thinker, "well?")], ids=["read", "model call"])
async def test_an_observer_sees_the_open_step_within_400_ms(
    slow: Slow, make: Any, input: Any, store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The clock stops 400 ms after the call began, which takes 3 s: the step must arrive although no time passes."""
    url = f"sqlite:///{tmp_path}/t.db" if store == "sqlite" else request.getfixturevalue("postgres_schema")
    agent = make(slow)
    async with working(slow, url, agent) as app, limpet.open(url, worker=False) as observer, asyncio.timeout(60):
        handle = await app.start(agent, input, id="r")
        while not slow.called.is_set():
            await slow.advance(50)
        await slow.advance(400)
        async for event in observer.events("r"):
            if event.kind == "step.started":
                break
        report = await observer.show("r")
        assert (report.steps[-1].status, report.run.position.step) == ("running", 1)
        assert [step.number for step in (await observer.state("r")).whole.steps] == [1]
        assert slow.called.is_set()
        result = asyncio.ensure_future(handle.result())
        while not result.done():
            await slow.advance(100)
        assert slow.calls == 1


@asynccontextmanager
async def in_memory(
    slow: Slow, *agents: limpet.Agent[Any, Any], backend: Any = MemoryBackend
) -> AsyncIterator[TestApp]:
    """Open a test app on the clock of the slow tool."""
    settings = TestSettings(backend, slow.clock)
    settings.timing.sweep = SECOND // 10
    async with TestApp(settings, agents) as app:
        yield app


async def finish(slow: Slow, app: limpet.App, run: str) -> None:
    """Let time pass until a run has ended."""
    async with asyncio.timeout(60):
        while (await app.info(run)).status not in ("completed", "failed", "cancelled"):
            await slow.advance(500)
            app._worker_loop.wake()  # type: ignore[union-attr]


async def test_no_event_is_flushed_before_it_has_waited(slow: Slow) -> None:
    """A run of quick reads writes as rarely as before."""
    agent = reader(slow)
    async with in_memory(slow, agent) as app:
        await app.start(agent, id="r")
        await slow.advance(100)
        assert (await kinds(app, "r"))[-1] == "run.claimed"
        await slow.advance(300)
        assert (await kinds(app, "r"))[-1] == "step.started"


async def test_a_read_whose_worker_dies_after_the_flush_runs_again(slow: Slow) -> None:
    """The stored start of a read is no effect: it is repeated without asking a person."""
    agent = reader(slow)
    async with in_memory(slow, agent) as app:
        await app.start(agent, id="r")
        await slow.advance(400)
        assert "step.started" in await kinds(app, "r")
        await app.crash()
        await finish(slow, app, "r")
        assert slow.calls == 2
        [step] = await app.steps("r")
        assert [attempt.status for attempt in step.attempts] == ["interrupted", "completed"]
        assert "step.unknown" not in await kinds(app, "r")
        await app.verify("r")


async def test_a_worker_that_was_killed_flushes_nothing(slow: Slow) -> None:
    """Not even a flush that the sweep had started."""
    agent = reader(slow)
    async with in_memory(slow, agent) as app:
        await app.start(agent, id="r")
        await slow.advance(100)
        assert app._worker_loop is not None
        slow.clock.advance(0.3)
        await app._worker_loop.kill()
        await slow.advance(1000)
        assert "step.started" not in await kinds(app, "r")


async def test_a_worker_that_lost_the_run_stops_it_at_the_sweep(slow: Slow) -> None:
    """Its events are kept beside the log, and the other worker's log stays as it is."""
    agent = reader(slow)
    async with in_memory(slow, agent) as app:
        await app.start(agent, id="r")
        await slow.advance(50)
        row = await app.store.get("r")
        await app.store.register(WorkerRow(id="other", agents={agent.name: (agent.version,)}), lease=10**12)
        async with app._worker_loop.host.claiming:  # type: ignore[union-attr]  # the other worker is faster
            await app.store.release("r", fence=row.fence, worker=row.worker or "", reason="lost")
            assert await app.store.claim("other", limit=1)
        before = await kinds(app, "r")
        await slow.advance(400)
        [driver] = app._worker_loop.host._drivers.values()  # type: ignore[union-attr]
        assert isinstance(driver._x.gate.stopped, limpet.LeaseLost)  # type: ignore[union-attr]
        await slow.advance(4000)
        assert await kinds(app, "r") == before
        assert [late.event.kind for late in await app.store.late("r")] == ["step.started", "step.completed"]


class FullDisk(MemoryBackend):
    """A store whose disk is full for the events of workers, if the test says so."""

    is_full = False

    def commit(self, ops: Sequence[Op[Any]], codec: Codec) -> list[Outcome]:
        appends = [leg for op in ops if isinstance(op, Append) for leg in op.legs]
        if self.is_full and any(isinstance(each, Extend | Extension) for each in (*appends, *ops)):
            raise StoreUnavailable(reason="disk is full")
        return super().commit(ops, codec)


async def test_a_full_disk_stops_the_run_and_it_continues_later(slow: Slow) -> None:
    """The run is released after its read, and reads again when another attempt can write."""
    agent, made = reader(slow), list[FullDisk]()

    def make(clock: Any) -> FullDisk:
        made.append(FullDisk(clock))
        return made[0]

    async with in_memory(slow, agent, backend=make) as app:
        await app.start(agent, id="r")
        await slow.advance(100)
        made[0].is_full = True
        await slow.advance(400)
        [driver] = app._worker_loop.host._drivers.values()  # type: ignore[union-attr]
        assert isinstance(driver._x.gate.stopped, StoreUnavailable)  # type: ignore[union-attr]
        made[0].is_full = False
        await finish(slow, app, "r")
        assert (slow.calls, (await app.info("r")).status) == (2, "completed")
        assert "run.released" in await kinds(app, "r")
        await app.verify("r")


async def test_parallel_branches_all_show_their_open_steps(slow: Slow) -> None:
    """One flush stores the open steps of all branches, and the effect of one branch is not delayed by the reads."""

    @limpet.tool(effect="none", name="open_parallel")
    async def read(n: int) -> int:
        await slow.take()
        return n

    @limpet.tool(effect="once", name="open_effect")
    async def act() -> int:
        return 9

    @limpet.agent(name="open_branches")
    async def agent(run: limpet.Run) -> list[int]:
        return list(await asyncio.gather(run.step(read, 1), run.step(read, 2), run.step(act)))

    async with in_memory(slow, agent) as app:
        handle = await app.start(agent, id="r")
        await slow.advance(400)
        states = [(step.tool, step.status) for step in (await app.show("r")).steps]
        assert states == [("open_parallel", "running"), ("open_parallel", "running"), ("open_effect", "completed")]
        await finish(slow, app, "r")
        assert await handle.result() == [1, 2, 9]
        assert (await app.replay("r")).how == "returned"


async def test_a_sweep_leaves_a_held_run_alone(slow: Slow) -> None:
    """A run that is being paused writes its events when it parks."""
    agent = reader(slow)
    async with in_memory(slow, agent) as app:
        await app.start(agent, id="r")
        await slow.advance(50)
        await app.pause("r")
        await slow.advance(1000)
        assert (await kinds(app, "r"))[-1] == "pause.requested"
        await slow.advance(3000)
        assert (await kinds(app, "r"))[-3:] == ["step.started", "step.completed", "run.waiting"]
        await app.resume("r")
        await finish(slow, app, "r")
        assert slow.calls == 1


async def test_a_signal_that_the_sweep_reads_ends_its_wait(slow: Slow) -> None:
    """The flush meets an event that another process wrote; the branch that waits for it continues."""

    @limpet.tool(effect="none", name="open_signalled")
    async def read() -> str:
        await slow.take()
        return "read"

    heard: list[str] = []

    @limpet.agent(name="open_signals")
    async def agent(run: limpet.Run) -> None:
        async def listen() -> None:
            async with run.scope("listen"):
                heard.append(await run.receive("go", str))

        await asyncio.gather(run.step(read), listen())

    settings = TestSettings(clock=slow.clock)
    settings.timing.sweep = SECOND // 10
    settings.listen_interval = settings.command_poll = 3600 * SECOND  # the worker does not look for changes itself
    async with TestApp(settings, [agent]) as app:
        await app.start(agent, id="r")
        await slow.advance(50)
        await app.store.send_commands(
            "r", b.SignalReceived(command="c", signal="go", value=app.store.pack("now")[0]), actor="x"
        )
        await slow.advance(600)
        assert heard == ["now"]
        await finish(slow, app, "r")


async def test_a_transaction_is_not_disturbed_by_a_sweep(slow: Slow, tmp_path: Path) -> None:
    """A slow read in another branch is stored before or after the transaction, not inside it."""

    @limpet.tool(effect="none", name="open_beside")
    async def read() -> str:
        await slow.take()
        return "read"

    @limpet.tool(effect="transaction", name="open_write")
    def write(n: int) -> int:
        connection = limpet.current().transaction
        connection.execute("CREATE TABLE IF NOT EXISTS mine (n integer)")
        connection.execute(f"INSERT INTO mine VALUES ({n})")
        return n

    @limpet.agent(name="open_transacts")
    async def agent(run: limpet.Run) -> list[Any]:
        async def writes() -> list[int]:
            async with run.scope("writes"):
                return [await run.step(write, n) for n in range(5)]

        return list(await asyncio.gather(run.step(read), writes()))

    async with working(slow, f"sqlite:///{tmp_path}/t.db", agent) as app, asyncio.timeout(60):
        handle = await app.start(agent, id="r")
        result = asyncio.ensure_future(handle.result())
        while not result.done():
            await slow.advance(100)
        assert await result == ["read", [0, 1, 2, 3, 4]]
        await app.verify("r")
