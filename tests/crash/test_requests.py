"""Requests, notifications, calls and handoffs whose processes are killed, and concurrent answers."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import pytest

import limpet
from limpet.clock import SystemClock, microseconds
from limpet.events import bodies as b
from limpet.ids import RandomIds
from limpet.service.app import App
from limpet.service.settings import Settings
from limpet.state import ENDED
from limpet.stores import RequestFilter
from tests.behaviour.requests.event_orders import OUTCOMES, outcome_of, summarize
from tests.crash.counting_service import Service
from tests.crash.processes import Child, Job
from tests.crash.requests import Shifted, Verdict, agents_of, answer, opened, race, run_clerk, visit

T = TypeVar("T")
KILLED = -signal.SIGKILL
AT_ONCE = 4
HOUR = microseconds("1h")
DAY = microseconds("1d")


class Process(Child):
    """A process that can be killed."""

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.exitcode is not None

    def kill(self) -> None:
        """Kill the process unless it has ended."""
        if not self.has_ended and self._process.pid is not None:
            with suppress(ProcessLookupError):  # it has ended just now
                os.kill(self._process.pid, signal.SIGKILL)

    async def ended(self) -> int | None:
        """Wait for the end of the process without blocking the loop, and return its exit code."""
        await asyncio.to_thread(wait, [self._process.sentinel], 60)
        assert self._process.exitcode is not None, "the process did not end"
        return self._process.exitcode


class RequestHarness:
    """A store, a service for effects, and an app with its own clock that starts, answers and reads."""

    def __init__(self, url: str, service: Service) -> None:
        self.url, self.service = url, service
        self.processes: list[Process] = []

    def app(self, clock: Shifted) -> App:
        """Return an app without a worker."""
        settings = Settings(limpet.open_store(self.url, clock=clock), clock, RandomIds(SystemClock()))
        settings.worker = None
        return App(settings)

    def process(self, job: Job, *arguments: Any) -> Process:
        """Start a process, and wait until it is ready."""
        process = Process(job, self.url, *arguments)
        self.processes.append(process)
        assert process.receive() == "ready"
        return process

    async def serve_once(self, app: App, run: str, off: int, where: str = "") -> None:
        """Serve a run in a process until nothing is left to do at this time, or it dies; then kill it."""
        process = self.process(visit, self.service.server_port, run, off, where)
        async with asyncio.timeout(60):
            while not process.has_ended and not await self._is_settled(app, run):
                await SystemClock().sleep(5000)
        process.kill()
        assert await process.ended() == KILLED
        await asyncio.to_thread(self.service.settle)

    async def _is_settled(self, app: App, run: str) -> bool:
        row = await app.store.get(run)
        is_due = row.ready_at is not None and row.ready_at <= await app.store.now()
        return row.status in ENDED or (row.status == "waiting" and not is_due)


@pytest.fixture(params=["sqlite", "postgres"])
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RequestHarness]:
    """A harness on each kind of store."""
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'limpet.db'}" if is_sqlite else request.getfixturevalue("postgres_schema")
    async with limpet.open_store(url):
        pass
    with Service() as service:
        harness = RequestHarness(url, service)
        yield harness
        for process in harness.processes:
            process.kill()


async def run_cases(cases: Iterable[T], trial: Callable[[T], Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run all cases, a few concurrently, and return their results."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(case: T) -> Any:
        async with room:
            return await trial(case)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(case)) for case in cases]
    return [task.result() for task in tasks]


# Every outcome

Act = Literal["go", "yes", "no", "cancel", "hour"]
FIRST_APPEND = "commit:3"


class Script(NamedTuple):
    """The events that lead to an outcome. After each part two processes serve the run, or one for the part `short`.

    The first dies right after its first append, the other when nothing is left to do.
    """

    kind: str
    parts: tuple[tuple[Act, ...], ...]
    short: int = 0


SCRIPTS = {
    "waits: never asked": Script("ask", ((),)),
    "run.cancelled: never asked": Script("ask", ((), ("cancel",))),
    "run.cancelled: withdrawn": Script("ask", (("go",), ("cancel",))),
    "run.cancelled: withdrawn escalated": Script("escalating", (("go",), ("hour",), ("cancel",))),
    "run.cancelled: answered": Script("escalating", (("go",), ("yes", "cancel"))),
    "run.cancelled: answered escalated": Script("escalating", (("go",), ("hour",), ("yes", "cancel"))),
    "run.cancelled: approved": Script("approval", (("go",), ("yes", "cancel"))),
    "run.cancelled: approved, withdrawn": Script("approval", (("go",), ("yes", "hour"), ("cancel",))),
    "run.cancelled: approved, rejected": Script("approval", (("go",), ("yes", "hour"), ("no", "cancel"))),
    "run.cancelled: rejected": Script("approval", (("go",), ("no", "cancel"))),
    "run.cancelled: expired raised": Script("ask", (("go",), ("hour",), ("cancel",)), 2),
    "run.cancelled: expired default": Script("escalating", (("go",), ("hour",), ("hour",), ("cancel",)), 3),
    "run.completed: answered": Script("escalating", (("go",), ("yes",))),
    "run.completed: answered escalated": Script("escalating", (("go",), ("hour",), ("yes",))),
    "run.completed: approved": Script("approval", (("go",), ("yes",))),
    "run.completed: approved, rejected": Script("approval", (("go",), ("yes", "hour"), ("no",))),
    "run.completed: rejected": Script("ask", (("go",), ("no",))),
    "run.completed: expired default": Script("escalating", (("go",), ("hour",), ("hour",))),
    "run.failed: expired raised": Script("ask", (("go",), ("hour",))),
    "run.failed: approved, expired raised": Script("approval", (("go",), ("yes", "hour"), ("hour",))),
}
SLICE = ("run.completed: approved, rejected", "run.cancelled: expired raised", "run.completed: answered escalated")


class ScriptRun:
    """One execution of a script."""

    def __init__(self, harness: RequestHarness, outcome: str) -> None:
        self.harness, self.outcome, self.script = harness, outcome, SCRIPTS[outcome]
        self.run = outcome.replace(": ", "-").replace(", ", "-").replace(" ", "-")
        self.clock = Shifted()

    async def execute(self) -> None:
        """Execute the script, and check the outcome and the effects."""
        async with self.harness.app(self.clock) as app:
            await app.start(agents_of(self.run)["asker"], self.script.kind, id=self.run)
            for number, part in enumerate(self.script.parts, 1):
                for act in part:
                    await self.do(app, act)
                await self.harness.serve_once(app, self.run, self.clock.off, FIRST_APPEND)
                if number != self.script.short:
                    await self.harness.serve_once(app, self.run, self.clock.off)
            await self.check(app)

    async def do(self, app: App, act: Act) -> None:
        """Perform an act while no process serves the run."""
        match act:
            case "hour":
                self.clock.off += HOUR
            case "go":
                await app.signal(self.run, "go", True)
            case "cancel":
                await app.cancel(self.run, reason="enough")
            case "yes" if self.script.kind == "escalating":
                await app.answer((await app.inbox(run=self.run))[0], "one", by="ann")
            case "yes":
                await app.approve((await app.inbox(run=self.run))[0], by="ann")
            case "no":
                await app.reject((await app.inbox(run=self.run))[0], by="bob", because="no")

    async def check(self, app: App) -> None:
        """Check the log and the service's counters."""
        await app.verify(self.run)
        assert await app.store.check_rows(self.run) == []
        found = summarize(await app.log(self.run))
        assert outcome_of(found) == self.outcome
        applied = self.harness.service.applied
        assert applied[f"/keyed/{self.run}/begin"] == 1
        acted = applied[f"/keyed/{self.run}/act"] + applied[f"/keyed/{self.run}/pay"]
        last = found.last
        if found.end == "run.completed":
            assert last is not None
            assert found.output == ("default" if last.status == "expired" else last.said)
            assert acted == (self.script.kind != "approval" or last.status == "approved")
        else:
            assert acted == 0


