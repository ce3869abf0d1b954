"""Runs whose processes are killed, suspended, stopped or missing: they complete, and no effect happens twice."""

import asyncio
import os
import random  # noqa: TID251 - where the kill falls
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import suppress
from itertools import product
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, TypeVar

import pytest

import limpet
from limpet.clock import SystemClock
from limpet.events import AnyBody, Event
from limpet.events import bodies as b
from tests.crash.agents import TOOLS, agent_of, run_agent, serve
from tests.crash.counting_service import Service
from tests.crash.processes import Child, Job

T = TypeVar("T")
KILLED = -signal.SIGKILL
HALF_AN_HOUR = 1_800_000_000
AT_ONCE = 4


class Process(Child):
    """A process that can be killed."""

    def kill(self, how: int = signal.SIGKILL) -> None:
        """Send a signal unless the process has ended."""
        if self._process.exitcode is None and self._process.pid is not None:
            with suppress(ProcessLookupError):  # it has ended just now
                os.kill(self._process.pid, how)

    async def ended(self) -> int | None:
        """Wait for the end of the process without blocking the loop, and return its exit code."""
        await asyncio.to_thread(wait, [self._process.sentinel], 30)  # the exit code may be read by one thread only
        assert self._process.exitcode is not None, "the process did not end"
        return self._process.exitcode


class RunHarness:
    """A store, a service for effects, and an app without a worker that starts, answers and reads."""

    def __init__(self, url: str, service: Service, app: limpet.App) -> None:
        self.url, self.service, self.app, self.store = url, service, app, app.store
        self.is_sqlite = url.startswith("sqlite")
        self.processes: list[Process] = []

    def process(self, job: Job, agent: str, run: str, *more: str) -> Process:
        """Start a process, and wait until it is ready."""
        process = Process(job, self.url, self.service.server_port, agent, run, *more)
        self.processes.append(process)
        assert process.receive() == "ready"
        return process

    async def run_agent(self, agent: str, run: str, where: str = "") -> int | None:
        """Run an agent in a process until it has ended and its requests to the service are finished."""
        ended = await self.process(run_agent, agent, run, where).ended()
        await asyncio.to_thread(self.service.settle)
        return ended

    async def start(self, agent: str, run: str) -> None:
        """Start a run for any worker."""
        await self.app.start(agent_of(agent, run), agent, id=run)

    async def log(self, run: str) -> list[tuple[Event, AnyBody]]:
        """Return a log, or an empty list if it does not exist."""
        try:
            return [(event, self.store.decode(event)) async for event in self.store.log(run)]
        except limpet.NotFound:
            return []

    async def claims(self, run: str) -> list[bool]:
        """Return for each claim whether the previous worker had died with the run."""
        return [body.died for _, body in await self.log(run) if isinstance(body, b.RunClaimed)]

    async def until(self, run: str, last: type[AnyBody]) -> None:
        """Wait until a log ends with an event of this type."""
        async with asyncio.timeout(60):
            with self.store.watch() as watch:
                while not isinstance((await self.log(run))[-1][1], last):
                    await watch.changed()

    async def answer_all(self) -> None:
        """Approve every request to "parent", forever."""
        with self.store.watch() as watch:
            while True:
                for request in await self.app.inbox(to="parent"):
                    await self.app.approve(request, by="parent")
                await watch.changed()

    async def check(self, run: str) -> Any:
        """Check that a run has completed, its log is intact and every death is recorded; return its result."""
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
        """Check that each effect happened once, and each step is settled once with its recorded result."""
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
        """Check that both effects happened once."""
        assert await self.check(run) == agent
        assert self.service.arrived[f"/once/{run}/first"] == self.service.applied[f"/keyed/{run}/second"] == 1


@pytest.fixture(params=["sqlite", "postgres"])
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RunHarness]:
    """A harness on each kind of store."""
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'limpet.db'}" if is_sqlite else request.getfixturevalue("postgres_schema")
    with Service() as service:
        async with limpet.open(url, worker=False) as app:
            harness = RunHarness(url, service, app)
            answering = asyncio.create_task(harness.answer_all())
            yield harness
            for process in harness.processes:
                process.kill()
            answering.cancel()
            with suppress(asyncio.CancelledError):
                await answering


