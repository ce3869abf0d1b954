"""Two workers, kills, stalls past the lease, lost replies and commands at every await: 200 seeds of it."""

import asyncio
import os

import pytest

from limpet.engine import steps
from limpet.engine.verdict import Repeat
from limpet.journal import load, verify_run
from limpet.state import fold
from tests.simulation.world import World

SEEDS = 200
SEED = os.environ.get("LIMPET_SEED")


async def simulate(seed: int) -> World:
    world = World(seed)
    await world.run(turns=15)
    return world


async def check(world: World) -> None:
    """What must hold in the end: logs, rows, acknowledged commands, effects."""
    world.watcher.look()
    store = world.people.store
    await store.open()
    rows = (await store.runs(limit=1000)).rows
    for row in rows:
        await verify_run(store, row.id)
        assert await store.check_rows(row.id) == []
        events = [event async for event in store.log(row.id)]
        assert fold(events) == await load(store, row.id), "I7"
    for run, sent in world.watcher.signals.items():
        assert world.watcher.received.get(run, []) == list(range(1, sent + 1)), "I1: a signal was lost or doubled"
    for request in world.watcher.answered:
        assert request in world.watcher._decided, "I1: an answer was lost"
    statuses = {row.id: row.status for row in rows}
    for run in world.watcher.cancelled:
        assert statuses[run] == "cancelled", f"I1: {run} is {statuses[run]}"
    for key, count in world.outside.sent.items():
        assert count <= 1, f"I4: {key} was sent {count} times"
    assert set(statuses) >= {f"r{n}" for n in range(4)}, "I1: a run was lost"


@pytest.mark.parametrize("seed", [int(SEED)] if SEED else range(SEEDS))
def test_seed(seed: int) -> None:
    """LIMPET_SEED=n runs one of them alone."""

    async def run() -> None:
        world = await simulate(seed)
        await check(world)

    try:
        asyncio.run(asyncio.wait_for(run(), 60))
    except BaseException:
        print(f"LIMPET_SEED={seed}")
        raise


def test_the_watcher_sees_a_blind_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """The invariants can fail: an engine that repeats what it must not is found out within a few seeds."""
    monkeypatch.setattr(steps, "judge", lambda *_: Repeat(0))

    async def run() -> None:
        for seed in range(20):
            await check(await simulate(seed))

    with pytest.raises(AssertionError, match="I4"):
        asyncio.run(asyncio.wait_for(run(), 60))
