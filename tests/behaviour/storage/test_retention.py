"""Retention in a worker: it deletes old runs in small bites, one worker at a time, and continues after faults."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.clock import FrozenClock, SystemClock
from limpet.engine.worker.duties import Duty, DutyLoop
from limpet.service.doctor import CheckOptions, run_checks
from limpet.service.findings import Finding
from limpet.stores import DutyRow, Store
from limpet.stores.memory import MemoryBackend
from limpet.testing.app import FOREVER, TestApp, TestSettings


@limpet.agent(name="retention_plain")
async def plain(run: limpet.Run, fails: bool) -> str:
    if fails:
        raise ValueError("no")
    return "done"


@limpet.agent(name="retention_caller")
async def caller(run: limpet.Run, waits: bool) -> str:
    found = await run.call(plain, False)
    if waits:
        await run.ask("go on?")
    return found


AGENTS: tuple[limpet.Agent[Any, Any], ...] = (plain, caller)


@asynccontextmanager
async def keeping(keep: limpet.Retention) -> AsyncIterator[TestApp]:
    """Open a test app whose worker deletes old runs."""
    settings = TestSettings()
    settings.worker = limpet.Worker(lease=FOREVER, keep=keep)
    async with TestApp(settings, AGENTS) as app:
        yield app


async def duty_of(store: Store) -> DutyRow:
    """Return the row of the duty."""
    [row] = await store.duties()
    return row


async def until_done(store: Store, after: int = 0) -> DutyRow:
    """Wait until a round is done after a time."""
    async with asyncio.timeout(30):
        while True:
            rows = await store.duties()
            if rows and rows[0].done is not None and rows[0].done > after:
                return rows[0]
            await SystemClock().sleep(2000)


async def ids(app: limpet.App) -> set[str]:
    """Return the ids of all runs; a called run has that of its caller with a suffix."""
    rows = (await app.store.runs(limit=1000)).rows
    return {row.id if row.parent is None else f"{row.parent}-child" for row in rows}


async def let_pass(app: TestApp, days: int) -> None:
    """Let time pass slowly enough for the worker's duties, which no run waits for."""
    for _ in range(2 * days):
        await app.advance("12h")
        for _ in range(30):
            await asyncio.sleep(0)  # noqa: TID251 - a turn


async def test_a_worker_deletes_runs_that_ended_long_ago() -> None:
    """Younger runs, failed runs with a longer age, and families with a run that waits are kept."""
    async with keeping(limpet.Retention(older_than="7d", by_status={"failed": "30d"}, every="1d")) as app:
        await app.start(plain, False, id="old")
        await app.start(plain, True, id="failed")
        await app.start(caller, False, id="family")
        await app.start(caller, True, id="waits")
        await let_pass(app, 6)
        await app.start(plain, False, id="young")
        assert await ids(app) == {"old", "failed", "family", "family-child", "waits", "waits-child", "young"}
        await let_pass(app, 2)
        assert await ids(app) == {"failed", "waits", "waits-child", "young"}
        await let_pass(app, 23)
        assert await ids(app) == {"waits", "waits-child"}
        await app.verify()


async def test_a_worker_rotates_snapshots() -> None:
    """The newest of each run are kept; the run itself is not deleted."""
    async with keeping(limpet.Retention(older_than="90d", snapshots=2, every="1d")) as app:
        await app.start(caller, True, id="r")
        await app.settle()
        async for event in app.store.log("r"):
            if event.seq > 1:
                await app.store.save_snapshot("r", event.head, b"{}")
        assert len(await app.store.snapshots("r")) > 2
        await let_pass(app, 2)
        assert len(await app.store.snapshots("r")) == 2
        assert await ids(app) == {"r", "r-child"}


async def test_a_crash_of_the_worker_does_not_stop_retention() -> None:
    async with keeping(limpet.Retention(older_than="1d", every="1d")) as app:
        await app.start(plain, False, id="old")
        await app.crash()
        await let_pass(app, 3)
        assert await ids(app) == set()


async def test_one_of_several_workers_does_the_round(tmp_path: Path) -> None:
    """All workers have the rule. When one stops, another does the next round."""
    url = f"sqlite:///{tmp_path}/limpet.db"
    keep = limpet.Retention(older_than=0, every="1s")
    worker = limpet.Worker(keep=keep)
    async with limpet.open(url, agents=AGENTS, worker=worker) as other:
        async with limpet.open(url, agents=AGENTS, worker=worker) as one:
            before = await until_done(one.store)
            workers = {each.id for each in await one.workers()}
        assert before.done_by in workers
        assert len(workers) == 2
        await other.run(plain, False, id="a")
        [left] = [each.id for each in await other.workers()]
        for _ in range(2):  # a round may have started before the run ended
            before = await until_done(other.store, after=before.done or 0)
        assert before.done_by == left
        assert await ids(other) == set()


