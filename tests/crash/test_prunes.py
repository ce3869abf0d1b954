"""Pruning while workers run and all processes are killed: no live run is lost, and everything stays intact."""

import asyncio
import json
import random  # noqa: TID251 - where the kill falls
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import apsw
import psycopg
import pytest

import limpet
from limpet.clock import SystemClock
from limpet.events import AnyBody, Event
from limpet.events import bodies as b
from limpet.service.app import App
from limpet.service.bundles import Bundle, read_bundle
from limpet.state import ENDED
from limpet.stores import RunFilter, RunRow
from limpet.stores.postgres.connection import Address
from tests.crash.agents import serve
from tests.crash.processes import Job
from tests.crash.prunes import Folder, fork, keeper, prune, work
from tests.crash.test_requests import KILLED, Process
from tests.crash.test_runs import RunHarness, harness

__all__ = ["harness"]

JOBS: tuple[Job, ...] = (work, work, prune, prune, fork)
KINDS = ("plain", "asks", "fails", "calls")
NAMES = [f"r{number}" for number in range(6)]
REFUSED = (limpet.NotFound, limpet.WrongState, limpet.AlreadyAnswered, limpet.Expired)


class Life(NamedTuple):
    """One of several runs that have used a run id, in turn."""

    run: str
    life: str
    kind: str


