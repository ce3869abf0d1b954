"""Kills from outside cost innocent runs nothing but time; a run that kills its workers is found, and paroled."""

import asyncio
import random  # noqa: TID251 - how long each life is
from pathlib import Path

import pytest

import limpet
from limpet.clock import SECOND, SystemClock
from tests.crash.load import make_rows, rows
from tests.crash.processes import Child
from tests.crash.quarantine_agents import AGENTS, STEPS, serve

PAROLE = ("1s",) * 3
# Seconds after which nothing comes any more.
PATIENCE = 120


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of its own."""
    found = f"sqlite:///{tmp_path / 'limpet.db'}"
    return request.getfixturevalue("postgres_schema") if request.param == "postgres" else found


async def make(app: limpet.App, url: str, runs: int) -> None:
    """Start innocent runs; their payments go to a table of the user's own."""
    make_rows(url)
    for number in range(runs):
        await app.start("innocent", id=f"r{number}")


async def until_completed(app: limpet.App, runs: int) -> None:
    """Wait until so many runs have completed."""
    async with asyncio.timeout(PATIENCE):
        with app.store.watch() as watch:
            while len(await app.runs(status="completed", last=1000)) < runs:
                await watch.changed()


async def quarantines(app: limpet.App, run: str) -> list[int]:
    """The events with which a run was quarantined."""
    log = await app.log(run)
    return [event.seq for event in log if event.kind == "run.waiting" and "quarantined" in str(event.body)]


async def test_kills_from_outside_cost_nothing_but_time(url: str, full: bool) -> None:
    """One worker with many runs is killed again and again; when that is over, all complete, each paid once."""
    few = (60, 12) if url.startswith("sqlite") else (20, 4)
    runs, kills = (300, 200) if full else few
    chance = random.Random(7)
    async with limpet.open(url, agents=AGENTS, worker=False) as app:
        await make(app, url, runs)
        for _ in range(kills):
            child = Child(serve, url, runs, PAROLE)
            assert child.hear() == "ready"
            await SystemClock().sleep(SECOND // 2 + chance.randrange(SECOND // 5))
            child.kill()
        before = {run.id: len(await app.log(run.id)) for run in await app.runs(last=1000)}
        child = Child(serve, url, runs, PAROLE)
        await until_completed(app, runs)
        child.kill()
        seen = {run: await quarantines(app, run) for run in before}
        print(f"{runs} runs, {kills} kills, {sum(map(len, seen.values()))} quarantines")
        assert all(seq <= before[run] for run, seqs in seen.items() for seq in seqs), "quarantined in the calm"
    assert sorted(rows(url)) == sorted(f"r{number}:{place}" for number in range(runs) for place in range(STEPS))


class Supervisor:
    """Starts a worker, and starts it again whenever it has died."""

    def __init__(self, url: str, concurrency: int) -> None:
        self._words = (serve, url, concurrency, PAROLE * 10)
        self._child = Child(*self._words)
        self._stopping = False
        self.deaths = 0

    async def run(self) -> None:
        """Until it is stopped."""
        while await asyncio.to_thread(self._child.end) is not None and not self._stopping:
            self.deaths += 1
            self._child = Child(*self._words)

    def stop(self) -> None:
        """Kill the worker for good."""
        self._stopping = True
        self._child.kill()


async def test_a_run_that_kills_its_worker_is_quarantined_and_paroled(url: str, tmp_path: Path, full: bool) -> None:
    """The others go on meanwhile; once its cause is mended, it goes on by itself."""
    runs, mended = 300 if full else 20, tmp_path / "mended"
    async with limpet.open(url, agents=AGENTS, worker=False) as app:
        await app.start("killer", str(mended), id="killer")
        await make(app, url, runs)
        supervisor = Supervisor(url, runs + 1)
        supervising = asyncio.create_task(supervisor.run())
        await until_completed(app, runs)
        async with asyncio.timeout(PATIENCE):
            with app.store.watch() as watch:
                while not await quarantines(app, "killer"):
                    await watch.changed()
        mended.touch()
        await until_completed(app, runs + 1)
        supervisor.stop()
        await supervising
        assert [await quarantines(app, f"r{number}") for number in range(runs)] == [[]] * runs
        print(f"{runs} runs, {supervisor.deaths} deaths")
    assert len(rows(url)) == runs * STEPS + 1