async def test_every_outcome_of_a_request_is_reached_despite_kills(harness: RequestHarness, full: bool) -> None:
    """Processes are killed during and after each decision."""
    assert set(SCRIPTS) == set(OUTCOMES)
    await run_cases(SCRIPTS if full else SLICE, lambda outcome: ScriptRun(harness, outcome).execute())


# Concurrent answers


async def test_one_of_two_concurrent_answers_wins(harness: RequestHarness, full: bool) -> None:
    """2,000 pairs from two processes with --full, otherwise 20. The loser's error names the winner."""
    pairs, batch = (2000, 200) if full else (20, 20)
    raced, names = agents_of("race")["raced"], ("ann", "bob")
    barrier = get_context("forkserver").Barrier(2)
    racers = [harness.process(race, barrier, name) for name in names]
    wins = dict.fromkeys(names, 0)
    async with opened(harness.url, [raced]) as app:
        for first in range(0, pairs, batch):
            handles = [await app.start(raced, place, id=f"r{first + place}") for place in range(batch)]
            requests = await _wait_for_requests(app, batch)
            for racer in racers:
                racer.send([requests[handle.id] for handle in handles])
            heard = [await asyncio.to_thread(racer.receive) for racer in racers]
            for place, (handle, *said) in enumerate(zip(handles, *heard, strict=True)):
                assert said.count("won") == 1
                winner = names[said.index("won")]
                [lost] = [each for each in said if each != "won"]
                assert lost == (requests[handle.id], "answered", winner)
                assert await handle.result(timeout="60s") == [winner, place]
                wins[winner] += 1
        kinds = [event.kind for event in await app.log("r0")]
        assert kinds.count("request.answered") == 1
    for racer in racers:
        racer.send([])
        assert await racer.ended() == 0
    print(f"{pairs} pairs: {wins}")


