"""A run moves between the workers of Limpet and Temporal, in the middle and back."""

from temporalio.client import WorkflowExecutionStatus as Status

import limpet
from tests.temporal.agents import temporal_mark
from tests.temporal.temporal_world import TemporalWorld


@limpet.agent()
async def temporal_wanderer(run: limpet.Run) -> list[str]:
    """Make a mark, wait to be told where it is, and so on."""
    places = []
    for number in range(4):
        await run.step(temporal_mark, f"{run.id} {number}")
        places.append(await run.receive("place", str))
    return places


AGENTS = [temporal_wanderer]
LINGER = 50_000


async def test_a_run_moves_to_temporal_and_back_and_to_temporal_again(world: TemporalWorld) -> None:
    """Each part is driven where the run is. No mark is made twice, the log verifies, and no workflow is left."""
    built_in = limpet.open(world.store, engine="builtin", agents=AGENTS, worker=limpet.Worker(lease="2s"))
    built_in._settings.linger = LINGER
    async with built_in as here, world.app(AGENTS, linger=LINGER) as there:
        handle = await here.start(temporal_wanderer, id="moved-1")
        for number, (app, engine) in enumerate([(here, "temporal"), (there, "builtin"), (here, "temporal")]):
            await world.recorded(f"moved-1 {number}")
            await world.until_parked(here, "moved-1")
            await app.move("moved-1", engine=engine)
            await app.signal("moved-1", "place", engine)
        await world.recorded("moved-1 3")
        await there.signal("moved-1", "place", "end")
        assert await handle.result(timeout="30s") == ["temporal", "builtin", "temporal", "end"]
        executions = await world.until_closed("moved-1")
        await here.verify("moved-1")
    statuses = [each.status for each in executions]
    assert statuses in ([Status.FAILED, Status.COMPLETED], [Status.COMPLETED])  # one that learns late of a move goes on
    assert sorted(world.ledger.lines()) == [f"moved-1 {number}" for number in range(4)]
