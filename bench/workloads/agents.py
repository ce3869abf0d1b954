"""The tools and agents that are measured: reads and effects with results of 1 KB."""

import asyncio
import logging
from typing import Any

import limpet
from bench.script import BODY, report_step

__all__ = ["AGENTS", "ALL", "TOOLS", "acts", "asks", "logged", "long", "quiet", "reads", "slow", "turns"]


@limpet.tool(effect="none", name="bench_read")
async def read(n: int) -> str:  # noqa: ARG001
    """Return a constant text."""
    return BODY


@limpet.tool(effect="idempotent", risk="none", name="bench_act")
async def act(n: int) -> str:  # noqa: ARG001
    """An effect that takes no time."""
    return BODY


@limpet.tool(effect="none", name="bench_small")
async def small(n: int) -> int:
    """Return a number, for logs of 100,000 steps."""
    return n


@limpet.tool(effect="idempotent", risk="none", name="bench_slow")
async def pause(n: int) -> str:
    """Take 50 ms, and report where this ran."""
    report_step(n)
    await asyncio.sleep(0.05)
    return BODY


@limpet.agent(name="bench_reads")
async def reads(run: limpet.Run, steps: int) -> None:
    for n in range(steps):
        await run.step(read, n)


@limpet.agent(name="bench_acts")
async def acts(run: limpet.Run, steps: int) -> None:
    for n in range(steps):
        await run.step(act, n)


@limpet.agent(name="bench_slow_acts")
async def slow(run: limpet.Run, steps: int) -> None:
    for n in range(steps):
        await run.step(pause, n)


@limpet.agent(name="bench_asks")
async def asks(run: limpet.Run, steps: int) -> int:
    for n in range(steps):
        await run.step(act, n)
    await run.ask("go on?")
    return steps


@limpet.agent(name="bench_long", checkpoint="every_iteration")
async def long(run: limpet.Run, steps: int) -> int:
    for n in range(steps):
        await run.step(small, n)
    await run.ask("go on?")
    return steps


@limpet.agent(name="bench_turns", checkpoint="on_state_change")
async def turns(run: limpet.Run, count: int) -> int:
    async for turn in run.turns():
        await run.step(small, turn.number)
        if turn.number >= count:
            await run.ask("go on?")
            return count
    return 0


@limpet.agent(name="bench_logged", checkpoint="on_state_change")
async def logged(run: limpet.Run, steps: int) -> int:
    """Write a long log quickly."""
    for n in range(steps):
        await run.step(small, n)
        if n % 100 == 0:
            await run.patch(facts={"last": n})
    return steps


TOOLS = {"read": read, "effect": act}
AGENTS: dict[str, limpet.Agent[int, Any]] = {"read": reads, "effect": acts}
"""By the kind of their steps."""
ALL: tuple[limpet.Agent[int, Any], ...] = (reads, acts, slow, asks, long, turns, logged)


def quiet() -> None:
    """Keep the worker's log out of the output."""
    logging.getLogger("limpet").setLevel(logging.CRITICAL)
