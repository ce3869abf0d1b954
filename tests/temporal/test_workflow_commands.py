"""Commands of Temporal's own on the workflow of a run: the run obeys a cancellation, and outlives everything else."""

import pytest
from temporalio.client import WorkflowExecutionStatus as Status

import limpet
from limpet.stores import ReadyRun
from tests.temporal.agents import asker, booker, failing, many_steps, sleeper
from tests.temporal.temporal_world import TemporalWorld


async def test_a_cancelled_workflow_cancels_its_parked_run(world: TemporalWorld) -> None:
    async with world.app(linger=0) as app:
        handle = await app.start(asker, "Go on?", id="cancel-1")
        await world.until_parked(app, "cancel-1")
        world.server.workflow("cancel", "-w", "cancel-1")
        with pytest.raises(limpet.RunCancelled, match="cancelled in Temporal"):
            await handle.result(timeout="20s")
        executions = await world.until_closed("cancel-1")
        await app.verify("cancel-1")
    assert [each.status for each in executions] == [Status.CANCELED]
    assert world.ledger.lines() == ["cancel-1 before"]


async def test_a_cancelled_workflow_compensates_effects(world: TemporalWorld) -> None:
    """An effect under way finishes first."""
    async with world.app() as app:
        handle = await app.start(booker, "gate", id="cancel-2")
        await world.recorded("cancel-2 begins")
        world.server.workflow("cancel", "-w", "cancel-2")
        world.server.workflow("cancel", "-w", "cancel-2")
        await world.until(lambda: _is_cancelling(app, "cancel-2"))
        world.ledger.open_gate("gate")
        with pytest.raises(limpet.RunCancelled):
            await handle.result(timeout="20s")
        executions = await world.until_closed("cancel-2")
    assert [each.status for each in executions] == [Status.CANCELED]
    found = [line.split()[1] for line in world.ledger.lines()]
    assert found == ["before", "begins", "books", "unbooks"]


async def _is_cancelling(app: limpet.App, run: str) -> bool:
    return (await app.store.get(run)).cancelling


@pytest.mark.long
async def test_a_workflow_cancelled_before_a_worker_comes_cancels_its_run(world: TemporalWorld) -> None:
    async with world.sender() as app:
        await app.start(asker, "Go on?", id="cancel-3")
        await world.until(lambda: _has_workflow(world, "cancel-3"))
        world.server.workflow("cancel", "-w", "cancel-3")
    async with world.app() as app:
        with pytest.raises(limpet.RunCancelled):
            await (await app.get("cancel-3")).result(timeout="20s")
        executions = await world.until_closed("cancel-3")
    assert [each.status for each in executions] == [Status.CANCELED]
    assert world.ledger.lines() == []


async def _has_workflow(world: TemporalWorld, run: str) -> bool:
    return bool(await world.executions(run))


async def test_a_terminated_workflow_of_a_parked_run_starts_again_with_a_command(world: TemporalWorld) -> None:
    async with world.app(linger=0) as app:
        handle = await app.start(asker, "Go on?", id="end-1")
        await world.until_parked(app, "end-1")
        await world.until(lambda: _is_waiting(world, "end-1"))
        world.server.workflow("terminate", "-w", "end-1")
        await app.answer((await app.inbox())[0].id, True, by="ann")
        assert await handle.result(timeout="20s") == "True"
        executions = await world.until_closed("end-1")
    assert [each.status for each in executions] == [Status.TERMINATED, Status.COMPLETED]
    assert world.ledger.lines() == ["end-1 before", "end-1 after"]


async def _is_waiting(world: TemporalWorld, run: str) -> bool:
    """Return whether the workflow of a run waits, without a drive."""
    return await world.attempts(run) == 0


@pytest.mark.long
async def test_a_terminated_workflow_of_a_sleeping_run_starts_again_when_the_run_is_due(world: TemporalWorld) -> None:
    async with world.app(linger=0) as app:
        handle = await app.start(sleeper, "2s", id="end-2")
        await world.until_parked(app, "end-2")
        await world.until(lambda: _is_waiting(world, "end-2"))
        world.server.workflow("terminate", "-w", "end-2")
        assert await handle.result(timeout="20s") == "2s"
        executions = await world.until_closed("end-2")
    assert [each.status for each in executions] == [Status.TERMINATED, Status.COMPLETED]
    assert world.ledger.lines() == ["end-2 before", "end-2 after"]


@pytest.mark.long
async def test_a_run_goes_on_although_its_workflow_was_terminated(world: TemporalWorld) -> None:
    """The drive under way is not stopped, and the run ends with or without another workflow."""
    async with world.app() as app:
        handle = await app.start(booker, "gate", id="end-3")
        await world.recorded("end-3 begins")
        world.server.workflow("terminate", "-w", "end-3")
        for _ in range(75):
            await world.clock.sleep(20_000)  # the activity hears of it at its next heartbeat
        world.ledger.open_gate("gate")
        assert await handle.result(timeout="20s") == "gate"
        executions = await world.until_closed("end-3")
    assert executions[0].status is Status.TERMINATED
    assert [line.split()[1] for line in world.ledger.lines()] == ["before", "begins", "books", "after"]


