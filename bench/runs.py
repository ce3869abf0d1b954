"""Speed of runs: one alone, 200 concurrently, replayed, resumed in turns; on the same stores as the bare loops."""

import logging
import time
from typing import Any

import limpet
from limpet.service.benchmark import BenchLoad, agents, measure_runs

STEPS, RUNS, EACH = 300, 200, 10
REPLAYED, TURNS, LOGGED = 10_000, 100_000, 100_000


@limpet.tool(effect="none")
async def bench_small(n: int) -> int:
    return n


@limpet.agent(name="bench_long", checkpoint="every_iteration")
async def long(run: limpet.Run, steps: int) -> int:
    for n in range(steps):
        await run.step(bench_small, n)
    await run.ask("go on?")
    return steps


@limpet.agent(name="bench_turns", checkpoint="on_state_change")
async def turns(run: limpet.Run, count: int) -> int:
    async for turn in run.turns():
        await run.step(bench_small, turn.number)
        if turn.number >= count:
            await run.ask("go on?")
            return count
    return 0


@limpet.agent(name="bench_logged", checkpoint="on_state_change")
async def logged(run: limpet.Run, steps: int) -> int:
    """Write a long log quickly."""
    for n in range(steps):
        await run.step(bench_small, n)
        if n % 100 == 0:
            await run.patch(facts={"last": n})
    return steps


AGENTS = [*agents(), long, turns, logged]


async def measure(url: str) -> dict[str, float]:
    """Return microseconds per step of one run alone, and steps per second of 200 concurrent runs."""
    async with limpet.open(url, agents=AGENTS, worker=limpet.Worker(concurrency=RUNS)) as app:
        return await measure_runs(app, BenchLoad(steps=STEPS, runs=RUNS, each=EACH))


async def measure_resumes(url: str) -> dict[str, float]:
    """Return milliseconds from opening an app until a run that another process left has completed."""
    found = {}
    for agent, count in ((long, REPLAYED), (turns, TURNS)):
        async with limpet.open(url, agents=AGENTS) as app:
            handle = await app.start(agent, count, id=agent.name)
            async for event in handle.events():
                if event.kind == "run.waiting":
                    break
        async with limpet.open(url, worker=False) as people:
            await people.approve((await people.inbox(run=agent.name))[0], by="bench")
        begun = time.perf_counter()
        async with limpet.open(url, agents=AGENTS) as app:
            await (await app.get(agent.name)).result()
            found[f"{agent.name} {count} resumed, with opening"] = (time.perf_counter() - begun) * 1e3
    return found


async def measure_states(url: str) -> dict[str, float]:
    """Return the median of milliseconds to load the state before any step of a run with 100,000 steps."""
    async with limpet.open(url, agents=AGENTS) as app:
        await app.run(logged, LOGGED, id="logged")
        chosen = [n * 48_611 % LOGGED + 1 for n in range(101)]  # here and there
        taken = sorted([await _timed(app.state("logged", before=step)) for step in chosen])
    return {f"state at a step of {LOGGED:,}": taken[50] * 1e3}


async def _timed(work: Any) -> float:
    begun = time.perf_counter()
    await work
    return time.perf_counter() - begun


def quiet() -> None:
    """Keep the worker's log out of the table."""
    logging.getLogger("limpet").setLevel(logging.ERROR)
