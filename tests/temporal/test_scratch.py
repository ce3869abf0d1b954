import asyncio, time
import pytest
import limpet
from limpet.errors import *
from temporalio.client import WorkflowExecutionStatus as S
from tests.temporal.agents import *
from tests.temporal import agents as a
from tests.temporal.temporal_world import TemporalWorld

async def test_steps(world):
    t=time.time()
    async with world.app() as app:
        print("open", time.time()-t); t=time.time()
        assert await app.run(a.many_steps, 1000, id="s-1") == 1000
        print("1000 steps", time.time()-t); t=time.time()
    print("close", time.time()-t); t=time.time()
    print(await world.executions("s-1"))

async def test_parks(world):
    t=time.time()
    async with world.app(linger=0) as app:
        assert await app.run(a.many_parks, 40, id="p-1") == 40
        print("40 parks", time.time()-t); t=time.time()
    print(await world.executions("p-1"))

async def test_sleeping_commands(world):
    async with world.app(linger=0) as app:
        h = await app.start(a.hurried, "1h", id="h-1", deadline="1h")
        await world.until_parked(app, "h-1")
        await app.score("h-1", "quality", 1.0) if False else await app.extend("h-1", deadline="2h")
        for _ in range(50): await world.clock.sleep(20000)
        print("attempts", await world.attempts("h-1"))
        t=time.time()
        await app.signal("h-1","word","hello")
        print(await h.result(timeout="5s"), time.time()-t)

async def test_start_at(world):
    from datetime import datetime, timedelta, timezone
    async with world.app(linger=0) as app:
        h = await app.start(a.sleeper, "1s", id="at-1", at="1h")
        for _ in range(50): await world.clock.sleep(20000)
        print("attempts", await world.attempts("at-1"))
        await app.cancel("at-1", reason="x")
        with pytest.raises(limpet.RunCancelled):
            print(await h.result(timeout="5s"))
        print(await world.until_closed("at-1"))
