"""The same agents on Limpet's own workers, and on Temporal with a server of its own."""

import asyncio
import importlib
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import limpet
from bench.script import Stopwatch
from bench.workloads.agents import ALL, acts
from bench.workloads.long_runs import approve_all

__all__ = ["engine"]

reached: dict[str, asyncio.Event] = {}


@limpet.tool(effect="idempotent", risk="none", name="bench_engine_act")
async def first_act(name: str) -> str:
    """Tell the workload that the first step runs."""
    reached[name].set()
    return name


@limpet.agent(name="bench_engine")
async def begins(run: limpet.Run, name: str) -> str:
    return await run.step(first_act, name)


async def engine(url: str, system: str, steps: int, runs: int, each: int, times: int) -> dict[str, float]:
    """Measure one run alone, many at once, the start of a run until its first step, and an approval."""
    async with _engine(system) as address:
        worker = limpet.Worker(concurrency=runs, relaxed_gc=True)
        async with limpet.open(url, engine=address, agents=(*ALL, begins), worker=worker) as app:
            await app.run(acts, each)
            watch = Stopwatch()
            await app.run(acts, steps)
            alone = steps / watch.seconds
            watch = Stopwatch()
            await asyncio.gather(*(app.run(acts, each) for _ in range(runs)))
            together = runs * each / watch.seconds
            first = statistics.median([await _first_step(app, str(number)) for number in range(times)])
            answered = await approve_all(app, times)
    return {"one": alone, "steps": together, "first step": first * 1e3, "round trip": answered * 1e3}


async def _first_step(app: limpet.App, name: str) -> float:
    """Return the seconds from the start of a run until its first step is called."""
    reached[name] = asyncio.Event()
    watch = Stopwatch()
    handle = await app.start(begins, name)
    await reached[name].wait()
    taken = watch.seconds
    await handle.result()
    return taken


@asynccontextmanager
async def _engine(system: str) -> AsyncIterator[str | None]:
    """Yield the address of a Temporal server, started as that of the peer; None for Limpet's own workers."""
    if system != "temporal":
        yield None
        return
    peer: Any = importlib.import_module("bench.peers.temporal")
    with TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as folder:
        async with peer.server(f"sqlite:///{folder}/temporal.db") as client:
            yield f"temporal://{client.service_client.config.target_host}/default"
