import asyncio, time, signal
from tests.temporal.test_run_workflow import *
async def test_x(world):
    client, drives = await world.client(), Drives()
    async with driving(client, drives):
        async with workflows(client, drives):
            handle = await started(client, "alone-1")
            await world.until(lambda: drives.begun)
        await drives.results.put(Driven("parked", "waiting", 5, None))
        await world.until(lambda: _has_no_drive(world, "alone-1"))
        await handle.cancel()
        async with workflows(client, drives):
            await world.clock.sleep(2_000_000)
            for e in await world.executions("alone-1"):
                print(e)
                for ev in e.events: print(ev.event_id, ev.WhichOneof("attributes"), str(ev)[:600] if "failed" in ev.WhichOneof("attributes") else "")
async def _has_no_drive(world: TemporalWorld, run: str) -> bool:
    return await world.attempts(run) == 0
