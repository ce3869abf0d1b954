"""Workers that are killed, stalled or stopped: another one goes on, and no effect is repeated under another key."""

import signal

import pytest

from tests.temporal.agents import booker, parent
from tests.temporal.temporal_world import TemporalWorld

pytestmark = pytest.mark.long


def keys(world: TemporalWorld, run: str, what: str) -> set[str]:
    """Return the keys under which an effect happened."""
    return {line.split()[2] for line in world.ledger.lines() if line.startswith(f"{run} {what} ")}


async def test_another_worker_goes_on_after_a_kill(world: TemporalWorld) -> None:
    """The drive is delivered again, to a worker that repeats the interrupted effect under the same key."""
    heartbeat = "1s"
    async with world.sender() as app:
        with world.worker(heartbeat=heartbeat) as first, world.worker(heartbeat=heartbeat) as second:
            handle = await app.start(booker, "gate", id="kill-1")
            await world.recorded("kill-1 begins")
            holder = (await app.store.get("kill-1")).worker
            victim = first if any(f"{holder}: serving" in line for line in first.log) else second
            victim.kill()
            took = await world.until(lambda: len(world.ledger.lines()) == 3)
            print(f"goes on after {took:.1f} s at a heartbeat of {heartbeat}")
            assert await world.attempts("kill-1") >= 2, f"heartbeat {heartbeat}"
            world.ledger.open_gate("gate")
            assert await handle.result(timeout="30s") == "gate"
            executions = await world.until_closed("kill-1")
    assert len(executions) == 1
    assert world.ledger.count("kill-1 before").total() == world.ledger.count("kill-1 after").total() == 1
    assert len(keys(world, "kill-1", "books")) == 1


async def test_a_stalled_worker_cannot_append_when_it_is_back(world: TemporalWorld) -> None:
    """While it is stopped, its lease and its heartbeats run out, and the other one takes over."""
    async with world.sender() as app:
        with world.worker(lease="1s") as first:
            handle = await app.start(booker, "gate", id="stall-1")
            await world.recorded("stall-1 begins")
            stalled = (await app.store.get("stall-1")).worker
            first.send(signal.SIGSTOP)
            with world.worker(lease="1s"):
                await world.until(lambda: len(world.ledger.lines()) == 3)
                world.ledger.open_gate("gate")
                assert await handle.result(timeout="30s") == "gate"
                end = (await app.store.get("stall-1")).seq
                first.send(signal.SIGCONT)
                await world.until(lambda: any("lost" in line or "another worker" in line for line in first.log))
                await world.until_closed("stall-1")
            assert (await app.store.get("stall-1")).seq == end
            later = [event.actor async for event in app.store.log("stall-1") if event.fence > 1]
            assert later
            assert stalled not in later
            assert (await app.verify("stall-1")).runs == 1
    assert len(keys(world, "stall-1", "books")) == 1
    assert world.ledger.count("stall-1 after").total() == 1


async def test_a_stopping_worker_finishes_its_effect(world: TemporalWorld) -> None:
    """It is stopped with SIGTERM in the middle of an effect; another one continues with the next."""
    async with world.sender() as app:
        with world.worker() as first:
            handle = await app.start(booker, "gate", id="stop-1")
            await world.recorded("stop-1 begins")
            with world.worker():
                first.send(signal.SIGTERM)
                await world.until(lambda: any("Stopping" in line for line in first.log))
                world.ledger.open_gate("gate")
                assert first.end() == 0
                assert await handle.result(timeout="30s") == "gate"
                await world.until_closed("stop-1")
        drivers = [event.actor async for event in app.store.log("stop-1") if event.kind == "run.claimed"]
    assert [line.split()[1] for line in world.ledger.lines()] == ["before", "begins", "books", "after"]
    assert len(drivers) == len({*drivers}) == 2


async def test_a_parent_killed_after_it_created_a_child(world: TemporalWorld) -> None:
    """The child was created by an append of the parent; its workflow may not have been started."""
    async with world.sender() as app:
        with world.worker() as first:
            handle = await app.start(parent, "gate", id="parent-1")
            await world.until(lambda: len(world.ledger.lines()) >= 2)
            first.kill()
        world.ledger.open_gate("gate")
        with world.worker():
            assert await handle.result(timeout="30s") == "gate"
            for run in await app.runs():
                await world.until_closed(run.id)
    assert world.ledger.count("parent-1 after").total() == 1
