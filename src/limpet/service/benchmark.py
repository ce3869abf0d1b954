"""Benchmark runs on a store, one alone and many in parallel, compared with bare loops on the same kind of database."""

import asyncio
import statistics
from collections.abc import Awaitable
from functools import cache
from typing import Any

from msgspec import Struct

from limpet.clock import SystemClock
from limpet.engine.definitions.agents import Agent
from limpet.engine.definitions.tools import tool
from limpet.engine.run.agent_decorator import agent
from limpet.engine.run.run import Run
from limpet.service.app import App
from limpet.service.progress import progress
from limpet.stores.baseline import RUNS, Baseline

__all__ = ["BenchLoad", "Measurement", "agents", "measure", "measure_runs"]

BODY = "x" * 900
COMMITS, BATCHES, ROUNDS = 500, 30, 3
# Targets: maximum ratio of a step to a bare commit, and minimum number of steps per second of many runs.
TARGETS = {"read": (2.2, 7_500), "effect": (3, 5_500)}


class BenchLoad(Struct, frozen=True, kw_only=True):
    """Size of the benchmark."""

    steps: int = 300
    """Number of steps of the run that runs alone."""
    runs: int = 200
    """Number of concurrent runs."""
    each: int = 10
    """Number of steps of each concurrent run."""


class Measurement(Struct, frozen=True, kw_only=True):
    """One result, and its ratio to the bare loop."""

    what: str
    """Subject of the measurement."""
    figure: float
    """Measured value."""
    unit: str
    """µs each, rows/s or steps/s."""
    ratio: float | None = None
    """For one run: multiple of a bare commit. For many: fraction of the bare rows per second."""
    aim: str = ""
    """Aim, for people."""


@cache
def agents() -> tuple[Agent[int, None], Agent[int, None]]:
    """Return an agent that reads and one that has effects. They are only defined when the benchmark runs."""

    @tool(effect="none", name="limpet_bench_read")
    async def read(n: int) -> str:  # noqa: ARG001
        """Return a constant text."""
        return BODY

    @tool(effect="idempotent", risk="none", name="limpet_bench_act")
    async def act(n: int) -> str:  # noqa: ARG001
        """An effect that takes no time."""
        return BODY

    @agent(name="limpet_bench_reads")
    async def reads(run: Run, steps: int) -> None:
        """Run `steps` reads, one after the other."""
        for n in range(steps):
            await run.step(read, n)

    @agent(name="limpet_bench_acts")
    async def acts(run: Run, steps: int) -> None:
        """Run `steps` effects, one after the other."""
        for n in range(steps):
            await run.step(act, n)

    return reads, acts


async def measure(app: App, bare: Baseline, load: BenchLoad) -> list[Measurement]:
    """Return the medians of several rounds. Each round measures everything, so slow moments affect all alike."""
    found: dict[str, list[float]] = {}
    for number in range(ROUNDS):
        taken = {
            "bare": await asyncio.to_thread(bare.per_commit, number * COMMITS, COMMITS),
            "rows": await asyncio.to_thread(bare.rows_per_second, number * BATCHES, BATCHES),
            **await measure_runs(app, load),
        }
        for name, figure in taken.items():
            found.setdefault(name, []).append(figure)
        progress(number + 1, ROUNDS)
    return _measurements({name: statistics.median(figures) for name, figures in found.items()}, load)


async def measure_runs(app: App, load: BenchLoad) -> dict[str, float]:
    """Return microseconds per step of one run, and steps per second of many concurrent runs."""
    found: dict[str, float] = {}
    for doing, name in zip(agents(), TARGETS, strict=True):
        await app.run(doing, 20)  # Warm up: one-time costs are not measured.
        found[f"one {name}"] = await _timed(app.run(doing, load.steps)) / load.steps
        together = asyncio.gather(*(app.run(doing, load.each) for _ in range(load.runs)))
        found[f"many {name}s"] = load.runs * load.each / (await _timed(together) / 10**6)
    return found


def _measurements(median: dict[str, float], load: BenchLoad) -> list[Measurement]:
    one, many = [], []
    for name, (times, rate) in TARGETS.items():
        alone, together = median[f"one {name}"], median[f"many {name}s"]
        what, aim = f"one run of {load.steps} {name}s", f"at most {times}×"
        one.append(Measurement(what=what, figure=alone, unit="µs each", ratio=alone / median["bare"], aim=aim))
        what, aim = f"{load.runs} concurrent runs of {load.each} {name}s", f"at least {rate:,}/s"
        many.append(Measurement(what=what, figure=together, unit="steps/s", ratio=together / median["rows"], aim=aim))
    single = Measurement(what="bare commits, one after another", figure=median["bare"], unit="µs each")
    rows = Measurement(what=f"bare rows, {RUNS} in a commit", figure=median["rows"], unit="rows/s")
    return [single, *one, rows, *many]


async def _timed(work: Awaitable[Any]) -> int:
    clock = SystemClock()
    begun = clock.ticks()
    await work
    return max(clock.ticks() - begun, 1)
