"""How fast runs are on a store: one alone, and many at once, beside bare loops on the same kind of database."""

import asyncio
import statistics
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import cache
from typing import Any

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
# How much slower than a bare commit a step of one run may be, and how many a second many runs should come to.
AIMS = {"read": (3, 10_000), "effect": (5, 7_000)}


@dataclass(frozen=True, kw_only=True)
class BenchLoad:
    """How much is measured."""

    steps: int = 300
    """Of a run alone."""
    runs: int = 200
    """At once."""
    each: int = 10
    """Steps of each of them."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A figure, and what it is beside that of a bare loop."""

    what: str
    figure: float
    unit: str
    """µs each, rows/s or steps/s."""
    ratio: float | None = None
    """Of one alone, how many times a bare commit; of many, how many times bare rows a second."""
    aim: str = ""


@cache
def agents() -> tuple[Agent[int, None], Agent[int, None]]:
    """An agent that only reads, and one that acts; nobody has them who does not measure."""

    @tool(effect="none", name="limpet_bench_read")
    async def read(n: int) -> str:  # noqa: ARG001
        """A page."""
        return BODY

    @tool(effect="idempotent", risk="none", name="limpet_bench_act")
    async def act(n: int) -> str:  # noqa: ARG001
        """An effect that takes no time."""
        return BODY

    @agent(name="limpet_bench_reads")
    async def reads(run: Run, steps: int) -> None:
        """Step after step."""
        for n in range(steps):
            await run.step(read, n)

    @agent(name="limpet_bench_acts")
    async def acts(run: Run, steps: int) -> None:
        """Step after step."""
        for n in range(steps):
            await run.step(act, n)

    return reads, acts


async def measure(app: App, bare: Baseline, load: BenchLoad) -> list[Measurement]:
    """The medians of some rounds, taken in turn: a slow moment of the machine hits all of them alike."""
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
    return _told({name: statistics.median(figures) for name, figures in found.items()}, load)


async def measure_runs(app: App, load: BenchLoad) -> dict[str, float]:
    """Microseconds a step of one run alone; steps a second of many at once."""
    found: dict[str, float] = {}
    for doing, name in zip(agents(), AIMS, strict=True):
        await app.run(doing, 20)  # what is done once is not measured
        found[f"one {name}"] = await _timed(app.run(doing, load.steps)) / load.steps
        together = asyncio.gather(*(app.run(doing, load.each) for _ in range(load.runs)))
        found[f"many {name}s"] = load.runs * load.each / (await _timed(together) / 10**6)
    return found


def _told(median: dict[str, float], load: BenchLoad) -> list[Measurement]:
    one, many = [], []
    for name, (times, rate) in AIMS.items():
        alone, together = median[f"one {name}"], median[f"many {name}s"]
        what, aim = f"one run of {load.steps} {name}s", f"at most {times}×"
        one.append(Measurement(what=what, figure=alone, unit="µs each", ratio=alone / median["bare"], aim=aim))
        what, aim = f"{load.runs} runs of {load.each} {name}s at once", f"at least {rate:,}/s"
        many.append(Measurement(what=what, figure=together, unit="steps/s", ratio=together / median["rows"], aim=aim))
    single = Measurement(what="bare commits, one after another", figure=median["bare"], unit="µs each")
    rows = Measurement(what=f"bare rows, {RUNS} in a commit", figure=median["rows"], unit="rows/s")
    return [single, *one, rows, *many]


async def _timed(work: Awaitable[Any]) -> int:
    clock = SystemClock()
    begun = clock.ticks()
    await work
    return max(clock.ticks() - begun, 1)
