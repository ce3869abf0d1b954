"""Forks whose processes are killed: they end as others do, nothing is done unasked or twice, the run stays as it is."""

import asyncio
from collections.abc import AsyncIterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.events import AnyBody, Event
from limpet.events import bodies as b
from limpet.service.app import App
from tests.crash.counting_service import Service
from tests.crash.forks import begin, fork
from tests.crash.test_requests import KILLED, Desk, each

PRELOAD = ["tests.crash.jobs", "tests.crash.agents", "tests.crash.requests", "tests.crash.prunes", "tests.crash.forks"]
get_context("forkserver").set_forkserver_preload(PRELOAD)

PARENT = "parent"


class Branches(Desk):
    """A store with a run that has ended, its forks, and a service that all of them act upon."""

    here: App

    async def branch(self, run: str, where: str = "") -> int | None:
        """Make a fork in a process, and drive it, until that has ended, and everything that it sent is done."""
        ended = await self.process(fork, self.service.server_port, PARENT, run, where).ended()
        await asyncio.to_thread(self.service.settle)
        return ended

    async def log(self, run: str) -> list[tuple[Event, AnyBody]]:
        """What is in a log; nothing if there is none."""
        try:
            return [(event, self.here.store.decode(event)) async for event in self.here.store.log(run)]
        except limpet.NotFound:
            return []

    async def own(self, run: str) -> list[AnyBody]:
        """What a fork did by itself, or a run that it called."""
        return [body for event, body in await self.log(run) if event.run == run]

    async def story(self, run: str) -> list[Any]:
        """How a fork went, and whom it called, however often its process was killed."""
        return [story_of(await self.own(each)) for each in (run, f"{run}.forks_helper-1")]

    async def check(self, run: str) -> None:
        """Its beginning is that of the other one; nothing was done unasked, nothing twice, nothing that was shared."""
        log, parent = await self.log(run), await self.log(PARENT)
        cut = next(place for place, (event, _) in enumerate(log) if event.run == run)
        assert log[:cut] == parent[:cut]
        for name in (run, f"{run}.forks_helper-1"):
            check_allowed(await self.own(name))
        applied = {path: times for path, times in self.service.applied.items() if times and f"/{run}" in path}
        mine = (f"/keyed/{run}/c", f"/once/{run}/d", f"/keyed/{run}/unc", f"/keyed/{run}.forks_helper-1/h")
        assert {path for path in applied if path.split("/")[2].partition(".")[0] == run} >= set(mine)
        assert all(applied[path] == 1 for path in applied if path.split("/")[2].partition(".")[0] == run)
        assert self.service.arrived[f"/once/{run}/d"] == 1
        assert not [path for path in self.service.arrived if path.endswith((f"/{run}/a", f"/{run}/b", f"/{run}/unb"))]
        assert not [path for path in self.service.arrived if path.startswith("/read/early/")]


def story_of(log: list[AnyBody]) -> list[Any]:
    """What was done and decided, once each; who claimed and what was tried again is left out."""
    found: list[Any] = []
    names: dict[str, str] = {}
    for body in log:
        match body:
            case b.StepCompleted() | b.StepResolved(outcome="applied"):
                found.append((body.number, body.output and body.output.value()))
            case b.RequestOpened():
                assert body.name not in names.values(), f"{body.name} is asked twice"
                names[body.request] = body.name
            case b.RequestAnswered():
                found.append((names[body.request], body.decision))
            case b.CompensationCompleted() | b.AgentReturned():
                found.append((type(body).__name__, getattr(body, "number", None), getattr(body, "outcome", None)))
            case b.RunFailed():
                found.append(("failed", body.failure.message))
            case _:
                pass
    return found


def check_allowed(log: list[AnyBody]) -> None:
    """Every effect, and every undoing, comes after a yes to just that."""
    asked: dict[str, b.RequestOpened] = {}
    allowed: set[str] = set()
    for body in log:
        match body:
            case b.RequestOpened():
                asked[body.request] = body
            case b.RequestAnswered() if body.decision in ("approved", "answered"):
                allowed.add(asked[body.request].name)
            case b.StepStarted() if body.effect != "none":
                assert f"{body.name}/approval#1" in allowed, body
            case b.CompensationStarted():
                assert f"undo/{body.number}/approval#1" in allowed, body
            case _:
                pass


@pytest.fixture(params=["sqlite", "postgres"])
async def branches(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Branches]:
    """On each kind of store."""
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'limpet.db'}" if is_sqlite else request.getfixturevalue("postgres_schema")
    with Service() as service:
        async with limpet.open(url, worker=False) as app:
            branches = Branches(url, service)
            branches.here = app
            yield branches
            for process in branches.processes:
                process.kill()


async def test_killed_about_every_commit_of_a_fork(branches: Branches, full: bool) -> None:
    """Of making it, asking, being allowed, doing, calling, undoing and ending: the next process goes on."""
    assert await branches.process(begin, branches.service.server_port, PARENT).ended() == 0
    before = [event for event, _ in await branches.log(PARENT)]
    assert await branches.branch("undisturbed") == 0
    await branches.check("undisturbed")
    story = await branches.story("undisturbed")
    assert story[0][-1] == ("failed", "another")

    async def trial(place: int) -> int | None:
        run = f"fork-{place}"
        first = await branches.branch(run, f"commit:{place}")
        assert (first in (0, KILLED), await branches.branch(run)) == (True, 0)
        await branches.check(run)
        assert await branches.story(run) == story
        return first

    ends = await each(range(1, 60) if full else (1, 2, 15, 28, 41), trial)
    print(f"killed at {ends.count(KILLED)} places")
    assert ends.count(KILLED) >= (40 if full else 5)
    assert not full or ends[-1] == 0  # there are no more places
    assert [event for event, _ in await branches.log(PARENT)] == before
    assert (await branches.here.verify()).runs == 2 * (len(ends) + 2)