async def test_a_worker_without_agents_can_do_retention_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/limpet.db"
    async with limpet.open(url, agents=AGENTS) as app:
        await app.run(plain, False, id="a")
    async with limpet.open(url, worker=limpet.Worker(keep=limpet.Retention(older_than=0))) as app:
        await until_done(app.store)
        assert await ids(app) == set()


async def test_a_failed_round_is_recorded_and_shown_until_one_succeeds(tmp_path: Path) -> None:
    """The archive is a file: nothing is deleted. `doctor` says why, and when it was last done."""
    url, archive = f"sqlite:///{tmp_path}/limpet.db", tmp_path / "archive"
    archive.write_text("not a folder")
    keep = limpet.Retention(older_than=0, archive=archive, every="1s")
    async with limpet.open(url, agents=AGENTS, worker=False) as quiet:
        await quiet.start(plain, False, id="a")
    async with limpet.open(url, agents=AGENTS) as app:
        await (await app.get("a")).result()
    async with limpet.open(url, agents=AGENTS, worker=limpet.Worker(keep=keep)) as app:
        async with asyncio.timeout(30):
            while not await app.store.duties() or not (await duty_of(app.store)).error:
                await SystemClock().sleep(2000)
        finding = await duty_finding(url)
        assert finding.level == "bad"
        assert "never done; failed since: FileFailed" in finding.message
        assert await ids(app) == {"a"}
        archive.unlink()
        await until_done(app.store)
        assert await ids(app) == set()
        assert (archive / "a.zip").exists()
        finding = await duty_finding(url)
        assert finding.level == "ok"
        [worker] = await app.workers()
        assert worker.id in finding.message
        assert worker.duties.keys() == {"retention"}


async def duty_finding(url: str) -> Finding:
    """Return what `doctor` says about duties."""
    found = await run_checks(limpet.open_store(url), SystemClock(), CheckOptions())
    [finding] = [each for each in found if each.what == "duties"]
    return finding


async def test_doctor_reports_a_duty_that_no_worker_does_any_more(tmp_path: Path) -> None:
    clock, url = FrozenClock(), f"sqlite:///{tmp_path}/limpet.db"
    async with limpet.open_store(url, clock=clock) as store:
        await store.take_duty("retention", "w1", lease=1000, every=60_000_000)
        await store.end_duty("retention", "w1", is_done=True)
    clock.advance("1h")
    found = await run_checks(limpet.open_store(url, clock=clock), clock, CheckOptions())
    [finding] = [each for each in found if each.what == "duties"]
    assert (finding.level, "overdue" in finding.message) == ("warn", True)


class Bites:
    """A duty whose bites a test releases one by one."""

    def __init__(self) -> None:
        self.done = 0
        self.go = asyncio.Semaphore(0)
        self.waits = asyncio.Event()

    async def __call__(self) -> AsyncIterator[None]:
        for _ in range(3):
            self.waits.set()
            await self.go.acquire()
            self.waits.clear()
            self.done += 1
            yield


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with Store(MemoryBackend(SystemClock())) as opened:
        yield opened


async def test_a_worker_that_stops_in_the_middle_releases_the_duty(store: Store) -> None:
    """Another worker takes it at once, although the lease of the first is an hour."""
    bites = Bites()
    loop = DutyLoop(Duty("tidy", 3_600_000_000, bites), store, SystemClock(), "w1", 3_600_000_000)
    task = asyncio.create_task(loop.run())
    await bites.waits.wait()
    assert (await duty_of(store)).worker == "w1"
    task.cancel()
    await asyncio.wait([task])
    await loop.release()
    assert await duty_of(store) == DutyRow(name="tidy", every=3_600_000_000)
    assert (await store.take_duty("tidy", "w2", lease=1000, every=1)).taken


async def test_a_worker_whose_lease_was_lost_stops_its_round(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """It was suspended for long; another worker has taken the duty meanwhile, and the first leaves its row alone."""
    bites = Bites()
    loop = DutyLoop(Duty("tidy", 3_600_000_000, bites), store, SystemClock(), "w1", 1)
    task = asyncio.create_task(loop.run())
    await bites.waits.wait()
    assert (await store.take_duty("tidy", "w2", lease=3_600_000_000, every=1)).taken
    before = await duty_of(store)
    for _ in range(3):
        bites.go.release()
    async with asyncio.timeout(10):
        while "another worker continues the duty" not in caplog.text:
            await SystemClock().sleep(1000)
    assert bites.done == 1
    assert await duty_of(store) == before
    task.cancel()
    await asyncio.wait([task])
    await loop.release()
    assert await duty_of(store) == before


@pytest.mark.parametrize("wrong", [{"every": "10ms"}, {"snapshots": 0}, {"by_status": {"open": "1d"}}])
def test_an_invalid_rule_is_refused_when_it_is_written(wrong: dict[str, Any]) -> None:
    with pytest.raises(limpet.LimpetError):
        limpet.Retention(older_than="30d", **wrong)
