"""Rebuilds: a damaged row is found by comparing it with its log, and rebuilt from it."""

from pathlib import Path
from typing import Any

import apsw
import pytest

from limpet.events import PlanItem, StatePatch, Wait
from limpet.events import bodies as b
from limpet.stores import RequestFilter, RequestRow, RunFilter, RunRow
from limpet.stores.cipher import MasterKeys
from limpet.stores.conformance import Harness, World
from limpet.stores.conformance.suite import Owner, answered, asked, created, gave, started
from limpet.stores.sqlite import SqliteBackend

KEYS = MasterKeys(lambda: bytes(32))

DAMAGE = {
    "UPDATE limpet_streams SET step = 99": "run: step is 99, but the log has 1",
    "UPDATE limpet_streams SET fence = 7": "run: fence is 7, but the log has 1",
    "UPDATE limpet_streams SET deaths = 3": "run: deaths is 3, but the log has 0",
    "UPDATE limpet_streams SET items = 0": "run: items is 0, but the log has 2",
    "UPDATE limpet_streams SET user = 'eve'": "run: user is 'eve', but the log has 'ann'",
    "UPDATE limpet_streams SET agent = 'b'": "run: agent is 'b', but the log has 'a'",
    "UPDATE limpet_streams SET waits = '[]'": "run: waits is (), but the log has ('person:q2',)",
    "UPDATE limpet_streams SET ready_at = 1": "run: ready_at is 1, but the log has None",
    "UPDATE limpet_streams SET cancelling = 1": "run: cancelling is True, but the log has False",
    "UPDATE limpet_streams SET undoing = 1": "run: undoing is True, but the log has False",
    "UPDATE limpet_streams SET status = 'pending'": "run: status is 'pending', but the log has 'waiting'",
    "UPDATE limpet_streams SET exclusive = NULL": "run: exclusive is None, but the log has 'session:s1'",
    "UPDATE limpet_requests SET status = 'open' WHERE id = 'q1'": (
        "request q1: status is 'open', but the log has 'answered'"
    ),
    """UPDATE limpet_requests SET "to" = '["eve"]' WHERE id = 'q2'""": (
        "request q2: to is ('eve',), but the log has ('ann',)"
    ),
    "UPDATE limpet_requests SET expires = 5 WHERE id = 'q2'": "request q2: expires is 5, but the log has None",
    "UPDATE limpet_requests SET by = 'eve' WHERE id = 'q1'": "request q1: by is 'eve', but the log has 'ann'",
    "DELETE FROM limpet_requests WHERE id = 'q2'": "request q2: not stored",
    "DELETE FROM limpet_blob_refs": "the reference is missing",
}


@pytest.mark.parametrize("private", [False, True], ids=["plain", "encrypted"])
@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_row_is_found_and_rebuilt(tmp_path: Path, damage: str, private: bool) -> None:
    """The check describes the damage, and the rebuild restores the row."""
    path = tmp_path / "limpet.db"
    async with world_at(path, private=private) as world:
        await history(world)
        before = await rows(world)
        assert await world.store.check_rows("r1") == []
        execute(path, damage)
        found = await world.store.check_rows("r1")
        assert any(DAMAGE[damage] in each for each in found), found
        await world.store.rebuild("r1")
        assert await world.store.check_rows("r1") == []
        assert await rows(world) == before


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE limpet_streams SET goal = 'x'",
        "UPDATE limpet_streams SET labels = '{}'",
        "UPDATE limpet_requests SET digest = 'x' WHERE id = 'q1'",
        """INSERT INTO limpet_requests (id, run, seq, kind, status, "to", opened, digest)
        SELECT 'q9', run, seq, kind, status, "to", opened, digest FROM limpet_requests WHERE id = 'q2'""",
    ],
)
async def test_damaged_text_is_found_and_rebuilt(tmp_path: Path, damage: str) -> None:
    """This applies to text in a plain store; an encrypted store refuses to read such a row."""
    path = tmp_path / "limpet.db"
    async with world_at(path) as world:
        await history(world)
        before = await rows(world)
        execute(path, damage)
        assert len(await world.store.check_rows("r1")) == 1
        await world.store.rebuild("r1")
        assert await rows(world) == before


@pytest.mark.parametrize("private", [False, True], ids=["plain", "encrypted"])
@pytest.mark.parametrize("damage", ["DELETE FROM limpet_labels", "UPDATE limpet_labels SET value = 'south'"])
async def test_damaged_labels_are_rebuilt(tmp_path: Path, damage: str, private: bool) -> None:
    """The labels used by filters are rebuilt from the log."""
    path = tmp_path / "limpet.db"
    async with world_at(path, private=private) as world:
        await history(world)
        where = RunFilter(labels={"team": "north"})
        execute(path, damage)
        assert await world.store.count(where) == 0
        await world.store.rebuild("r1")
        assert await world.store.count(where) == 1
        assert await world.store.count(RunFilter(labels={"team": "south"})) == 0


