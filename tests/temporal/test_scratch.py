import asyncio, time, signal, os
import limpet
from tests.temporal.agents import booker, many_steps
from tests.servers.preloaded import LIMPET, ROOT, run
from tests.servers.temporal import TemporalServer
from tests.temporal.ledger import FOLDER
from tests.temporal.temporal_world import ALSO
async def test_errors(world):
    env={**os.environ, FOLDER: str(world.ledger.folder)}
    for e in ["temporal://", "temporal://h:1/ns?heartbeat=x", "temporal://h/ns?heartbeat=0.1s","temporal://h/ns?beat=1s", "temporal://u:pw@h/ns", "temporal://h:99999/ns", "http://x", "temporal", "temporal://h/a/b", "temporal:h"]:
        if e in ("temporal",): continue
        d=run([LIMPET,"worker","tests.temporal.agents:agents","--engine",e,"--url",world.store],cwd=ROOT,env=env,also=ALSO)
        print(e,"->",d.returncode,d.stdout,d.stderr[-400:])

async def test_namespace(world):
    old=world.server.url
    world.server.url=lambda hb="1s": f"temporal://{world.server.host}/nowhere?heartbeat=1s"
    try:
        with world.worker() as w:
            await world.clock.sleep(8_000_000)
            async with world.sender() as app:
                await app.start(many_steps, 1, id="n-1")
                await world.clock.sleep(2_000_000)
    finally:
        world.server.url=old

async def test_late_server(world):
    with TemporalServer() as s:
        s.kill()
        world.server=s
        with world.worker() as w:
            async with world.sender() as app:
                t=time.time()
                h=await app.start(many_steps, 1, id="n-2")
                print("start", time.time()-t)
                await world.clock.sleep(8_000_000)
                t=time.time()
                s.start()
                print(await h.result(timeout="60s"), time.time()-t)
async def test_blackhole(world):
    from limpet.compose import open_engine
    e=open_engine("temporal://10.255.255.1:7233/x")
    t=time.time()
    try:
        await e.client()
    except Exception as x:
        print(time.time()-t, x)
