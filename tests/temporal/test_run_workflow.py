"""The workflow alone, with drives that the test answers: orders of events that a whole worker rarely meets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from limpet.temporal.run_workflow import CANCEL, DRIVE, POKE, WORKFLOW, Driven, RunArgs, RunWorkflow
from tests.temporal.temporal_world import TemporalWorld

QUEUE = "workflow-alone"


class Drives:
    """The activities of a worker, whose drives return what a test gives them."""

    def __init__(self) -> None:
        self.begun = 0
        self.results: asyncio.Queue[Driven] = asyncio.Queue()
        self.cancelled: list[str] = []

    @activity.defn(name=DRIVE)
    async def drive(self, run: str) -> Driven:  # noqa: ARG002 - as the workflow calls it
        self.begun += 1
        return await self.results.get()

    @activity.defn(name=CANCEL)
    async def cancel(self, run: str, workflow_run: str) -> None:  # noqa: ARG002
        self.cancelled.append(run)


async def started(client: Client, run: str) -> WorkflowHandle[RunWorkflow, str]:
    args = RunArgs(run=run, queue=f"{QUEUE}-drives", heartbeat=60, has_attributes=False)
    found: WorkflowHandle[RunWorkflow, str] = await client.start_workflow(
        WORKFLOW, args, id=run, task_queue=QUEUE, start_signal=POKE, start_signal_args=[1], result_type=str
    )
    return found


@asynccontextmanager
async def workflows(client: Client, drives: Drives) -> AsyncIterator[None]:
    """Advance workflows."""
    runner = UnsandboxedWorkflowRunner()
    async with Worker(
        client,
        task_queue=QUEUE,
        workflows=[RunWorkflow],
        activities=[drives.cancel],
        workflow_runner=runner,
        max_cached_workflows=0,
        no_remote_activities=True,
    ):
        yield


@asynccontextmanager
async def driving(client: Client, drives: Drives) -> AsyncIterator[None]:
    """Answer drives."""
    async with Worker(client, task_queue=f"{QUEUE}-drives", activities=[drives.drive]):
        yield


async def test_a_cancellation_together_with_the_end_of_a_drive_cancels_the_run(world: TemporalWorld) -> None:
    """Both are in the same workflow task, because no worker advanced the workflow in between."""
    client, drives = await world.client(), Drives()
    async with driving(client, drives):
        async with workflows(client, drives):
            handle = await started(client, "alone-1")
            await world.until(lambda: drives.begun)
        await drives.results.put(Driven("parked", "waiting", 5, None))
        await world.until(lambda: _has_no_drive(world, "alone-1"))
        await handle.cancel()
        async with workflows(client, drives):
            await world.until(lambda: drives.begun == 2)
            assert drives.cancelled == ["alone-1"]
            await drives.results.put(Driven("ended", "cancelled", 9, None))
            with pytest.raises(WorkflowFailureError):
                await handle.result()
    assert (await handle.describe()).status is WorkflowExecutionStatus.CANCELED


async def _has_no_drive(world: TemporalWorld, run: str) -> bool:
    return await world.attempts(run) == 0


@pytest.mark.long
async def test_pokes_during_a_drive_do_not_make_the_history_long(world: TemporalWorld) -> None:
    """A run that no worker serves is poked now and then, for as long as it waits."""
    client, drives = await world.client(), Drives()
    async with workflows(client, drives):
        handle = await started(client, "alone-2")
        for number in range(60):
            await client.get_workflow_handle("alone-2").signal(POKE, number)
            await world.until(lambda: _is_advanced(world, "alone-2"))
        async with driving(client, drives):
            await drives.results.put(Driven("parked", "waiting", 70, None))
            await drives.results.put(Driven("ended", "completed", 71, None))
            await world.until(lambda: drives.begun == 1)
            await client.get_workflow_handle("alone-2").signal(POKE, 71)
            assert await handle.result() == "completed"
    executions = await world.until_closed("alone-2")
    assert len(executions) > 1
    assert max(len(each.events) for each in executions) <= 200, executions


async def _is_advanced(world: TemporalWorld, run: str) -> bool:
    """Return whether the workflow has seen everything."""
    found = await (await world.client()).get_workflow_handle(run).describe()
    return not found.raw_description.HasField("pending_workflow_task")


async def test_a_poke_that_comes_with_the_end_of_a_drive_is_not_lost(world: TemporalWorld) -> None:
    client, drives = await world.client(), Drives()
    async with driving(client, drives):
        async with workflows(client, drives):
            handle = await started(client, "alone-3")
            await world.until(lambda: drives.begun)
        await drives.results.put(Driven("parked", "waiting", 5, None))
        await world.until(lambda: _has_no_drive(world, "alone-3"))
        await handle.signal(POKE, 6)
        await drives.results.put(Driven("ended", "completed", 9, None))
        async with workflows(client, drives):
            assert await handle.result() == "completed"
    assert drives.begun == 2
