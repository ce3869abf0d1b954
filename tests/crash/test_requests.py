"""Requests, notifications, calls and handoffs whose processes are killed, and answers that are raced."""

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
from tests.crash.requests import Shifted, Verdict, agents_of, answer, drive, opened, race, visit

get_context("forkserver").set_forkserver_preload(["tests.crash.jobs", "tests.crash.agents", "tests.crash.requests"])

T = TypeVar("T")
KILLED = -signal.SIGKILL
AT_ONCE = 4
HOUR = microseconds("1h")
DAY = microseconds("1d")


class Process(Child):
    """One that can be killed."""

    @property
    def has_ended(self) -> bool:
        """Whether it has, by itself or not."""
        return self._process.exitcode is not None

    def kill(self) -> None:
        """Unless it has ended."""
        if not self.has_ended and self._process.pid is not None:
            with suppress(ProcessLookupError):  # just now
                os.kill(self._process.pid, signal.SIGKILL)

    async def ended(self) -> int | None:
        """How it ended; others go on meanwhile."""
        await asyncio.to_thread(wait, [self._process.sentinel], 60)
        assert self._process.exitcode is not None, "it went on and on"
        return self._process.exitcode


class Desk:
    """A store, a service that runs act upon, and an app that starts, answers and looks, at a time of its own."""

    def __init__(self, url: str, service: Service) -> None:
        self.url, self.service = url, service
        self.processes: list[Process] = []

    def app(self, clock: Shifted) -> App:
        """An app without a worker."""
        settings = Settings(limpet.open_store(self.url, clock=clock), clock, RandomIds(SystemClock()))
        settings.worker = None
        return App(settings)

    def process(self, job: Job, *arguments: Any) -> Process:
        """A process that is ready."""
        process = Process(job, self.url, *arguments)
        self.processes.append(process)
        assert process.hear() == "ready"
        return process

    async def visited(self, app: App, run: str, off: int, where: str = "") -> None:
        """A process serves a run until nothing more is to be done at this time, or dies there; then it is killed."""
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
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    """On each kind of store."""
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'limpet.db'}" if is_sqlite else request.getfixturevalue("postgres_schema")
    async with limpet.open_store(url):
        pass
    with Service() as service:
        desk = Desk(url, service)
        yield desk
        for process in desk.processes:
            process.kill()


async def each(cases: Iterable[T], trial: Callable[[T], Coroutine[Any, Any, Any]]) -> list[Any]:
    """Try all cases, a few at once; what came of them."""
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
    """How an outcome comes about: what happens while no process is there, and then two come, or one if it is short.

    The first dies right after the first thing that it writes, the other one when nothing is left to be done.
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


class Play:
    """A script on its stage."""

    def __init__(self, desk: Desk, outcome: str) -> None:
        self.desk, self.outcome, self.script = desk, outcome, SCRIPTS[outcome]
        self.run = outcome.replace(": ", "-").replace(", ", "-").replace(" ", "-")
        self.clock = Shifted()

    async def play(self) -> None:
        """To its end; it comes out as it should, and nothing was done twice."""
        async with self.desk.app(self.clock) as app:
            await app.start(agents_of(self.run)["asker"], self.script.kind, id=self.run)
            for number, part in enumerate(self.script.parts, 1):
                for act in part:
                    await self.do(app, act)
                await self.desk.visited(app, self.run, self.clock.off, FIRST_APPEND)
                if number != self.script.short:
                    await self.desk.visited(app, self.run, self.clock.off)
            await self.check(app)

    async def do(self, app: App, act: Act) -> None:
        """Something happens while no process is there."""
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
        """What the log says, what the service has seen."""
        await app.verify(self.run)
        assert await app.store.check_rows(self.run) == []
        found = summarize(await app.log(self.run))
        assert outcome_of(found) == self.outcome
        applied = self.desk.service.applied
        assert applied[f"/keyed/{self.run}/begin"] == 1
        acted = applied[f"/keyed/{self.run}/act"] + applied[f"/keyed/{self.run}/pay"]
        last = found.last
        if found.end == "run.completed":
            assert last is not None
            assert found.output == ("default" if last.status == "expired" else last.said)
            assert acted == (self.script.kind != "approval" or last.status == "approved")
        else:
            assert acted == 0


async def test_every_outcome_with_real_kills(desk: Desk, full: bool) -> None:
    """All that can come of a request, each with processes that are killed about its decision and after it."""
    assert set(SCRIPTS) == set(OUTCOMES)
    await each(SCRIPTS if full else SLICE, lambda outcome: Play(desk, outcome).play())


# Raced answers


async def test_one_of_two_answers_wins(desk: Desk, full: bool) -> None:
    """2,000 pairs from two processes with --full, else 50: the run goes on with the winner's, the loser is told so."""
    pairs, batch = (2000, 200) if full else (50, 50)
    raced, names = agents_of("race")["raced"], ("ann", "bob")
    barrier = get_context("forkserver").Barrier(2)
    racers = [desk.process(race, barrier, name) for name in names]
    wins = dict.fromkeys(names, 0)
    async with opened(desk.url, [raced]) as app:
        for first in range(0, pairs, batch):
            handles = [await app.start(raced, place, id=f"r{first + place}") for place in range(batch)]
            requests = await _all_asked(app, batch)
            for racer in racers:
                racer.tell([requests[handle.id] for handle in handles])
            heard = [await asyncio.to_thread(racer.hear) for racer in racers]
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
        racer.tell([])
        assert await racer.ended() == 0
    print(f"{pairs} pairs: {wins}")


