"""Runs whose processes are killed, stopped, sent away or not there at all: they complete, and nothing is done twice."""

import asyncio
import os
import random  # noqa: TID251 - where the kill falls
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import suppress
from itertools import product
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, TypeVar

import pytest

import limpet
from limpet.clock import SystemClock
from limpet.events import AnyBody, Event
from limpet.events import bodies as b
from tests.crash.agents import TOOLS, agent_of, drive, serve
from tests.crash.counting_service import Service
from tests.crash.processes import Child, Job

get_context("forkserver").set_forkserver_preload(["tests.crash.jobs", "tests.crash.agents"])

T = TypeVar("T")
KILLED = -signal.SIGKILL
HALF_AN_HOUR = 1_800_000_000
AT_ONCE = 4


class Process(Child):
    """One that can be killed."""

    def kill(self, how: int = signal.SIGKILL) -> None:
        """Send it a signal, unless it has ended."""
        if self._process.exitcode is None and self._process.pid is not None:
            with suppress(ProcessLookupError):  # just now
                os.kill(self._process.pid, how)

    async def ended(self) -> int | None:
        """How it ended; others go on meanwhile."""
        await asyncio.to_thread(wait, [self._process.sentinel], 30)  # how is asked on one thread only, as it must be
        assert self._process.exitcode is not None, "it went on and on"
        return self._process.exitcode


class Scene:
    """A store, a service that runs act upon, and an app that only starts, answers and looks."""

    def __init__(self, url: str, service: Service, app: limpet.App) -> None:
        self.url, self.service, self.app, self.store = url, service, app, app.store
        self.is_sqlite = url.startswith("sqlite")
        self.processes: list[Process] = []

    def process(self, job: Job, agent: str, run: str, *more: str) -> Process:
        """A process of this scene, which is ready."""
        process = Process(job, self.url, self.service.server_port, agent, run, *more)
        self.processes.append(process)
        assert process.hear() == "ready"
        return process

    async def drive(self, agent: str, run: str, where: str = "") -> int | None:
        """Drive a run in a process, until that has ended, and everything that it sent is done."""
        ended = await self.process(drive, agent, run, where).ended()
        await asyncio.to_thread(self.service.settle)
        return ended

    async def start(self, agent: str, run: str) -> None:
        """Start a run, for whoever is there."""
        await self.app.start(agent_of(agent, run), agent, id=run)

    async def log(self, run: str) -> list[tuple[Event, AnyBody]]:
        """What is in a log; nothing if there is none."""
        try:
            return [(event, self.store.decode(event)) async for event in self.store.log(run)]
        except limpet.NotFound:
            return []

    async def claims(self, run: str) -> list[bool]:
        """Of each claim, whether a worker had died with the run."""
        return [body.died for _, body in await self.log(run) if isinstance(body, b.RunClaimed)]

    async def until(self, run: str, last: type[AnyBody]) -> None:
        """Wait until a log ends so."""
        async with asyncio.timeout(60):
            with self.store.watch() as watch:
                while not isinstance((await self.log(run))[-1][1], last):
                    await watch.changed()

    async def answer_all(self) -> None:
        """Say yes to whatever the parent is asked, for ever."""
        with self.store.watch() as watch:
            while True:
                for request in await self.app.inbox(to="parent"):
                    await self.app.approve(request, by="parent")
                await watch.changed()

    async def check(self, run: str) -> Any:
        """A run is done, its log is whole, and every death in it was seen; what it gave."""
        await self.app.verify(run)
        assert await self.store.check_rows(run) == []
        log, is_held = await self.log(run), False
        assert [event.seq for event, _ in log] == [*range(1, len(log) + 1)]
        for _, body in log:
            if isinstance(body, b.RunClaimed):
                assert body.died == is_held
            is_held = not isinstance(body, b.RunWaiting | b.RunReleased) and (is_held or isinstance(body, b.RunClaimed))
        return (await self.app.result(run, timeout=0)).value

    async def check_errand(self, run: str) -> None:
        """No effect twice, none lost; every step settled once, and seen as it was recorded."""
        result, log = await self.check(run), await self.log(run)
        settled = [body for _, body in log if isinstance(body, b.StepCompleted | b.StepResolved)]
        outputs = [(body.number, body.output.value()) for body in settled if body.output is not None]
        assert sorted(outputs) == [*enumerate(result, 1)]
        assert len(outputs) == 9
        assert [self.service.applied[f"/keyed/{run}/{step}"] for step in "ce"] == [1, 1]
        assert [self.service.arrived[f"/once/{run}/{step}"] for step in "fh"] == [1, 1]
        for step in "abdgi":
            assert 1 <= self.service.arrived[f"/read/{run}/{step}"] <= len(await self.claims(run))

    async def check_pair(self, run: str, agent: str) -> None:
        """Both effects took place, once."""
        assert await self.check(run) == agent
        assert self.service.arrived[f"/once/{run}/first"] == self.service.applied[f"/keyed/{run}/second"] == 1


