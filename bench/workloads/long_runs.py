"""Runs that wait: resumed after many steps or turns, answered by a person, read at any step; and an idle worker."""

import asyncio
import statistics
from collections.abc import Awaitable
from typing import Any

import limpet
from bench.script import Stopwatch, wait_for
from bench.workloads.agents import ALL, acts, asks, logged, long, turns

__all__ = ["approval", "approve_all", "idle", "leave", "resume", "states"]

LEFT = "left"
KINDS: dict[str, limpet.Agent[int, Any]] = {"steps": long, "turns": turns}


async def leave(url: str, kind: str, count: int) -> dict[str, float]:
    """Leave a run that waits for a person after some steps or turns, and answer it while no worker is there."""
    async with limpet.open(url, agents=ALL) as app:
        await app.start(KINDS[kind], count, id=LEFT)
        await wait_for(lambda: _is_waiting(app, LEFT))
    async with limpet.open(url, worker=False) as people:
        await people.approve((await people.inbox(run=LEFT))[0], by="bench")
    return {}


async def resume(url: str) -> dict[str, float]:
    """Measure from opening the store until the run that was left has ended."""
    limpet.open_store(url)  # loads the driver of the database, as the imports of the peers do
    watch = Stopwatch()
    async with limpet.open(url, agents=ALL) as app:
        await (await app.get(LEFT)).result()
        return {"resume": watch.seconds * 1e3, "cpu": watch.cpu * 1e3}


async def approval(url: str, times: int) -> dict[str, float]:
    """Measure from a person's answer until the run that asked has ended."""
    async with limpet.open(url, agents=ALL) as app:
        return {"round trip": await approve_all(app, times) * 1e3}


async def approve_all(app: limpet.App, times: int) -> float:
    """Return the median of the seconds from an answer until the run that asked has ended."""
    spent = []
    for _ in range(times):
        handle = await app.start(asks, 1)
        run = handle.id
        await wait_for(lambda run=run: _is_waiting(app, run))  # type: ignore[misc]
        request = (await app.inbox(run=run))[0]
        watch = Stopwatch()
        await app.approve(request, by="bench")
        await handle.result()
        spent.append(watch.seconds)
    return statistics.median(spent)


async def states(url: str, steps: int, samples: int) -> dict[str, float]:
    """Measure how long it takes to read the state before any step of a long run."""
    async with limpet.open(url, agents=ALL) as app:
        await app.run(logged, steps, id="logged")
        chosen = [n * 48_611 % steps + 1 for n in range(samples)]  # here and there
        taken = [await _timed(app.state("logged", before=step)) for step in chosen]
        return {"read": statistics.median(taken) * 1e3}


async def idle(url: str, seconds: float) -> dict[str, float]:
    """Return the CPU of a worker that has nothing to do, in percent of a core."""
    async with limpet.open(url, agents=ALL) as app:
        await app.run(acts, 1)
        await asyncio.sleep(min(seconds, 1))
        watch = Stopwatch()
        await asyncio.sleep(seconds)
        return {"idle": watch.cpu / watch.seconds * 100}


async def _is_waiting(app: limpet.App, run: str) -> bool:
    return (await app.info(run)).status == "waiting"


async def _timed(work: Awaitable[Any]) -> float:
    watch = Stopwatch()
    await work
    return watch.seconds
