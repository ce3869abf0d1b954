"""Task queues for each agent and version: a worker gets only runs that it serves."""

import pytest

from tests.temporal import agents as a
from tests.temporal.temporal_world import TemporalWorld

pytestmark = pytest.mark.long


async def test_workers_get_the_versions_that_they_serve(world: TemporalWorld) -> None:
    """A run of version 1 stays with workers that serve or accept it; one of version 2 with those of version 2."""
    async with world.app(a.one, linger=0) as one, world.app(a.two, linger=0) as two:
        first = await one.start(a.one[0], "gate", id="version-1")
        second = await two.start(a.two[0], "gate", id="version-2")
        for run in ("version-1", "version-2"):
            await world.until_parked(one, run)
    async with world.app(a.two, linger=0) as two:
        for request in await two.inbox():
            await two.answer(request.id, True, by="ann")
        assert await (await two.get("version-2")).result(timeout="20s") == "2"
        assert (await two.info("version-1")).status != "completed"
        assert world.ledger.count("version-1").total() == 1
        async with world.app(a.both, linger=0) as both:
            assert await (await both.get("version-1")).result(timeout="20s") == "2"
            await world.until_closed("version-1")
            await world.until_closed("version-2")
    assert world.ledger.lines() == [
        "version-1 begins",
        "version-2 begins",
        "version-2 went on with 2",
        "version-1 went on with 2",
    ]
    assert (first.id, second.id) == ("version-1", "version-2")


async def test_two_worker_processes_share_the_runs(world: TemporalWorld) -> None:
    async with world.sender() as app:
        with world.worker(), world.worker("tests.temporal.agents:one"):
            handles = [await app.start(a.many_steps, 2, id=f"share-{number}") for number in range(10)]
            versioned = await app.start(a.one[0], "gate", id="share-v")
            for handle in handles:
                assert await handle.result(timeout="30s") == 2
            await world.recorded("share-v begins")
            drivers = {(await app.store.get(handle.id)).agent for handle in (*handles, versioned)}
    assert drivers == {"many_steps", "versioned"}
