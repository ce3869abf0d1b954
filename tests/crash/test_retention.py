"""A worker is killed at every place of a round of retention: another worker continues, and nothing is lost."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

import limpet
from limpet.clock import SECOND, SystemClock
from limpet.engine.definitions.agents import Agent
from limpet.ids import RandomIds
from limpet.service.app import App
from limpet.service.bundles import read_bundle
from limpet.service.settings import Settings
from limpet.stores import Store
from tests.crash.retention import tidy
from tests.crash.test_requests import KILLED, Process

# Places at which a worker is killed: every n-th database statement.
STATEMENTS, SOME, ALL = 420, 61, 3
FAMILIES = ("plain-0", "plain-1", "plain-2", "calls-0", "calls-1", "big-0", "big-1")
KEPT = {"young", "asks", "forked", "forked-again"}


@limpet.agent(name="retained_child")
async def child(run: limpet.Run, order: str) -> str:
    return order * 20_000


@limpet.agent(name="retained")
async def parent(run: limpet.Run, order: str) -> str:
    """Return something large, call an agent, or wait for a person."""
    if order == "calls":
        await run.call(child, "x")
    if order == "asks":
        await run.ask("go on?")
    return order * 20_000 if order == "big" else order


AGENTS: list[Agent[str, str]] = [parent, child]


async def fill(url: str) -> None:
    """Make runs that ended long ago, and others that must be kept: young ones, waiting ones and their relatives."""
    async with app_at(url, days_ago=10) as app:
        for name in FAMILIES:
            await app.run(parent, name.partition("-")[0], id=name)
        await app.run(parent, "plain", id="forked")
        await app.start(parent, "asks", id="asks")
        while (await app.info("asks")).status != "waiting":
            await SystemClock().sleep(1000)
    async with app_at(url, days_ago=0) as app:
        await app.run(parent, "plain", id="young")
        again = await app.fork("forked", seq=1, id="forked-again")
        await again.result()


def app_at(url: str, *, days_ago: int) -> App:
    """Return an app in whose time everything happens some days ago."""
    clock = Past(days_ago)
    settings = Settings(limpet.open_store(url, clock=clock), clock, RandomIds(clock))
    settings.worker = limpet.Worker(lease="1h")
    return App(settings, AGENTS)


class Past(SystemClock):
    """The system's clock, some days late."""

    def __init__(self, days: int) -> None:
        super().__init__()
        self._days = days

    def now(self) -> int:
        return super().now() - self._days * 86_400 * SECOND


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A filled store that no process has open."""
    folder = tmp_path_factory.mktemp("retention")
    asyncio.run(fill(f"sqlite:///{folder}/limpet.db"))
    return folder


@pytest.mark.parametrize("archives", [False, True], ids=["without archive", "with archive"])
async def test_another_worker_continues_after_a_kill_at_any_place(
    template: Path, tmp_path: Path, *, archives: bool, full: bool
) -> None:
    """The killed worker holds the duty; the next one does the round by itself after the lease."""
    if not archives and not full:
        pytest.skip("runs with --full (make crash); the round on PostgreSQL has no archive either")
    killed = 0
    for place in range(1, STATEMENTS, ALL if full else SOME):
        folder = Path(shutil.copytree(template, tmp_path / str(place)))
        url, archive = f"sqlite:///{folder}/limpet.db", str(folder / "archive") if archives else ""
        doomed = Process(tidy, url, archive, f"statements:{place}")
        async with limpet.open_store(url) as store:
            ended = asyncio.create_task(doomed.ended())
            done = asyncio.create_task(until_tidy(store))
            await asyncio.wait([ended, done], return_when="FIRST_COMPLETED")
            doomed.kill()
            killed += await ended == KILLED and not done.done()
            await check_families(store)
            second = Process(tidy, url, archive, "")
            await done
            second.send("go")
            assert await second.ended() == 0
        await check(url, archive)
        shutil.rmtree(folder)
    assert killed > 3


async def test_a_round_on_postgres_is_completed_by_one_worker_after_the_other(postgres_schema: str) -> None:
    """Each worker but the last is killed a little later than the one before, on the same store."""
    await fill(postgres_schema)
    async with limpet.open_store(postgres_schema) as store:
        for place in range(10, 160, 30):
            doomed = Process(tidy, postgres_schema, "", f"queries:{place}")
            done = asyncio.create_task(until_tidy(store))
            await asyncio.wait([done, asyncio.create_task(doomed.ended())], return_when="FIRST_COMPLETED")
            doomed.kill()
            done.cancel()
            await check_families(store)
        last = Process(tidy, postgres_schema, "", "")
        await until_tidy(store)
        last.send("go")
        assert await last.ended() == 0
    await check(postgres_schema, "")


async def until_tidy(store: Store) -> None:
    """Wait until a round is done."""
    async with asyncio.timeout(60):
        while not any(duty.done is not None for duty in await store.duties()):
            await SystemClock().sleep(5000)


async def check_families(store: Store) -> None:
    """Check that no run is half deleted, and that no run lost one that it needs."""
    rows = {row.id: row for row in (await store.runs(limit=1000)).rows}
    assert rows.keys() >= KEPT
    for row in rows.values():
        assert row.parent is None or row.parent in rows
        assert row.origin is None or row.origin in rows
        assert [event.seq async for event in store.log(row.id)] == list(range(1, row.seq + 1))
        assert await store.check_rows(row.id) == []
    assert {f"calls-{n}" for n in (0, 1)} & rows.keys() == {row.parent for row in rows.values() if row.parent}
    assert await store.check_strays() == []


async def check(url: str, archive: str) -> None:
    """Check that exactly the runs to keep are left, that the duty is free, and that the archive has the others."""
    async with limpet.open(url, worker=False) as app:
        assert {each.id for each in await app.runs(last=1000)} == KEPT
        [duty] = await app.store.duties()
        assert (duty.worker, duty.error) == (None, "")
        await app.verify()
    if archive:
        names = {path.stem for path in Path(archive).glob("*.zip")}
        assert names >= set(FAMILIES)
        for path in Path(archive).glob("*.zip"):
            await read_bundle(path)
        listed = [json.loads(line)["run"] for line in (Path(archive) / "pruned.jsonl").read_text().splitlines()]
        assert sorted(listed) == sorted(names)