@pytest.mark.long
async def test_a_terminated_run_whose_worker_dies_is_taken_up_again(world: TemporalWorld) -> None:
    async with world.sender() as app:
        with world.worker() as first:
            handle = await app.start(booker, "gate", id="end-4")
            await world.recorded("end-4 begins")
            world.server.workflow("terminate", "-w", "end-4")
            first.kill()
        world.ledger.open_gate("gate")
        with world.worker():
            assert await handle.result(timeout="30s") == "gate"
            executions = await world.until_closed("end-4")
    assert [each.status for each in executions] == [Status.TERMINATED, Status.COMPLETED]
    assert world.ledger.count("end-4 before") == {"end-4 before": 1}
    assert len(world.ledger.count("end-4 books")) == 1


@pytest.mark.long
async def test_a_reset_of_a_finished_workflow_does_nothing(world: TemporalWorld) -> None:
    async with world.app() as app:
        await app.run(many_steps, 2, id="reset-1")
        await world.until_closed("reset-1")
        before = [event async for event in app.store.log("reset-1")]
        world.server.workflow("reset", "-w", "reset-1", "--type", "FirstWorkflowTask", "--reason", "test")
        await world.until(lambda: _has_executions(world, "reset-1", 2))
        executions = await world.until_closed("reset-1")
        assert [event async for event in app.store.log("reset-1")] == before
    assert executions[-1].status is Status.COMPLETED


async def _has_executions(world: TemporalWorld, run: str, count: int) -> bool:
    return len(await world.executions(run)) == count


@pytest.mark.long
async def test_a_deleted_workflow_starts_again(world: TemporalWorld) -> None:
    async with world.app(linger=0) as app:
        handle = await app.start(asker, "Go on?", id="delete-1")
        await world.until_parked(app, "delete-1")
        world.server.workflow("delete", "-w", "delete-1", "--yes")
        await app.answer((await app.inbox())[0].id, True, by="ann")
        assert await handle.result(timeout="30s") == "True"
    assert world.ledger.lines() == ["delete-1 before", "delete-1 after"]


@pytest.mark.long
async def test_a_paused_workflow_goes_on_when_it_is_unpaused(world: TemporalWorld) -> None:
    """While it is paused, commands are recorded, and nothing is driven."""
    async with world.app(linger=0) as app:
        handle = await app.start(asker, "Go on?", id="pause-1")
        await world.until_parked(app, "pause-1")
        await world.until(lambda: _is_waiting(world, "pause-1"))
        world.server.workflow("pause", "-w", "pause-1", "--reason", "test")
        await app.answer((await app.inbox())[0].id, True, by="ann")
        with pytest.raises(limpet.NotDone):
            await handle.result(timeout="1s")
        world.server.workflow("unpause", "-w", "pause-1", "--reason", "test")
        assert await handle.result(timeout="30s") == "True"
        executions = await world.until_closed("pause-1")
    assert [each.status for each in executions] == [Status.COMPLETED]
    assert world.ledger.lines() == ["pause-1 before", "pause-1 after"]


@pytest.mark.long
async def test_a_run_cancelled_by_limpet_ends_its_workflow(world: TemporalWorld) -> None:
    async with world.app(linger=0) as app:
        await app.start(asker, "Go on?", id="own-1")
        await world.until_parked(app, "own-1")
        await app.cancel("own-1", reason="test")
        executions = await world.until_closed("own-1")
    assert [each.status for each in executions] == [Status.COMPLETED]


async def test_a_failed_run_that_is_resumed_gets_a_new_execution(world: TemporalWorld) -> None:
    async with world.app() as app:
        handle = await app.start(failing, "gate", id="fail-1")
        with pytest.raises(limpet.RunFailed):
            await handle.result(timeout="20s")
        await world.until_closed("fail-1")
        world.ledger.open_gate("gate")
        await app.resume("fail-1")
        assert await handle.result(timeout="20s") == "done"
        executions = await world.until_closed("fail-1")
    assert [each.status for each in executions] == [Status.FAILED, Status.COMPLETED]


@pytest.mark.long
async def test_a_late_poke_to_a_completed_run_starts_no_workflow(world: TemporalWorld) -> None:
    async with world.app() as app:
        await app.run(many_steps, 1, id="late-1")
        await world.until_closed("late-1")
        assert app._wake_calls is not None
        assert await app._wake_calls.try_call(ReadyRun("late-1", "many_steps", "1", 99, "temporal")) is None
        executions = await world.executions("late-1")
    assert [each.status for each in executions] == [Status.COMPLETED]
