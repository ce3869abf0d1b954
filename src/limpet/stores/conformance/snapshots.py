"""Snapshots: caches beside the log, found by sequence, and safe to delete."""

from limpet.errors import NotFound
from limpet.events import GENESIS, Head
from limpet.stores.conformance.suite import World, behaviour, expect, started


@behaviour()
async def a_snapshot_is_read_back_unchanged(world: World) -> None:
    """A snapshot comes back with its bytes, sequence, hash and time."""
    owner = await world.own()
    await world.store.save_snapshot("r1", owner.head, b'{"a": "\x00\xff"}')
    snapshot = await world.store.snapshot("r1")
    assert snapshot is not None
    assert (snapshot.seq, snapshot.hash, snapshot.time) == (owner.head.seq, owner.head.hash, world.clock.now())
    assert snapshot.data == b'{"a": "\x00\xff"}'


@behaviour()
async def a_run_without_a_snapshot_gives_none(world: World) -> None:
    """A run without a snapshot gives None."""
    await world.create()
    assert (await world.store.snapshot("r1"), await world.store.snapshots("r1")) == (None, [])


@behaviour()
async def the_newest_snapshot_is_returned(world: World) -> None:
    """The newest snapshot is returned, or the newest at or before a sequence."""
    await _three(world)
    for at_most, expected in ((None, 9), (9, 9), (8, 5), (5, 5), (4, 2), (1, None)):
        found = await world.store.snapshot("r1", at_most=at_most)
        assert (found.seq if found else None) == expected


@behaviour()
async def snapshots_are_listed_in_order(world: World) -> None:
    """Snapshots are listed in order, with their times."""
    await _three(world)
    assert [seq for seq, _ in await world.store.snapshots("r1")] == [2, 5, 9]


@behaviour()
async def a_snapshot_at_the_same_sequence_replaces_the_old_one(world: World) -> None:
    """A snapshot at the same sequence replaces the old one."""
    await _three(world)
    await world.store.save_snapshot("r1", Head(5, GENESIS, 0), b"new")
    found = await world.store.snapshot("r1", at_most=5)
    assert found is not None
    assert (found.data, len(await world.store.snapshots("r1"))) == (b"new", 3)


@behaviour()
async def dropping_snapshots_does_not_change_the_log(world: World) -> None:
    """Dropping snapshots, also missing ones, does not change the log."""
    await _three(world)
    before = await world.log()
    await world.store.drop_snapshots("r1", [5, 9, 77])
    assert [seq for seq, _ in await world.store.snapshots("r1")] == [2]
    assert await world.log() == before


@behaviour()
async def snapshots_belong_to_one_run(world: World) -> None:
    """Dropping one run's snapshots keeps those of other runs."""
    await _three(world)
    await world.create("r2")
    await world.store.save_snapshot("r2", Head(5, GENESIS, 0), b"two")
    await world.store.drop_snapshots("r1", [5])
    found = await world.store.snapshot("r2")
    assert found is not None
    assert found.data == b"two"


@behaviour()
async def a_snapshot_of_an_unknown_run_is_refused(world: World) -> None:
    """A snapshot of an unknown run is refused."""
    await expect(NotFound, world.store.save_snapshot("missing", Head(1, GENESIS, 0), b""))
    await expect(NotFound, world.store.snapshot("missing"))


async def _three(world: World) -> None:
    owner = await world.own()
    await owner.append(*(started(number) for number in range(1, 9)))
    for seq in (5, 2, 9):
        await world.store.save_snapshot("r1", Head(seq, GENESIS, 0), b"%d" % seq)