class PruneHarness:
    """A store, processes that work, prune and fork, and an app that starts, answers and resumes runs."""

    def __init__(self, url: str, folder: Path, app: App, seed: int) -> None:
        self.url, self.folder, self.app, self.store = url, folder, app, app.store
        self.is_sqlite = url.startswith("sqlite")
        self.chance = random.Random(seed)
        self.processes: dict[Job, list[Process]] = {job: [] for job in JOBS}
        self.deaths: Counter[str] = Counter()
        self.lives: list[Life] = []
        self.now: dict[str, Life] = {}
        """The last acknowledged run per id."""
        self.resumed: set[tuple[str, str]] = set()
        """Resumed runs, by id and life."""

    # Processes

    def begin(self, job: Job, *, doomed: bool) -> None:
        """Start a process; a doomed one is usually killed in the middle of an operation."""
        middle = "statements" if self.is_sqlite else "queries"
        where = f"{middle}:{self.chance.randint(20, 900)}" if doomed and self.chance.random() < 0.7 else ""
        self.processes[job].append(Process(job, self.url, str(self.folder), where))

    async def replace_killed(self) -> None:
        """Start a new process for each one that was killed."""
        for job in set(JOBS):
            for process in self.processes[job][:]:
                if process.has_ended:
                    assert await process.ended() == KILLED
                    self.processes[job].remove(process)
                    self.deaths[job.__name__] += 1
            while len(self.processes[job]) < JOBS.count(job):
                self.begin(job, doomed=True)

    def kill(self) -> None:
        """Kill a random process."""
        self.chance.choice(self.processes[self.chance.choice(JOBS)]).kill()

    async def stop_jobs(self, *jobs: Job) -> None:
        """Stop the processes of these jobs, and wait for them."""
        for job in jobs:
            for process in self.processes.pop(job):
                with suppress(OSError):  # it was killed just now
                    process.send("go")
                assert await process.ended() in (0, KILLED)
            self.processes[job] = []

    # People

    async def start(self) -> None:
        """Start a run under an id that is free or was pruned."""
        life = Life(self.chance.choice(NAMES), f"l{len(self.lives)}", self.chance.choice(KINDS))
        with suppress(limpet.IdConflict):
            await self.app.start(keeper, f"{life.life} {life.kind}", id=life.run)
            self.lives.append(life)
            self.now[life.run] = life

    async def help(self) -> None:
        """Approve every request, fix the cause of failures, and resume failed and quarantined runs."""
        for request in await self.app.inbox():
            with suppress(*REFUSED):
                await self.app.approve(request, by="ann")
        for row in (await self.store.runs(RunFilter(status=("failed", "waiting")))).rows:
            if row.status == "failed" or "operator:quarantined" in row.waits:
                with suppress(*REFUSED):
                    await self.resume(row)

    async def resume(self, row: RunRow) -> None:
        """Resume a failed or quarantined run."""
        life = await self.life_of(row)
        Folder.leave("mended", life)
        await self.app.resume(row.id)
        self.resumed.add((row.id, life))

    async def life_of(self, row: RunRow) -> str:
        """Return the life that a run belongs to."""
        [first] = await self.store.read(row.id, limit=1)
        return life_in(self.store.decode(first))

    async def run_all_to_end(self) -> None:
        """Stop killing, and wait until every run has ended."""
        for process in self.processes[work]:
            process.kill()
        await self.stop_jobs(prune, fork, work)
        for _ in range(JOBS.count(work)):
            self.begin(work, doomed=False)
        async with asyncio.timeout(60):
            while True:
                await self.help()
                rows = (await self.store.runs(limit=1000)).rows
                if all(row.status in ENDED - {"failed"} for row in rows):
                    return
                await SystemClock().sleep(5000)

    # Checks

    async def check_lives(self) -> None:
        """Check that every started run exists and has ended, or had ended when it was pruned."""
        about_to_go = {run for line in Folder.found("pruning") for run, _, _ in json.loads(line)}
        rows = {row.id: row for row in (await self.store.runs(limit=1000)).rows}
        for life in self.lives:
            row = rows.get(life.run)
            if row is not None and await self.life_of(row) == life.life:
                assert await (await self.app.get(life.run)).result(timeout=0) == f"{life.life} {life.kind}"
                assert self.now[life.run] == life
            else:
                assert life.run in about_to_go
            failed = life.kind == "fails" and (life.run, life.life) not in self.resumed
            traces = [Folder.found(kind, life.life, life.run) for kind in ("pays", "failures")]
            assert traces[0] or (failed and traces[1]), f"{life} was deleted before its end"
        for row in rows.values():
            log = [self.store.decode(event) async for event in self.store.log(row.id)]
            check_approved(log)
            for each in (row.origin, parent_of(log)):
                assert each is None or each in rows, f"{row.id} is without {each}"
        pruned = Folder.found("pruned") + Folder.found("archived")
        for made in Folder.found("forked"):
            assert made in rows or made in about_to_go, f"the fork {made} is lost"
        forks = len(Folder.found("forked"))
        print(f"{len(self.lives)} lives and {forks} forks, {len(pruned)} families pruned, {dict(self.deaths)}")

    def check_traces(self) -> None:
        """Check that no effect happened twice."""
        for path in self.folder.glob("mails/*/*"):
            assert path.read_text() == "done\n", path
        for path in self.folder.glob("pays/*/*"):
            assert len(set(path.read_text().splitlines())) == 1, path

    async def check_archive(self) -> None:
        """Check that every archived run is complete in a bundle and had ended."""
        found = {}
        for path in self.folder.glob("archive/*.zip"):
            bundle = await read_bundle(path)
            found[head_of(bundle.events[-1])] = path, bundle
        gone = [tuple(head) for line in Folder.found("archived") for head in json.loads(line)]
        listed = {
            (end["run"], end["seq"], end["hash"]) for end in map(json.loads, Folder.found("archive", "pruned.jsonl"))
        }
        assert set(gone) <= listed
        assert len(gone) == len(set(gone))
        for head in gone:
            path, bundle = found[head]
            await self.check_bundle(path, bundle)

    async def check_bundle(self, path: Path, bundle: Bundle) -> None:
        """Check that a bundle loads into another store unchanged."""
        async with limpet.open("memory:", worker=False) as other:
            handle = await other.load(path)
            assert (await handle.info()).status in ENDED
            assert [event async for event in other.store.log(handle.id)] == list(bundle.events)
            await other.verify()

    async def check_blobs(self) -> None:
        """Check that exactly the blobs in use are stored."""
        await self.app.verify()
        while await self.store.collect_blobs(grace=0):
            pass
        rows = (await self.store.runs(limit=1000)).rows
        referred = {blob for row in rows for blob in await self.store.references(row.id)}
        assert await asyncio.to_thread(self.blobs) == referred

    def blobs(self) -> set[str]:
        """Return the ids of all stored blobs."""
        if self.is_sqlite:
            db = apsw.Connection(self.url.removeprefix("sqlite:///"))
            found = {str(id) for (id,) in db.execute("SELECT id FROM limpet_blobs")}
            db.close()
            return found
        address = Address.parse(self.url)
        with psycopg.connect(address.server) as server:
            rows = server.execute(f"SELECT id FROM {address.schema}.blobs".encode()).fetchall()
            return {str(id) for (id,) in rows}


def life_in(first: AnyBody) -> str:
    """Return the life in the first event of a log."""
    assert isinstance(first, b.RunCreated)
    return str(first.input.value()).split()[0]


def parent_of(log: list[AnyBody]) -> str | None:
    """Return the run that waits for this one, if any."""
    first = log[0]
    assert isinstance(first, b.RunCreated)
    is_fork = any(isinstance(body, b.RunForked) for body in log)
    return first.parent.run if first.parent is not None and first.parent.mode == "call" and not is_fork else None


