import asyncio, time, signal
import limpet
from tests.temporal.agents import booker

async def test_stall(world):
    async with world.sender() as app:
        with world.worker(lease="1s") as first:
            t=time.time()
            handle = await app.start(booker, "gate", id="stall-1")
            await world.recorded("stall-1 begins")
            print("begun", time.time()-t); t=time.time()
            first.send(signal.SIGSTOP)
            with world.worker(lease="1s"):
                print("second", time.time()-t); t=time.time()
                while len(world.ledger.lines()) < 3:
                    await world.clock.sleep(500_000)
                    c=await world.client()
                    d=(await c.get_workflow_handle("stall-1").describe()).raw_description
                    p=d.pending_activities
                    print(round(time.time()-t,1), [(x.attempt, x.state, x.last_failure.message, x.last_worker_identity) for x in p], d.pending_workflow_task.attempt, (await app.store.get("stall-1")).worker)
                print("taken", time.time()-t); t=time.time()
                world.ledger.open_gate("gate")
                assert await handle.result(timeout="30s") == "gate"
                end = (await app.store.get("stall-1")).seq
                first.send(signal.SIGCONT)
                await world.until(lambda: any("lost" in line or "another worker" in line for line in first.log))
                print("revived", time.time()-t); t=time.time()
                await world.until_closed("stall-1")
                print("closed", time.time()-t); t=time.time()