async def run_cases(cases: Iterable[T], trial: Callable[[T], Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run all cases, a few concurrently, and return their results."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(case: T) -> Any:
        async with room:
            return await trial(case)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(case)) for case in cases]
    return [task.result() for task in tasks]


async def test_a_run_killed_at_any_commit_is_continued_immediately(harness: RunHarness, full: bool) -> None:
    """The next process detects the dead worker, although its lease lasts another hour."""

    async def trial(place: int) -> int | None:
        run = f"run-{place}"
        ended = await harness.run_agent("errand", run, f"commit:{place}")
        bodies = [body for _, body in await harness.log(run)]
        is_held = any(isinstance(body, b.RunClaimed) for body in bodies) and not isinstance(bodies[-1], b.RunCompleted)
        workers, now = await harness.store.workers(), await harness.store.now()
        assert all(worker.lease_until > now + HALF_AN_HOUR for worker in workers)
        assert await harness.run_agent("errand", run) == 0
        await harness.check_errand(run)
        assert await harness.claims(run) == ([False, True] if is_held else [False])
        return ended

    ended = await run_cases(range(1, 44, 1 if full else 14), trial)
    print(f"killed at {ended.count(KILLED)} places")
    assert (ended[-1], set(ended)) == (0, {KILLED, 0})
    assert ended.count(KILLED) > len(ended) * 0.6


async def test_a_run_killed_at_a_commit_on_its_event_loop_is_continued(tmp_path: Path, full: bool) -> None:
    """Before and after each commit that the only run of a process does on the event loop itself."""
    url = f"sqlite:///{tmp_path / 'limpet.db'}"
    with Service() as service:
        async with limpet.open(url, worker=False) as app:
            harness = RunHarness(url, service, app)
            answering = asyncio.create_task(harness.answer_all())

            async def trial(place: int) -> int | None:
                run = f"run-{place}"
                ended = await harness.run_agent("errand", run, f"alone:{place}")
                assert await harness.run_agent("errand", run) == 0
                await harness.check_errand(run)
                assert await harness.claims(run) == ([False, True] if ended == KILLED else [False])
                return ended

            ended = [await trial(place) for place in range(1, 30, 1 if full else 6)]
            answering.cancel()
    print(f"killed at {ended.count(KILLED)} places")
    assert ended.count(KILLED) >= len(ended) // 2


async def test_a_run_killed_in_a_tool_and_during_its_recovery_is_continued(harness: RunHarness, full: bool) -> None:
    """The effect was applied but not recorded; the next process dies at a commit or in the middle of an operation."""

    async def trial(case: tuple[str, str]) -> None:
        tool, where = case
        run = f"{tool}-{where.replace(':', '-')}"
        assert await harness.run_agent("errand", run, f"tool:{tool}") == KILLED
        assert await harness.run_agent("errand", run, where) == (KILLED if where else 0)
        assert await harness.run_agent("errand", run) == 0
        await harness.check_errand(run)

    middle = "statements" if harness.is_sqlite else "queries"
    cases = [*product(TOOLS, ["", *(f"commit:{place}" for place in range(1, 9))])]
    cases += [("crash_pay", f"{middle}:{place}") for place in range(1, 70)]
    await run_cases(cases if full else cases[7::30], trial)


async def test_a_run_killed_at_random_moments_is_continued(harness: RunHarness, full: bool) -> None:
    """Up to three kills per run; 200 kills with --full, otherwise 6."""
    chance, kills = random.Random(5), list[int]()

    async def trial(number: int) -> None:
        run = f"run-{number}"
        for _ in range(chance.randint(1, 3)):
            process = harness.process(run_agent, "errand", run)
            await SystemClock().sleep(chance.randrange(200_000))
            process.kill()
            kills.append(await process.ended() == KILLED)
            await asyncio.to_thread(harness.service.settle)
        assert await harness.run_agent("errand", run) == 0
        await harness.check_errand(run)

    number = 0
    while sum(kills) < (200 if full else 6):
        await run_cases(range(number, number + AT_ONCE), trial)
        number += AT_ONCE
    print(f"{sum(kills)} kills of {number} runs")