async def _wait_for_requests(app: App, count: int) -> dict[str, str]:
    """Wait for `count` open requests, and return them by run."""
    async with asyncio.timeout(60):
        with app.store.watch() as watch:
            while len(rows := await app.store.requests(RequestFilter())) < count:
                await watch.changed()
    return {row.run: row.id for row in rows}


# Every commit


class NotifiedPerson:
    """Answers each request once the notification about it has arrived."""

    def __init__(self, harness: RequestHarness, app: App) -> None:
        self.harness, self.app = harness, app

    async def answer_all(self) -> None:
        """Answer requests forever."""
        with self.app.store.watch() as watch:
            while True:
                for request in await self.app.inbox(to="parent"):
                    if self.harness.service.arrived[f"/keyed/told/{request.id}"]:
                        await self._answer(request)
                await watch.changed()

    async def _answer(self, request: limpet.Request) -> None:
        if request.kind == "approval":
            await self.app.approve(request, by="parent")
        else:
            await self.app.answer(request, Verdict(is_fine=True, why="indeed"), by="parent")


async def check_clerk(harness: RequestHarness, app: App, run: str) -> None:
    """Check that both requests were decided and notified once, and every child and effect exists once."""
    assert (await app.result(run, timeout=0)).value == "closed checked o1 indeed"
    children = {"checker": f"{run}.checker-1", "closer": f"{run}.closer-2"}
    log = [app.store.decode(event) async for event in app.store.log(run)]
    called = [body for body in log if isinstance(body, b.AgentCalled)]
    assert {each.agent: each.run for each in called if each.mode != "notify"} == children
    asked = [body.request for body in log if isinstance(body, b.RequestOpened)]
    assert sorted(body.request for body in log if isinstance(body, b.RequestAnswered)) == sorted(asked)
    assert len(asked) == len(set(asked)) == 2
    notified = [each.run for each in called if each.mode == "notify"]
    assert len(notified) == len(set(notified)) == 2
    for request in asked:
        assert harness.service.applied[f"/keyed/told/{request}"] == 1
    for path in (f"{run}/begin", f"{run}/pay", f"{children['checker']}/begin", f"{children['closer']}/act"):
        assert harness.service.applied[f"/keyed/{path}"] == 1
    for each in (run, *children.values(), *notified):
        await app.verify(each)
        assert await app.store.check_rows(each) == []
        assert (await app.store.get(each)).status == "completed"
    assert await app.inbox(run=run) == []


