"""Kills from outside cost innocent runs only time; a run that kills its workers is quarantined and retried."""

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
# Seconds without progress after which the test fails.
PATIENCE = 120


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    found = f"sqlite:///{tmp_path / 'limpet.db'}"
    return request.getfixturevalue("postgres_schema") if request.param == "postgres" else found


async def start_innocent_runs(app: limpet.App, url: str, runs: int) -> None:
    """Start innocent runs, whose payments go to a table of the user."""
    make_rows(url)
    for number in range(runs):
        await app.start("innocent", id=f"r{number}")


async def until_completed(app: limpet.App, runs: int) -> None:
    """Wait until this many runs have completed."""
    async with asyncio.timeout(PATIENCE):
        with app.store.watch() as watch:
            while len(await app.runs(status="completed", last=1000)) < runs:
                await watch.changed()


async def quarantines(app: limpet.App, run: str) -> list[int]:
    """Return the sequences of the events that quarantined a run."""
    log = await app.log(run)
    return [event.seq for event in log if event.kind == "run.waiting" and "quarantined" in str(event.body)]


async def test_innocent_runs_complete_after_many_kills_of_their_worker(url: str, full: bool) -> None:
    """One worker with many runs is killed repeatedly; afterwards all complete, and each payment is made once."""
    runs, kills = (300, 200) if full else (20, 4)
    chance = random.Random(7)
    async with limpet.open(url, agents=AGENTS, worker=False) as app:
        await start_innocent_runs(app, url, runs)
        for _ in range(kills):
            child = Child(serve, url, runs, PAROLE)
            assert child.receive() == "ready"
            await SystemClock().sleep(SECOND // 2 + chance.randrange(SECOND // 5))
            child.kill()
        before = {run.id: len(await app.log(run.id)) for run in await app.runs(last=1000)}
        child = Child(serve, url, runs, PAROLE)
        await until_completed(app, runs)
        child.kill()
        seen = {run: await quarantines(app, run) for run in before}
        print(f"{runs} runs, {kills} kills, {sum(map(len, seen.values()))} quarantines")
        assert all(seq <= before[run] for run, seqs in seen.items() for seq in seqs), "quarantined after the last kill"
    assert sorted(rows(url)) == sorted(f"r{number}:{place}" for number in range(runs) for place in range(STEPS))


class Supervisor:
    """Starts a worker, and restarts it whenever it has died."""

    def __init__(self, url: str, concurrency: int) -> None:
        self._words = (serve, url, concurrency, PAROLE * 10)
        self._child = Child(*self._words)
        self._stopping = False
        self.deaths = 0

    async def run(self) -> None:
        """Supervise until stopped."""
        while await asyncio.to_thread(self._child.end) is not None and not self._stopping:
            self.deaths += 1
            self._child = Child(*self._words)

    def stop(self) -> None:
        """Kill the worker and do not restart it."""
        self._stopping = True
        self._child.kill()


async def test_a_run_that_kills_its_worker_is_quarantined_and_retried(url: str, tmp_path: Path, full: bool) -> None:
    """Other runs continue meanwhile. Once its cause is fixed, the run completes without an operator."""
    runs, mended = 300 if full else 20, tmp_path / "mended"
    async with limpet.open(url, agents=AGENTS, worker=False) as app:
        await app.start("killer", str(mended), id="killer")
        await start_innocent_runs(app, url, runs)
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
