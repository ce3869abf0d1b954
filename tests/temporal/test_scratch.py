import asyncio, time, signal
import pytest
import limpet
from tests.temporal import agents as a


async def test_outage_logs(world):
    async with world.sender() as app:
        with world.worker() as one:
            h = await app.start(a.booker, "gate", id="o-1")
            await world.recorded("o-1 begins")
            world.server.kill()
            t = time.time()
            await world.clock.sleep(6_000_000)
            world.ledger.open_gate("gate")
            await world.clock.sleep(6_000_000)
            world.server.start()
            t = time.time()
            print(await h.result(timeout="60s"), time.time() - t)
            ex = await world.until_closed("o-1")
            print(ex, time.time() - t)
            t = time.time()
            h = await app.start(a.many_steps, 3, id="o-2")
            print(await h.result(timeout="60s"), time.time() - t)
            t = time.time()
            one.send(signal.SIGTERM)
            print(one.end(), time.time() - t)
    print(world.ledger.lines())