async def test_a_suspended_worker_cannot_write_after_another_took_over(harness: RunHarness) -> None:
    """It is suspended in a tool until another worker completes the run; its late event is kept beside the log."""

    async def trial(case: tuple[str, str]) -> None:
        run, held = case
        harness.service.hold(held)
        stopped = harness.process(serve, "plain", run, "500ms")
        await harness.start("plain", run)
        await asyncio.to_thread(harness.service.wait_for, held)
        stopped.send("stop")
        other = harness.process(serve, "plain", run, "500ms")
        await harness.until(run, b.RunCompleted)
        stopped.kill(signal.SIGCONT)
        harness.service.release(held)
        async with asyncio.timeout(20):
            while not (late := await harness.store.late(run)):
                await SystemClock().sleep(10_000)
        for process in (stopped, other):
            process.send("go")
            assert await process.ended() == 0

        await harness.check_pair(run, "plain")
        fences = [event.fence for event, _ in await harness.log(run)]
        assert fences == sorted(fences)
        assert await harness.claims(run) == [False, True]
        [brought] = late
        assert (brought.event.kind, brought.event.fence) == ("step.completed", 1)

    await run_cases([("a", "/once/a/first"), ("b", "/keyed/b/second")], trial)


async def test_runs_wait_while_no_process_exists(harness: RunHarness, full: bool) -> None:
    """One waits for a person after its process stopped; one for a time after its process was killed."""

    async def trial(agent: str) -> None:
        process = harness.process(serve, agent, agent, "1h")
        await harness.start(agent, agent)
        await harness.until(agent, b.RunWaiting)
        assert (await harness.store.get(agent)).status == "waiting"
        if agent == "asks":
            process.send("go")
            assert await process.ended() == 0
            [request] = await harness.app.inbox(run=agent)
            await harness.app.approve(request, by="parent")
        else:
            process.kill()
            assert await process.ended() == KILLED
        assert await harness.run_agent(agent, agent) == 0
        await harness.check_pair(agent, agent)
        assert await harness.claims(agent) == [False, False]

    await run_cases(["asks", "sleeps"] if full or harness.is_sqlite else ["asks"], trial)


async def test_a_replayed_except_clause_takes_the_same_branch(harness: RunHarness) -> None:
    """Live, killed inside the handler at several places, and replayed after the handler."""

    async def trial(where: str) -> None:
        run = f"run-{where.replace(':', '-')}"
        assert await harness.run_agent("fallback", run, where) == (KILLED if where else 0)
        assert await harness.run_agent("fallback", run) == 0
        assert await harness.check(run) == "refused"
        assert await harness.claims(run) == ([False, True] if where else [False])
        assert harness.service.arrived[f"/read/{run}/first"] == harness.service.arrived[f"/once/{run}/refused"] == 1
        assert harness.service.applied[f"/keyed/{run}/refused"] == 1

    places = ["", "crash_pay:1", "crash_pay:2", "tool:crash_pay", "tool:crash_post"]
    await run_cases(places, trial)
    assert {path.split("/")[3] for path in harness.service.arrived} == {"first", "refused"}


async def test_a_stopping_worker_lets_a_running_effect_finish(harness: RunHarness) -> None:
    """It stops before the service has answered; the result is recorded, and no death is counted."""
    harness.service.hold("/once/run/first")
    process = harness.process(serve, "plain", "run", "1h")
    await harness.start("plain", "run")
    await asyncio.to_thread(harness.service.wait_for, "/once/run/first")
    process.send("go")
    assert process.receive() == "closing"
    harness.service.release("/once/run/first")
    assert await process.ended() == 0
    assert [event.kind for event, _ in await harness.log("run")][-2:] == ["step.completed", "run.released"]
    assert (await harness.store.get("run")).deaths == 0

    assert await harness.run_agent("plain", "run") == 0
    await harness.check_pair("run", "plain")
    assert await harness.claims("run") == [False, False]
    assert harness.service.arrived.total() == 2
