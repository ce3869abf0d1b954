"""Forks whose processes are killed: they end as undisturbed ones do, and no effect is unapproved or repeated."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.events import AnyBody, Event
from limpet.events import bodies as b
from limpet.service.app import App
from tests.crash.counting_service import Service
from tests.crash.forks import fork, run_parent
from tests.crash.test_requests import KILLED, RequestHarness, run_cases

PARENT = "parent"


class ForkHarness(RequestHarness):
    """A store with an ended run, its forks, and a service for their effects."""

    here: App

    async def run_fork(self, run: str, where: str = "") -> int | None:
        """Fork and run in a process until it has ended and its requests to the service are finished."""
        ended = await self.process(fork, self.service.server_port, PARENT, run, where).ended()
        await asyncio.to_thread(self.service.settle)
        return ended

    async def log(self, run: str) -> list[tuple[Event, AnyBody]]:
        """Return a log, or an empty list if it does not exist."""
        try:
            return [(event, self.here.store.decode(event)) async for event in self.here.store.log(run)]
        except limpet.NotFound:
            return []

    async def own(self, run: str) -> list[AnyBody]:
        """Return the own events of a fork or of its child."""
        return [body for event, body in await self.log(run) if event.run == run]

    async def history(self, run: str) -> list[Any]:
        """Return the history of a fork and its child, without traces of kills."""
        return [history_of(await self.own(each)) for each in (run, f"{run}.forks_helper-1")]

    async def check(self, run: str) -> None:
        """Check that the prefix is shared, every effect was approved and happened once, and no shared step was
        repeated.
        """
        log, parent = await self.log(run), await self.log(PARENT)
        cut = next(place for place, (event, _) in enumerate(log) if event.run == run)
        assert log[:cut] == parent[:cut]
        for name in (run, f"{run}.forks_helper-1"):
            check_approved(await self.own(name))
        applied = {path: times for path, times in self.service.applied.items() if times and f"/{run}" in path}
        mine = (f"/keyed/{run}/c", f"/once/{run}/d", f"/keyed/{run}/unc", f"/keyed/{run}.forks_helper-1/h")
        assert {path for path in applied if path.split("/")[2].partition(".")[0] == run} >= set(mine)
        assert all(applied[path] == 1 for path in applied if path.split("/")[2].partition(".")[0] == run)
        assert self.service.arrived[f"/once/{run}/d"] == 1
        assert not [path for path in self.service.arrived if path.endswith((f"/{run}/a", f"/{run}/b", f"/{run}/unb"))]
        assert not [path for path in self.service.arrived if path.startswith("/read/early/")]


def history_of(log: list[AnyBody]) -> list[Any]:
    """Return completed and decided events once each, without claims and retries."""
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


def check_approved(log: list[AnyBody]) -> None:
    """Check that every effect and every compensation follows its approval."""
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
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ForkHarness]:
    """A harness on each kind of store."""
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'limpet.db'}" if is_sqlite else request.getfixturevalue("postgres_schema")
    with Service() as service:
        async with limpet.open(url, worker=False) as app:
            harness = ForkHarness(url, service)
            harness.here = app
            yield harness
            for process in harness.processes:
                process.kill()


async def test_a_fork_killed_at_any_commit_is_continued(harness: ForkHarness, full: bool) -> None:
    """While forking, asking, running effects, calling, compensating and ending."""
    assert await harness.process(run_parent, harness.service.server_port, PARENT).ended() == 0
    before = [event for event, _ in await harness.log(PARENT)]
    assert await harness.run_fork("undisturbed") == 0
    await harness.check("undisturbed")
    history = await harness.history("undisturbed")
    assert history[0][-1] == ("failed", "another")

    async def trial(place: int) -> int | None:
        run = f"fork-{place}"
        first = await harness.run_fork(run, f"commit:{place}")
        assert (first in (0, KILLED), await harness.run_fork(run)) == (True, 0)
        await harness.check(run)
        assert await harness.history(run) == history
        return first

    ends = await run_cases(range(1, 60) if full else (1, 2, 15, 28, 41), trial)
    print(f"killed at {ends.count(KILLED)} places")
    assert ends.count(KILLED) >= (40 if full else 5)
    assert not full or ends[-1] == 0  # no more places
    assert [event for event, _ in await harness.log(PARENT)] == before
    assert (await harness.here.verify()).runs == 2 * (len(ends) + 2)
