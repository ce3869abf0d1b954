"""What nobody touched raises no alarm: a thousand logs, made by chance, by crashing workers, by earlier versions."""

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
from tests.behaviour.tampering.edit_rows import SqliteHand
from tests.behaviour.tampering.filled_store import alone, happen
from tests.crash.versions import become_newer
from tests.golden.test_golden import VERSIONS
from tests.laws.test_law_rows import Walk
from tests.simulation.world import simulate

WALKS = 360
SIMULATIONS = 25


async def walked(harness: Harness, seed: int, steps: int) -> int:
    """How many logs a walk leaves, all of them whole."""
    async with World(harness) as world:
        walk = Walk(world, seed)
        for _ in range(steps):
            await walk.step()
        verified = await verify_all(world.store)
        assert verified.events == sum(row.seq for row in (await world.store.runs(limit=100)).rows)
        return verified.runs


async def test_walks_are_whole(full: bool) -> None:
    """Runs that several workers drive and lose, with commands from outside, while time passes."""
    logs, walks = 0, WALKS if full else WALKS // 6
    for seed in range(walks):
        logs += await walked(Harness(backend=cache(MemoryBackend), handover=Inline), seed, 70)
    assert logs > 2.5 * walks


@pytest.mark.parametrize("seed", range(3))
async def test_walks_in_files_are_whole(seed: int, tmp_path: Path) -> None:
    """The same where rows are rows."""
    backend = alone(f"sqlite:///{tmp_path}/walk.db")
    assert await walked(Harness(backend=backend, handover=Inline), seed, 150) == 3


def test_simulations_are_whole(full: bool) -> None:
    """Workers that are killed, stall and have wrong clocks; people who do everything at once."""
    logs: list[int] = []

    async def check(world: object) -> None:
        store: Store = world.people.store  # type: ignore[attr-defined]
        logs.append((await verify_all(store)).runs)

    simulations = SIMULATIONS if full else SIMULATIONS // 5
    for seed in range(1_000, 1_000 + simulations):
        simulate(seed, check=check)
    assert sum(logs) > 5 * simulations


async def test_the_story_is_whole_on_every_store(tmp_path: Path, postgres_schema: str) -> None:
    """In a file, on a server, and in memory."""
    for url in (f"sqlite:///{tmp_path}/story.db", postgres_schema):
        await happen(alone(url))
        async with app_at(url) as app:
            assert str(await app.verify()).startswith("18 runs and 2 conversations with 3")
            assert await app.save_heads(tmp_path / "heads") == 20
            assert str(await app.verify(heads=tmp_path / "heads")).endswith("20 saved heads checked")
    backends: list[Backend] = []

    def memory(clock: Clock) -> Backend:
        backends.append(MemoryBackend(clock))
        return backends[0]

    await happen(memory)
    async with Store(backends[0], Inline()) as store:
        assert (await verify_all(store)).events > 300


async def test_writers_raise_no_alarm(tmp_path: Path) -> None:
    """Runs that grow, are told things, park and are created while they are looked at."""
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
async def test_what_earlier_versions_stored_is_whole(version: Path, tmp_path: Path) -> None:
    """Their files, once they are migrated."""
    (tmp_path / "store.db").write_bytes(gzip.decompress((version / "store.gz").read_bytes()))
    async with app_at(f"sqlite:///{tmp_path}/store.db") as app:
        assert (await app.verify()).runs >= 1


async def test_what_a_newer_version_wrote_is_no_tampering(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hashes fit, and what it says is for a newer version to check; the others are looked at all the same."""
    with monkeypatch.context() as newer:
        become_newer(newer.setitem)
        await app.signal("paused", "go", 1)
    with pytest.raises(NewerVersion):
        await app.verify()
    bad = list[LimpetError]()
    assert (await verify_all(app.store, bad=bad.append)).runs == 17
    assert [each.code for each in bad] == ["newer_version"]


async def test_one_run_is_one_run(tmp_path: Path) -> None:
    """Said as people say it."""
    async with World(Harness(backend=cache(MemoryBackend), handover=Inline)) as world:
        assert str(await verify_all(world.store)) == "0 runs with 0 events verified"
        await world.create("r1")
        assert str(await verify_all(world.store)) == "1 run with 1 event verified"
        await world.create("r2")
        assert str(await verify_all(world.store)) == "2 runs with 2 events verified"


async def test_a_run_that_is_deleted_meanwhile_raises_no_alarm(app: App, hand: SqliteHand) -> None:
    """It is just not there any more; one that is listed under a name that nobody can ask for is."""
    listed = app.store.streams

    async def and_delete(*, after: int = 0, limit: int = 1_000) -> list[tuple[int, str]]:
        found = await listed(after=after, limit=limit)
        for table in OF_A_STREAM:
            column = "number" if table == "streams" else "run"
            hand.run(f"DELETE FROM {{{table}}} WHERE {column} = (SELECT max(number) FROM {{streams}})")
        await app.store.recount()
        return found

    with patch.object(app.store, "streams", and_delete):
        assert (await app.verify()).runs < 20
    await app.verify()
    hand.run("UPDATE {streams} SET id = CAST(x'ff' AS TEXT) WHERE number = 2")
    with pytest.raises(Tampered, match="listed, but has no row"):
        await app.verify()
