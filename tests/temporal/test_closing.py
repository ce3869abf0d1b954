"""A short script leaves no workflow open."""

import asyncio

import pytest

from tests.temporal.agents import many_steps
from tests.temporal.temporal_world import TemporalWorld

pytestmark = pytest.mark.long


async def test_a_short_script_leaves_no_workflow(world: TemporalWorld) -> None:
    for number in range(10):
        async with world.app() as app:
            await app.run(many_steps, 1, id=f"short-{number}")
    await _check_none_open(world)


async def test_many_runs_at_once_leave_no_workflow(world: TemporalWorld) -> None:
    async with world.app() as app:
        await asyncio.gather(*(app.run(many_steps, 1, id=f"many-{number}") for number in range(50)))
    await _check_none_open(world)


async def _check_none_open(world: TemporalWorld) -> None:
    client = await world.client()
    queue = f"limpet-{(await _identity(world))[:8]}"
    found = client.list_workflows(f"TaskQueue = '{queue}' AND ExecutionStatus = 'Running'")
    # Temporal lists a workflow a moment after it has changed, so ask for each.
    still = [each.id async for each in found]
    shown = [await client.get_workflow_handle(run).describe() for run in still]
    assert [each.id for each in shown if each.close_time is None] == []


async def _identity(world: TemporalWorld) -> str:
    async with world.outsider() as app:
        return await app.store.identity()
