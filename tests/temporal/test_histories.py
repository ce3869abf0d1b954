"""The history of a workflow stays short, however long the run is; an idle run adds nothing."""

import asyncio

import pytest
from temporalio.client import WorkflowExecutionStatus as Status

from tests.temporal.agents import asker, hearer, many_steps
from tests.temporal.temporal_world import TemporalWorld

MOST = 200


async def test_many_steps_are_one_drive(world: TemporalWorld, full: bool) -> None:
    count = 1_000 if full else 100
    async with world.app() as app:
        assert await app.run(many_steps, count, id="steps-1") == count
        executions = await world.until_closed("steps-1")
    assert [each.status for each in executions] == [Status.COMPLETED]
    assert len(executions[0].events) < 20


async def test_a_run_that_parks_often_continues_as_new(world: TemporalWorld, full: bool) -> None:
    """All executions are short, search attributes and memo stay, and no signal is lost."""
    count = 1_000 if full else 20
    async with world.app(linger=0) as app:
        handle = await app.start(hearer, count, id="parks-1")
        for number in range(count):
            await world.until_parked(app, "parks-1")
            await app.signal("parks-1", "word", str(number))
            await world.recorded(f"parks-1 heard {number}")
        assert await handle.result(timeout="60s") == [str(number) for number in range(count)]
        executions = await world.until_closed("parks-1")
        last = await (await world.client()).get_workflow_handle("parks-1").describe()
    lengths = [len(each.events) for each in executions]
    print(lengths)
    assert max(lengths) <= MOST
    assert [each.status for each in executions] == [*[Status.CONTINUED_AS_NEW] * (len(lengths) - 1), Status.COMPLETED]
    assert len(lengths) > 1
    assert (await last.memo())["agent"] == "hearer"
    assert world.ledger.count().total() == count


@pytest.mark.long
async def test_an_idle_run_adds_no_event(world: TemporalWorld) -> None:
    async with world.app(linger=0) as app:
        await app.start(asker, "Go on?", id="idle-1")
        await world.until_parked(app, "idle-1")
        await world.until(lambda: _is_at_rest(world, "idle-1"))
        before = [len(each.events) for each in await world.executions("idle-1")]
        await world.clock.sleep(60 * 10**6)
        assert [len(each.events) for each in await world.executions("idle-1")] == before


async def _is_at_rest(world: TemporalWorld, run: str) -> bool:
    """Return whether the workflow has neither a drive nor a task of its own."""
    shown = (await (await world.client()).get_workflow_handle(run).describe()).raw_description
    return not shown.pending_activities and not shown.HasField("pending_workflow_task")


@pytest.mark.long
async def test_commands_in_a_burst_are_driven_together(world: TemporalWorld) -> None:
    """Signals that come while no worker is there, or all at once, are all received."""
    async with world.sender() as app:
        handle = await app.start(hearer, 30, id="burst-1")
        await asyncio.gather(*(app.signal("burst-1", "word", str(number)) for number in range(30)))
    async with world.app(linger=0):
        async with world.sender() as app:
            found = await (await app.get("burst-1")).result(timeout="30s")
        executions = await world.until_closed("burst-1")
    assert sorted(found, key=int) == [str(number) for number in range(30)]
    assert handle.id == "burst-1"
    assert max(len(each.events) for each in executions) <= MOST