async def test_a_rebuilt_run_can_be_answered_and_claimed(tmp_path: Path) -> None:
    """The damage would have kept the run parked indefinitely."""
    path = tmp_path / "limpet.db"
    async with world_at(path) as world:
        await history(world)
        execute(path, "UPDATE limpet_streams SET waits = '[]'", "DELETE FROM limpet_requests")
        await world.store.rebuild("r1")
        await world.store.send_commands("r1", answered("q2", command="c2"), actor="ann")
        [claimed] = await world.claim()
        await Owner(world, claimed.row).append(started(2))
        assert await world.store.check_rows("r1") == []


async def test_blobs_with_rebuilt_references_are_not_collected(tmp_path: Path) -> None:
    path = tmp_path / "limpet.db"
    async with world_at(path) as world:
        await history(world)
        execute(path, "DELETE FROM limpet_blob_refs", "UPDATE limpet_blobs SET loose_since = 1")
        await world.store.rebuild("r1")
        world.advance("2h")
        assert await world.store.collect_blobs() == 0


async def test_a_missing_blob_is_reported_after_a_rebuild(tmp_path: Path) -> None:
    path = tmp_path / "limpet.db"
    async with world_at(path) as world:
        await history(world)
        execute(path, "DELETE FROM limpet_blob_refs", "DELETE FROM limpet_blobs")
        await world.store.rebuild("r1")
        [found] = await world.store.check_rows("r1")
        assert found.endswith("the reference is missing")


async def test_a_rebuild_of_one_run_does_not_change_others(tmp_path: Path) -> None:
    """This applies to rows, requests, labels and references."""
    path = tmp_path / "limpet.db"
    async with world_at(path) as world:
        await history(world, "r2", prefix="p")
        before = dump(path)
        await history(world)
        await world.store.rebuild("r1")
        execute(path, "UPDATE limpet_streams SET step = 99 WHERE id = 'r1'")
        await world.store.rebuild("r1")
        assert await world.store.check_rows("r2") == []
        assert set(before) <= set(dump(path))


async def test_a_rebuild_that_changes_a_status_updates_the_counters(tmp_path: Path) -> None:
    """Triggers of the schema update the counters."""
    path = tmp_path / "limpet.db"
    async with world_at(path) as world:
        await history(world)
        execute(path, "UPDATE limpet_streams SET status = 'pending'")
        assert await world.store.counts() == {("a", "pending"): 1}
        await world.store.rebuild("r1")
        assert await world.store.counts() == {("a", "waiting"): 1}


def world_at(path: Path, *, private: bool = False) -> World:
    """Return a world in a file."""
    return World(Harness(backend=lambda clock: SqliteBackend(path, clock), keys=KEYS if private else None))


async def history(world: World, run: str = "r1", prefix: str = "q") -> None:
    """Create and park a run with labels, a plan, steps, two requests and a blob, from which rows are derived."""
    patch = StatePatch(goal="refund", plan=(PlanItem(item="look"), PlanItem(item="pay")))
    body = created(user="ann", labels={"team": "north"}, exclusive=f"session:s{run[1:]}", initial=patch)
    await world.store.create(run, body, actor="test")
    await world.worker()
    [claimed] = await world.claim()
    owner = Owner(world, claimed.row)
    payload, blobs = world.store.pack("x" * 20_000)
    await owner.append(started(), gave(payload), asked(f"{prefix}1"), asked(f"{prefix}2", to=("ann",)), blobs=blobs)
    await world.store.send_commands(run, answered(f"{prefix}1"), actor="ann")
    owner.head = (await owner.row()).head
    await owner.append(b.RunWaiting(waits=(Wait(what="person", key=f"{prefix}2"),)))


async def rows(world: World) -> tuple[RunRow, list[RequestRow]]:
    """Return the stored rows of the run."""
    return await world.store.get("r1"), await world.store.requests(RequestFilter(status=None, run="r1"))


def execute(path: Path, *statements: str) -> None:
    """Execute statements on the file, outside the store."""
    db = apsw.Connection(str(path))
    for statement in statements:
        db.execute(statement)
    db.close()


def dump(path: Path) -> list[tuple[str, Any]]:
    """Return every row of every table that a rebuild writes."""
    db = apsw.Connection(str(path))
    tables = ("limpet_streams", "limpet_requests", "limpet_labels", "limpet_blob_refs")
    found = [(table, row) for table in tables for row in db.execute(f"SELECT * FROM {table}").fetchall()]
    db.close()
    return found
