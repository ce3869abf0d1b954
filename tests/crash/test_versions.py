"""Old and new workers in one fleet: runs that the old one cannot read are left to the new one, and none is parked."""

import asyncio
import random  # noqa: TID251 - seeded choices
from pathlib import Path

import pytest

import limpet
from limpet.events import VOCABULARY
from tests.crash.load import make_rows, rows
from tests.crash.processes import Child
from tests.crash.versions import AGENTS, STEPS, become_newer, serve

# Seconds without progress after which the test fails.
PATIENCE = 120


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    found = f"sqlite:///{tmp_path / 'limpet.db'}"
    return request.getfixturevalue("postgres_schema") if request.param == "postgres" else found


class Fleet:
    """An old and a new worker on one store, either of which can be killed and restarted."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder = url, folder
        self._children: dict[bool, Child] = {}

    def start(self, *, newer: bool) -> None:
        """Start one of them."""
        self._children[newer] = Child(serve, self._url, str(self._folder / f"{newer}.log"), newer)
        assert self._children[newer].receive() == "ready"

    def kill(self, *, newer: bool) -> None:
        """Kill one of them."""
        self._children.pop(newer).kill()

    async def send_signal(self, run: str, signal: str, *, newer: bool) -> None:
        """Send a signal to a run through one of them."""
        self._children[newer].send((run, signal))
        assert await asyncio.to_thread(self._children[newer].receive) == signal

    def log(self, *, newer: bool) -> str:
        """Return everything that one of them has logged."""
        path = self._folder / f"{newer}.log"
        return path.read_text() if path.exists() else ""

    def end(self) -> None:
        """Kill both."""
        for child in self._children.values():
            child.kill()


async def until(app: limpet.App, paid: int, url: str) -> None:
    """Wait until this many payments were made."""
    async with asyncio.timeout(PATIENCE):
        with app.store.watch() as watch:
            while len(rows(url)) < paid:
                await watch.changed()


async def test_old_and_new_workers_complete_all_runs_together(
    url: str, tmp_path: Path, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both run, send signals and are killed. Each effect happens once."""
    runs, kills = (200, 40) if full else (20, 3)
    chance = random.Random(18)
    become_newer(monkeypatch.setitem)  # this process reads both versions
    fleet = Fleet(url, tmp_path)
    async with limpet.open(url, agents=AGENTS, worker=False) as app:
        make_rows(url)
        ids = [f"r{number}" for number in range(runs)]
        for run in ids:
            await app.start("mixed", id=run)
        try:
            fleet.start(newer=True)
            await until(app, 1, url)
            fleet.kill(newer=True)
            fleet.start(newer=False)  # it reads events that the newer worker has written
            async with asyncio.timeout(PATIENCE):
                with app.store.watch() as watch:
                    while "claiming no runs of mixed" not in fleet.log(newer=False):
                        await watch.changed()
            fleet.start(newer=True)
            for place in range(STEPS):
                await until(app, runs * (place + 1), url)
                for run in ids:
                    await fleet.send_signal(run, f"go-{place}", newer=chance.random() < 0.5)
                    if chance.random() < kills / (runs * STEPS):
                        newer = chance.random() < 0.5
                        fleet.kill(newer=newer)
                        fleet.start(newer=newer)
            for run in ids:
                assert await (await app.get(run)).result(timeout=f"{PATIENCE}s") == STEPS
        finally:
            fleet.end()
        logs = [event for run in ids for event in await app.log(run)]
        assert [event for event in logs if "operator" in str(event.body)] == []
        stored = [event for run in ids for event in await app.store.read(run)]
        versions = {event.version for event in stored if event.kind == "signal.received"}
        newest = VOCABULARY.kinds["signal.received"].version
        assert versions == {newest - 1, newest}, "one of the workers sent no signal"
        assert "unexpected error" not in fleet.log(newer=False)
        await app.verify()
    assert sorted(rows(url)) == sorted(f"{run}:{place}" for run in ids for place in range(STEPS))
