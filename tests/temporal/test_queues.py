"""Task queues for each agent and version: a worker gets only runs that it serves."""

import pytest

import limpet
from tests.temporal import agents as a
from tests.temporal.temporal_world import TemporalWorld, WorkerProcess

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


async def test_a_worker_gets_no_run_of_an_agent_that_it_does_not_serve(world: TemporalWorld) -> None:
    async with world.sender() as app:
        with world.worker() as general, world.worker("tests.temporal.agents:one") as special:
            for number in range(10):
                await app.start(a.many_steps, 2, id=f"share-{number}")
                await app.start(a.one[0], "gate", id=f"share-v-{number}")
            for number in range(10):
                assert await (await app.get(f"share-{number}")).result(timeout="30s") == 2
                await world.recorded(f"share-v-{number} begins")
            for number in range(10):
                assert await _was_driven_by(app, f"share-{number}", general)
                assert await _was_driven_by(app, f"share-v-{number}", special)


async def _was_driven_by(app: limpet.App, run: str, worker: WorkerProcess) -> bool:
    drivers = {event.actor async for event in app.store.log(run) if event.kind == "run.claimed"}
    return bool(drivers) and all(f"{each}: serving" in "".join(worker.log) for each in drivers)
