"""Agents of a worker that is killed repeatedly: innocent ones, and one that kills its own process."""

import asyncio
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import limpet
from limpet.clock import SECOND, SystemClock

__all__ = ["AGENTS", "STEPS", "serve"]

STEPS = 3
# Long enough to be killed in, and short enough for progress within the shortest life of a worker.
MOMENT = SECOND * 2 // 5


@limpet.tool(effect="none")
async def suspect_look(place: int) -> int:
    """Sleep for a moment."""
    await SystemClock().sleep(MOMENT)
    return place


@limpet.tool(effect="transaction")
def suspect_pay(payment: str) -> None:
    """Write a row that can exist only once."""
    limpet.current().transaction.execute(f"INSERT INTO mine VALUES ('{payment}')")


@limpet.agent()
async def innocent(run: limpet.Run) -> int:
    """Pay several times, with a pause before each payment."""
    for place in range(STEPS):
        await run.step(suspect_look, place)
        await run.step(suspect_pay, f"{run.id}:{place}")
    return STEPS


@limpet.tool(effect="none")
async def suspect_kill(mended: str) -> None:
    """Kill the process until the file `mended` exists."""
    if not Path(mended).exists():
        os.kill(os.getpid(), signal.SIGKILL)


@limpet.agent()
async def killer(run: limpet.Run, mended: str) -> None:
    """Pay, and kill the worker."""
    await run.step(suspect_pay, f"{run.id}:0")
    await run.step(suspect_kill, mended)


AGENTS = (innocent, killer)


async def serve(pipe: Connection, url: str, concurrency: int, parole: tuple[str, ...]) -> None:
    """Run a worker until the process is killed."""
    async with limpet.open(url, agents=AGENTS, worker=limpet.Worker(concurrency=concurrency, parole=parole)):
        pipe.send("ready")
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