async def test_a_handoff_killed_at_any_commit_is_continued(harness: RequestHarness, full: bool) -> None:
    """While asking, notifying, being answered, calling and handing off."""

    async def trial(place: int) -> int | None:
        run = f"run-{place}"
        first, second = [await life(run, where) for where in (f"commit:{place}", "")]
        assert (first in (0, KILLED), second) == (True, 0)
        await check_clerk(harness, app, run)
        return first

    async def life(run: str, where: str) -> int | None:
        ended = await harness.process(run_clerk, harness.service.server_port, run, where).ended()
        await asyncio.to_thread(harness.service.settle)
        return ended

    async with harness.app(Shifted()) as app:
        answering = asyncio.create_task(NotifiedPerson(harness, app).answer_all())
        try:
            ends = await run_cases(range(1, 80) if full else (5, 19), trial)
        finally:
            answering.cancel()
            with suppress(asyncio.CancelledError):
                await answering
    print(f"killed at {ends.count(KILLED)} places")
    assert ends.count(KILLED) >= (50 if full else 2)
    assert not full or ends[-1] == 0  # no more places


@pytest.mark.parametrize("place", [1, 2])
async def test_a_request_is_answered_once_if_the_answering_process_is_killed(
    harness: RequestHarness, place: int
) -> None:
    """Killed before the commit, the request is still open; after it, the answer is final."""
    run = f"run-{place}"
    async with harness.app(Shifted()) as app:
        await app.start(agents_of(run)["patient"], "o1", id=run)
        await harness.serve_once(app, run, 0)
        dying = harness.process(answer, run, 0, f"commit:{place}")
        dying.receive()
        assert await dying.ended() == KILLED
        assert len(await app.inbox(run=run)) == (place == 1)
        if place == 1:
            assert await harness.process(answer, run, 0, "").ended() == 0
        await harness.serve_once(app, run, 0)
        await check_patient(harness, app, run)


async def check_patient(harness: RequestHarness, app: App, run: str) -> None:
    """Check the result, the single answer, and that no step ran twice."""
    assert (await app.result(run, timeout=0)).value == "o1"
    kinds = [event.kind for event in await app.log(run)]
    assert [kinds.count(kind) for kind in ("request.opened", "request.answered", "step.started")] == [1, 1, 4]
    arrived = {path: times for path, times in harness.service.arrived.items() if path.split("/")[2] == run}
    assert arrived == {
        f"/keyed/{run}/begin": 1,
        f"/read/{run}/look": 1,
        f"/keyed/{run}/pay": 1,
        f"/keyed/{run}/act": 1,
    }
    await app.verify(run)


async def test_a_request_can_be_answered_a_day_after_all_processes_were_killed(harness: RequestHarness) -> None:
    """Another process shows its full context; a third one continues without repeating a step."""
    run, clock = "run", Shifted()
    async with harness.app(clock) as app:
        await app.start(agents_of(run)["patient"], "o1", id=run)
        await harness.serve_once(app, run, 0)
        clock.off += DAY
        answering = harness.process(answer, run, DAY, "")
        args, context = answering.receive()
        assert await answering.ended() == 0
        assert args == {"run": run, "said": "o1"}
        assert (context.agent, context.input, context.goal) == ("patient", '"o1"', "settle o1")
        assert [(step.number, step.tool, step.status) for step in context.steps] == [
            (1, "people_begin", "completed"),
            (2, "people_look", "completed"),
        ]
        assert [(made.chosen, made.because) for made in context.decisions] == [('"whole"', "it arrived broken")]
        [fact] = context.facts
        assert (fact.key, fact.value, context.spent["steps"], context.earlier_steps) == ("customer", '"ann"', 2, 0)
        assert [choice.answer for choice in context.choices] == ["approve", "approve with other arguments", "reject"]
        await harness.serve_once(app, run, DAY)
        await check_patient(harness, app, run)
        [answered] = [event for event in await app.log(run) if event.kind == "request.answered"]
        [asked] = [event for event in await app.log(run) if event.kind == "request.opened"]
        assert (answered.time - asked.time).total_seconds() >= DAY / 10**6
