"""No false alarms: random logs, logs of crashing workers and of earlier versions verify."""

import asyncio
import gzip
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest

from limpet import LimpetError, NewerVersion, Tampered
from limpet.clock import Clock
from limpet.service.app import App
from limpet.service.verify import verify_all
from limpet.stores import Backend, Inline, Store
from limpet.stores.columns import OF_A_STREAM
from limpet.stores.conformance import Harness, World
from limpet.stores.conformance.suite import Owner, asked, gave, signalled, started
from limpet.stores.memory import MemoryBackend
from limpet.stores.sqlite import SqliteBackend
from tests.behaviour.tampering.conftest import app_at
from tests.behaviour.tampering.edit_rows import SqliteRowEditor
from tests.behaviour.tampering.filled_store import fill_store, single_process
from tests.crash.versions import become_newer
from tests.golden.test_golden import VERSIONS
from tests.laws.test_law_rows import Walk
from tests.simulation.world import simulate

WALKS = 360
SIMULATIONS = 25


async def verify_walk(harness: Harness, seed: int, steps: int) -> int:
    """Walk at random, verify all logs, and return their number."""
    async with World(harness) as world:
        walk = Walk(world, seed)
        for _ in range(steps):
            await walk.step()
        verified = await verify_all(world.store)
        assert verified.events == sum(row.seq for row in (await world.store.runs(limit=100)).rows)
        return verified.runs


async def test_verify_accepts_random_walks(full: bool) -> None:
    """Several workers claim and lose runs, with commands from other processes, while time passes."""
    logs, walks = 0, WALKS if full else WALKS // 6
    for seed in range(walks):
        logs += await verify_walk(Harness(backend=cache(MemoryBackend), handover=Inline), seed, 70)
    assert logs > 2.5 * walks


@pytest.mark.parametrize("seed", range(3))
async def test_verify_accepts_random_walks_in_sqlite(seed: int, tmp_path: Path) -> None:
    backend = single_process(f"sqlite:///{tmp_path}/walk.db")
    assert await verify_walk(Harness(backend=backend, handover=Inline), seed, 150) == 3


def test_verify_accepts_simulations(full: bool) -> None:
    """Workers are killed, stall and have wrong clocks, with concurrent commands of people."""
    logs: list[int] = []

    async def check(world: object) -> None:
        store: Store = world.people.store  # type: ignore[attr-defined]
        logs.append((await verify_all(store)).runs)

    simulations = SIMULATIONS if full else SIMULATIONS // 5
    for seed in range(1_000, 1_000 + simulations):
        simulate(seed, check=check)
    assert sum(logs) > 5 * simulations


async def test_verify_accepts_the_filled_store_on_every_backend(tmp_path: Path, postgres_schema: str) -> None:
    """SQLite, PostgreSQL and memory."""
    for url in (f"sqlite:///{tmp_path}/story.db", postgres_schema):
        await fill_store(single_process(url))
        async with app_at(url) as app:
            assert str(await app.verify()).startswith("18 runs, 2 conversations and 1 audit log with 3")
            assert await app.save_heads(tmp_path / "heads") == 21
            assert str(await app.verify(heads=tmp_path / "heads")).endswith("21 saved heads checked")
    backends: list[Backend] = []

    def memory(clock: Clock) -> Backend:
        backends.append(MemoryBackend(clock))
        return backends[0]

    await fill_store(memory)
    async with Store(backends[0], Inline()) as store:
        assert (await verify_all(store)).events > 300


async def test_verify_accepts_a_store_that_is_being_written(tmp_path: Path) -> None:
    """Runs grow, receive commands, and are created during the check."""
    async with World(Harness(backend=lambda clock: SqliteBackend(tmp_path / "busy.db", clock))) as world:
        owner, looks = await world.own(), 0
        writing = asyncio.ensure_future(_write(world, owner))
        while not writing.done():
            looks += (await verify_all(world.store)).runs
        await writing
        assert looks > 1


async def _write(world: World, owner: Owner) -> None:
    for number in range(1, 60):
        await world.create(f"n{number}", labels={"n": str(number)})
        payload, blobs = world.store.pack("x" * 9_000 + str(number))
        await owner.append(started(number), asked(f"q{number}"), gave(payload, number), blobs=blobs)
        owner.head = await world.store.send_commands("r1", signalled(command=f"c{number}"), actor="ann")


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
async def test_verify_accepts_stores_of_earlier_versions(version: Path, tmp_path: Path) -> None:
    """After their migration."""
    (tmp_path / "store.db").write_bytes(gzip.decompress((version / "store.gz").read_bytes()))
    async with app_at(f"sqlite:///{tmp_path}/store.db") as app:
        assert (await app.verify()).runs >= 1


async def test_events_of_a_newer_version_are_not_reported_as_tampering(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their hashes fit, and only a newer version can check their content. Other runs are still checked."""
    with monkeypatch.context() as newer:
        become_newer(newer.setitem)
        await app.signal("paused", "go", 1)
    with pytest.raises(NewerVersion):
        await app.verify()
    bad = list[LimpetError]()
    assert (await verify_all(app.store, bad=bad.append)).runs == 17
    assert [each.code for each in bad] == ["newer_version"]


async def test_the_verify_report_uses_singular_and_plural(tmp_path: Path) -> None:
    async with World(Harness(backend=cache(MemoryBackend), handover=Inline)) as world:
        assert str(await verify_all(world.store)) == "0 runs with 0 events verified"
        await world.create("r1")
        assert str(await verify_all(world.store)) == "1 run with 1 event verified"
        await world.create("r2")
        assert str(await verify_all(world.store)) == "2 runs with 2 events verified"


async def test_verify_ignores_a_run_that_is_deleted_meanwhile(app: App, editor: SqliteRowEditor) -> None:
    """But it reports a listed run whose id cannot be read."""
    listed = app.store.streams

    async def and_delete(*, after: int = 0, limit: int = 1_000) -> list[tuple[int, str]]:
        found = await listed(after=after, limit=limit)
        for table in OF_A_STREAM:
            column = "number" if table == "streams" else "run"
            editor.run(f"DELETE FROM {{{table}}} WHERE {column} = (SELECT max(number) FROM {{streams}})")
        await app.store.recount()
        return found

    with patch.object(app.store, "streams", and_delete):
        assert (await app.verify()).runs < 20
    await app.verify()
    editor.run("UPDATE {streams} SET id = CAST(x'ff' AS TEXT) WHERE number = 2")
    with pytest.raises(Tampered, match="listed, but has no row"):
        await app.verify()