@pytest.fixture(params=["sqlite", "postgres"])
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    """On each kind of store."""
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'limpet.db'}" if is_sqlite else request.getfixturevalue("postgres_schema")
    with Service() as service:
        async with limpet.open(url, worker=False) as app:
            scene = Scene(url, service, app)
            answering = asyncio.create_task(scene.answer_all())
            yield scene
            for process in scene.processes:
                process.kill()
            answering.cancel()
            with suppress(asyncio.CancelledError):
                await answering


async def each(cases: Iterable[T], trial: Callable[[T], Coroutine[Any, Any, Any]]) -> list[Any]:
    """Try all cases, a few at once; what came of them."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(case: T) -> Any:
        async with room:
            return await trial(case)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(case)) for case in cases]
    return [task.result() for task in tasks]


async def test_killed_before_and_after_every_commit(scene: Scene, full: bool) -> None:
    """The next process goes on at once: it sees that a worker is dead whose lease lasts for another hour."""

    async def trial(place: int) -> int | None:
        run = f"run-{place}"
        ended = await scene.drive("errand", run, f"commit:{place}")
        bodies = [body for _, body in await scene.log(run)]
        is_held = any(isinstance(body, b.RunClaimed) for body in bodies) and not isinstance(bodies[-1], b.RunCompleted)
        workers, now = await scene.store.workers(), await scene.store.now()
        assert all(worker.lease_until > now + HALF_AN_HOUR for worker in workers)
        assert await scene.drive("errand", run) == 0
        await scene.check_errand(run)
        assert await scene.claims(run) == ([False, True] if is_held else [False])
        return ended

    ended = await each(range(1, 44, 1 if full else 14), trial)
    print(f"killed at {ended.count(KILLED)} places")
    assert (ended[-1], set(ended)) == (0, {KILLED, 0})
    assert ended.count(KILLED) > len(ended) * 0.6


async def test_killed_in_every_tool_and_again_while_the_next_process_finds_out(scene: Scene, full: bool) -> None:
    """The service has done it, and nobody heard; the next process dies at a commit, or in the middle of something."""

    async def trial(case: tuple[str, str]) -> None:
        tool, where = case
        run = f"{tool}-{where.replace(':', '-')}"
        assert await scene.drive("errand", run, f"tool:{tool}") == KILLED
        assert await scene.drive("errand", run, where) == (KILLED if where else 0)
        assert await scene.drive("errand", run) == 0
        await scene.check_errand(run)

    middle = "statements" if scene.is_sqlite else "queries"
    cases = [*product(TOOLS, ["", *(f"commit:{place}" for place in range(1, 9))])]
    cases += [("crash_pay", f"{middle}:{place}") for place in range(1, 70)]
    await each(cases if full else cases[7::30], trial)


async def test_killed_at_random(scene: Scene, full: bool) -> None:
    """Up to three times in the life of a run; 200 times with --full, else 6."""
    chance, kills = random.Random(5), list[int]()

    async def trial(number: int) -> None:
        run = f"run-{number}"
        for _ in range(chance.randint(1, 3)):
            process = scene.process(drive, "errand", run)
            await SystemClock().sleep(chance.randrange(200_000))
            process.kill()
            kills.append(await process.ended() == KILLED)
            await asyncio.to_thread(scene.service.settle)
        assert await scene.drive("errand", run) == 0
        await scene.check_errand(run)

    number = 0
    while sum(kills) < (200 if full else 6):
        await each(range(number, number + AT_ONCE), trial)
        number += AT_ONCE
    print(f"{sum(kills)} kills of {number} runs")


async def test_a_process_that_was_stopped_writes_nothing_more(scene: Scene) -> None:
    """It stands still in a tool until another has done the run; what it brings then is kept, beside the log."""

    async def trial(case: tuple[str, str]) -> None:
        run, held = case
        scene.service.hold(held)
        stopped = scene.process(serve, "plain", run, "500ms")
        await scene.start("plain", run)
        await asyncio.to_thread(scene.service.wait_for, held)
        stopped.tell("stop")
        other = scene.process(serve, "plain", run, "500ms")
        await scene.until(run, b.RunCompleted)
        stopped.kill(signal.SIGCONT)
        scene.service.release(held)
        async with asyncio.timeout(20):
            while not (late := await scene.store.late(run)):
                await SystemClock().sleep(10_000)
        for process in (stopped, other):
            process.tell("go")
            assert await process.ended() == 0

        await scene.check_pair(run, "plain")
        fences = [event.fence for event, _ in await scene.log(run)]
        assert fences == sorted(fences)
        assert await scene.claims(run) == [False, True]
        [brought] = late
        assert (brought.event.kind, brought.event.fence) == ("step.completed", 1)

    await each([("a", "/once/a/first"), ("b", "/keyed/b/second")], trial)


async def test_runs_wait_while_no_process_is_there(scene: Scene, full: bool) -> None:
    """One for a person, and its process went; one for a time, and its process was killed."""

    async def trial(agent: str) -> None:
        process = scene.process(serve, agent, agent, "1h")
        await scene.start(agent, agent)
        await scene.until(agent, b.RunWaiting)
        assert (await scene.store.get(agent)).status == "waiting"
        if agent == "asks":
            process.tell("go")
            assert await process.ended() == 0
            [request] = await scene.app.inbox(run=agent)
            await scene.app.approve(request, by="parent")
        else:
            process.kill()
            assert await process.ended() == KILLED
        assert await scene.drive(agent, agent) == 0
        await scene.check_pair(agent, agent)
        assert await scene.claims(agent) == [False, False]

    await each(["asks", "sleeps"] if full or scene.is_sqlite else ["asks"], trial)


async def test_an_except_takes_the_same_branch_again(scene: Scene) -> None:
    """Live; killed in the handler, at the commits about its first step and in it; and replayed after the handler."""

    async def trial(where: str) -> None:
        run = f"run-{where.replace(':', '-')}"
        assert await scene.drive("mender", run, where) == (KILLED if where else 0)
        assert await scene.drive("mender", run) == 0
        assert await scene.check(run) == "refused"
        assert await scene.claims(run) == ([False, True] if where else [False])
        assert scene.service.arrived[f"/read/{run}/first"] == scene.service.arrived[f"/once/{run}/refused"] == 1
        assert scene.service.applied[f"/keyed/{run}/refused"] == 1

    places = ["", "crash_pay:1", "crash_pay:2", "tool:crash_pay", "tool:crash_post"]
    await each(places, trial)
    assert {path.split("/")[3] for path in scene.service.arrived} == {"first", "refused"}


async def test_a_process_that_goes_lets_an_effect_finish(scene: Scene) -> None:
    """It is told to go before the service has answered; the answer is recorded, and nobody has died."""
    scene.service.hold("/once/run/first")
    process = scene.process(serve, "plain", "run", "1h")
    await scene.start("plain", "run")
    await asyncio.to_thread(scene.service.wait_for, "/once/run/first")
    process.tell("go")
    assert process.hear() == "closing"
    scene.service.release("/once/run/first")
    assert await process.ended() == 0
    assert [event.kind for event, _ in await scene.log("run")][-2:] == ["step.completed", "run.released"]
    assert (await scene.store.get("run")).deaths == 0

    assert await scene.drive("plain", "run") == 0
    await scene.check_pair("run", "plain")
    assert await scene.claims("run") == [False, False]
    assert scene.service.arrived.total() == 2
