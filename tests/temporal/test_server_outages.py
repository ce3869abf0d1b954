"""The Temporal server is killed and comes back: commands commit meanwhile, and everything goes on by itself."""

import pytest

from tests.temporal.agents import asker, booker, hearer, many_steps
from tests.temporal.temporal_world import TemporalWorld


@pytest.mark.long
@pytest.mark.parametrize("away", [3, 30])
async def test_everything_goes_on_after_an_outage(world: TemporalWorld, away: int) -> None:
    """Meanwhile, a run is driven, runs are started, answered and signalled; the worker process stays the same."""
    async with world.sender() as app, world.app(linger=0) as workers:
        driven = await workers.start(booker, "gate", id=f"out-driven-{away}")
        asked = await app.start(asker, "Go on?", id=f"out-asked-{away}")
        heard = await app.start(hearer, 2, id=f"out-heard-{away}")
        await world.recorded(f"out-driven-{away} begins")
        for run in (f"out-asked-{away}", f"out-heard-{away}"):
            await world.until_parked(app, run)
        world.server.kill()
        try:
            began = world.clock.ticks()
            await app.answer((await app.inbox(run=f"out-asked-{away}"))[0].id, True, by="ann")
            await app.signal(f"out-heard-{away}", "word", "one")
            await app.signal(f"out-heard-{away}", "word", "two")
            fresh = await app.start(many_steps, 3, id=f"out-fresh-{away}")
            assert world.clock.ticks() - began < away * 10**6, "commands wait for Temporal"
            await world.clock.sleep(max(away * 10**6 - (world.clock.ticks() - began), 0))
        finally:
            world.server.start()
        back = world.clock.ticks()
        world.ledger.open_gate("gate")
        assert await driven.result(timeout="60s") == "gate"
        assert await asked.result(timeout="60s") == "True"
        assert await heard.result(timeout="60s") == ["one", "two"]
        assert await fresh.result(timeout="60s") == 3
        print(f"all went on {(world.clock.ticks() - back) / 10**6:.1f} s after the server was back")
        for run in (f"out-driven-{away}", f"out-asked-{away}", f"out-heard-{away}", f"out-fresh-{away}"):
            executions = await world.until_closed(run)
            assert len(executions) == 1, executions
        print(f"all workflows ended {(world.clock.ticks() - back) / 10**6:.1f} s after the server was back")
    assert {*world.ledger.count().values()} == {1}, world.ledger.lines()
    assert len(world.ledger.lines()) == 8, world.ledger.lines()


@pytest.mark.long
async def test_a_worker_stops_while_the_server_is_away(world: TemporalWorld) -> None:
    """It does not wait for Temporal, and its run is taken up by the next one."""
    async with world.sender() as app:
        async with world.app():
            handle = await app.start(booker, "gate", id="out-stop")
            await world.recorded("out-stop begins")
            world.server.kill()
            world.ledger.open_gate("gate")
            await world.recorded("out-stop books")
            began = world.clock.ticks()
        stopped = (world.clock.ticks() - began) / 10**6
        print(f"stopped after {stopped:.1f} s")
        world.server.start()
        async with world.app():
            assert await handle.result(timeout="60s") == "gate"
            await world.until_closed("out-stop")
    assert {*world.ledger.count().values()} == {1}, world.ledger.lines()
