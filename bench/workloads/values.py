"""Results of several shapes: what recording one costs beside plain encoding, and what a step that returns it costs."""

import timeit
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

import limpet
from bench.script import BODY, Stopwatch
from limpet.engine.definitions.types import codec_of

__all__ = ["SHAPES", "values"]

# Tries of a short measurement, of which the fastest counts, and calls in each.
TRIES, CALLS = 7, 500


class Shape(NamedTuple):
    """A result, and its annotation."""

    returns: Any
    result: Any


SHAPES = {
    "text": Shape(str, BODY),
    "objects": Shape(list[dict[str, Any]], [{"id": n, "name": f"item {n}", "ok": True, "tag": "x"} for n in range(50)]),
    "fractions": Shape(list[float], [n / 7 for n in range(1_536)]),
}


async def values(url: str, shape: str, steps: int) -> dict[str, float]:
    """Measure microseconds: to check and encode a result, to encode it with msgspec alone, and CPU of its step."""
    returns, result = SHAPES[shape]

    async def fetch(n: int) -> Any:  # noqa: ARG001
        return result

    fetch.__annotations__["return"] = returns
    tool = limpet.tool(effect="none", name=f"bench_{shape}")(fetch)

    @limpet.agent(name="bench_values")
    async def fetches(run: limpet.Run, steps: int) -> None:
        for n in range(steps):
            await run.step(tool, n)

    codec = codec_of(returns)
    recorded, alone = _fastest(lambda: codec.encode(result)), _fastest(lambda: msgspec.json.encode(result))
    async with limpet.open(url, agents=[fetches]) as app:
        await app.run(fetches, steps // 10)  # One-time costs are not measured.
        watch = Stopwatch()
        await app.run(fetches, steps)
        cpu = watch.cpu / steps * 1e6
    return {"recorded": recorded, "alone": alone, "share": recorded / alone, "cpu": cpu}


def _fastest(work: Callable[[], object]) -> float:
    return min(timeit.repeat(work, number=CALLS, repeat=TRIES)) / CALLS * 1e6