async def _all_asked(app: App, count: int) -> dict[str, str]:
    """The request of each run, once there are so many."""
    async with asyncio.timeout(60):
        with app.store.watch() as watch:
            while len(rows := await app.store.requests(RequestFilter())) < count:
                await watch.changed()
    return {row.run: row.id for row in rows}


# Every boundary


class Parent:
    """Whoever is asked: answers what was told, once it was told."""

    def __init__(self, desk: Desk, app: App) -> None:
        self.desk, self.app = desk, app

    async def answer_all(self) -> None:
        """For ever."""
        with self.app.store.watch() as watch:
            while True:
                for request in await self.app.inbox(to="parent"):
                    if self.desk.service.arrived[f"/keyed/told/{request.id}"]:
                        await self._answer(request)
                await watch.changed()

    async def _answer(self, request: limpet.Request) -> None:
        if request.kind == "approval":
            await self.app.approve(request, by="parent")
        else:
            await self.app.answer(request, Verdict(is_fine=True, why="indeed"), by="parent")


async def check_clerk(desk: Desk, app: App, run: str) -> None:
    """Two requests, each decided once and told with one key; one child of each kind; everything done once."""
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
        assert desk.service.applied[f"/keyed/told/{request}"] == 1
    for path in (f"{run}/begin", f"{run}/pay", f"{children['checker']}/begin", f"{children['closer']}/act"):
        assert desk.service.applied[f"/keyed/{path}"] == 1
    for each in (run, *children.values(), *notified):
        await app.verify(each)
        assert await app.store.check_rows(each) == []
        assert (await app.store.get(each)).status == "completed"
    assert await app.inbox(run=run) == []


async def test_killed_about_every_commit_of_a_handoff(desk: Desk, full: bool) -> None:
    """Of asking, telling, being answered, calling and handing over: the next process goes on, and nothing is lost."""

    async def trial(place: int) -> int | None:
        run = f"run-{place}"
        first, second = [await life(run, where) for where in (f"commit:{place}", "")]
        assert (first in (0, KILLED), second) == (True, 0)
        await check_clerk(desk, app, run)
        return first

    async def life(run: str, where: str) -> int | None:
        ended = await desk.process(drive, desk.service.server_port, run, where).ended()
        await asyncio.to_thread(desk.service.settle)
        return ended

    async with desk.app(Shifted()) as app:
        answering = asyncio.create_task(Parent(desk, app).answer_all())
        try:
            ends = await each(range(1, 80) if full else (5, 12, 19, 26), trial)
        finally:
            answering.cancel()
            with suppress(asyncio.CancelledError):
                await answering
    print(f"killed at {ends.count(KILLED)} places")
    assert ends.count(KILLED) >= (50 if full else 4)
    assert not full or ends[-1] == 0  # there are no more places


@pytest.mark.parametrize("place", [1, 2])
async def test_whoever_answers_is_killed(desk: Desk, place: int) -> None:
    """Before the commit: nobody has answered. After it: that stands. Either way it is answered once, and used once."""
    run = f"run-{place}"
    async with desk.app(Shifted()) as app:
        await app.start(agents_of(run)["patient"], "o1", id=run)
        await desk.visited(app, run, 0)
        dying = desk.process(answer, run, 0, f"commit:{place}")
        dying.hear()
        assert await dying.ended() == KILLED
        assert len(await app.inbox(run=run)) == (place == 1)
        if place == 1:
            assert await desk.process(answer, run, 0, "").ended() == 0
        await desk.visited(app, run, 0)
        await check_patient(desk, app, run)


async def check_patient(desk: Desk, app: App, run: str) -> None:
    """Its result, one answer, and no step twice."""
    assert (await app.result(run, timeout=0)).value == "o1"
    kinds = [event.kind for event in await app.log(run)]
    assert [kinds.count(kind) for kind in ("request.opened", "request.answered", "step.started")] == [1, 1, 4]
    arrived = {path: times for path, times in desk.service.arrived.items() if path.split("/")[2] == run}
    assert arrived == {
        f"/keyed/{run}/begin": 1,
        f"/read/{run}/look": 1,
        f"/keyed/{run}/pay": 1,
        f"/keyed/{run}/act": 1,
    }
    await app.verify(run)


async def test_an_approval_is_found_a_day_after_everything_was_killed(desk: Desk) -> None:
    """By another process, with all that led to it; a third one goes on from there, and no step is taken again."""
    run, clock = "run", Shifted()
    async with desk.app(clock) as app:
        await app.start(agents_of(run)["patient"], "o1", id=run)
        await desk.visited(app, run, 0)
        clock.off += DAY
        answering = desk.process(answer, run, DAY, "")
        args, context = answering.hear()
        assert await answering.ended() == 0
        assert args == {"run": run, "said": "o1"}
        assert (context.agent, context.input, context.goal) == ("patient", '"o1"', "settle o1")
        assert [(step.number, step.tool, step.status) for step in context.did] == [
            (1, "people_begin", "completed"),
            (2, "people_look", "completed"),
        ]
        assert [(made.chosen, made.because) for made in context.decisions] == [('"whole"', "it arrived broken")]
        assert (context.facts, context.spent["steps"], context.left_out) == ({"customer": '"ann"'}, 2, 0)
        assert [choice.say for choice in context.choices] == ["approve", "approve with other arguments", "reject"]
        await desk.visited(app, run, DAY)
        await check_patient(desk, app, run)
        [answered] = [event for event in await app.log(run) if event.kind == "request.answered"]
        [asked] = [event for event in await app.log(run) if event.kind == "request.opened"]
        assert answered.time - asked.time >= DAY