def check_approved(log: list[AnyBody]) -> None:
    """Check that a fork that asks has no effect without approval."""
    asks, allowed, begun = False, set[str | None](), set[str]()
    for body in log:
        match body:
            case b.RunForked():
                asks, allowed, begun = body.effects == "ask", set(), set()
            case b.RequestAnswered(decision="approved"):
                allowed.add(body.request)
            case b.StepStarted() if asks and body.effect != "none" and body.name not in begun:
                assert body.grant in allowed, body
                begun.add(body.name)
            case _:
                pass


def head_of(event: Event) -> tuple[str, int, str]:
    """Return the end of a log."""
    return (event.run, event.seq, event.hash.hex())


@pytest.fixture(params=["sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """The URL of a store of each kind."""
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'limpet.db'}" if is_sqlite else request.getfixturevalue("postgres_schema")
    async with limpet.open_store(url):
        yield url


async def test_pruning_loses_no_live_run_while_processes_are_killed(url: str, tmp_path: Path, full: bool) -> None:
    """Workers, pruners and forkers are killed at random: 100 times with --full, otherwise 8."""
    Folder.path = tmp_path / "traces"
    Folder.path.mkdir()
    async with limpet.open(url, worker=False) as app:
        harness = PruneHarness(url, Folder.path, app, seed=11)
        try:
            await run_and_check(harness, 100 if full else 8)
        finally:
            for process in [each for some in harness.processes.values() for each in some]:
                process.kill()


async def run_and_check(harness: PruneHarness, kills: int) -> None:
    """Run until this many processes were killed, then stop and check everything, then prune everything."""
    while harness.deaths.total() < kills or len(harness.lives) < kills:
        await harness.replace_killed()
        for _ in range(3):
            await harness.start()
            await harness.help()
            await SystemClock().sleep(harness.chance.randrange(20_000))
        if harness.chance.random() < 0.3:
            harness.kill()
        if harness.chance.random() < 0.1:
            await harness.app.verify()
    await harness.run_all_to_end()
    await harness.check_lives()
    harness.check_traces()
    await harness.check_blobs()
    await harness.check_archive()
    await prune_everything(harness)


async def prune_everything(harness: PruneHarness) -> None:
    """Prune all runs, check that no blob is left, and use every id again."""
    left = (await harness.store.runs(limit=1000)).rows
    done = await harness.app.prune(older_than=0, dry_run=False)
    assert set(done.runs) == {row.id for row in left}
    await harness.check_blobs()
    assert await asyncio.to_thread(harness.blobs) == set()
    assert (await harness.app.verify()).runs == 0
    for name in NAMES:
        await harness.app.start(keeper, "again plain", id=name)
    for name in NAMES:
        assert await (await harness.app.get(name)).result(timeout="60s") == "again plain"
    harness.check_traces()
    await harness.stop_jobs(work)
    assert (await harness.app.verify()).runs == len(NAMES)


async def test_a_suspended_worker_does_not_write_to_a_new_run_with_the_same_id(harness: RunHarness) -> None:
    """Meanwhile its run was completed, pruned, created again and claimed with the same fence."""
    harness.service.hold("/once/r/first")
    stopped = harness.process(serve, "plain", "r", "500ms")
    await harness.start("plain", "r")
    await asyncio.to_thread(harness.service.wait_for, "/once/r/first")
    stopped.send("stop")
    other = harness.process(serve, "plain", "r", "500ms")
    await harness.until("r", b.RunCompleted)
    old = [event.actor for event, _ in await harness.log("r")]
    assert (await harness.app.prune(older_than=0, dry_run=False)).runs == ["r"]

    harness.service.forget()
    harness.service.hold("/keyed/r/second")
    await harness.start("plain", "r")
    await asyncio.to_thread(harness.service.wait_for, "/once/r/first")
    assert (await harness.store.get("r")).fence == 1
    stopped.kill(signal.SIGCONT)
    harness.service.release("/once/r/first")
    await asyncio.to_thread(harness.service.wait_for, "/keyed/r/second")
    stopped.send("go")
    assert await stopped.ended() == 0
    harness.service.release("/keyed/r/second")
    await harness.until("r", b.RunCompleted)
    other.send("go")
    assert await other.ended() == 0
    await harness.check_pair("r", "plain")
    assert old[1] not in [event.actor for event, _ in await harness.log("r")]
    assert await harness.claims("r") == [False]
    assert await harness.store.late("r") == []
