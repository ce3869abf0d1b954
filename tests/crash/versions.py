"""Workers of two versions in one fleet: the newer one writes events that the older one cannot read."""

import asyncio
import logging
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import limpet
from limpet.events import VOCABULARY

__all__ = ["AGENTS", "STEPS", "become_newer", "serve"]

STEPS = 2
RAISED = ("step.completed", "signal.received")


def become_newer(put: Callable[[Any, Any, Any], None] = dict.__setitem__) -> None:
    """Write the next version of some events from now on, and read both."""
    for name in RAISED:
        now = VOCABULARY.kinds[name]
        newer = now._replace(version=now.version + 1)
        put(VOCABULARY._by_body, newer.body, newer)
        put(VOCABULARY.kinds, name, newer)
        put(VOCABULARY._upcasts, (name, now.version), dict)


@limpet.tool(effect="transaction")
def mixed_pay(payment: str) -> None:
    """Write a row that can exist only once."""
    limpet.current().transaction.execute(f"INSERT INTO mine VALUES ('{payment}')")


@limpet.agent()
async def mixed(run: limpet.Run) -> int:
    """Pay, and wait for a signal between the payments."""
    for place in range(STEPS):
        await run.step(mixed_pay, f"{run.id}:{place}")
        await run.receive(f"go-{place}", int)
    return STEPS


AGENTS = (mixed,)


async def serve(pipe: Connection, url: str, log: str, is_newer: bool) -> None:
    """Run a worker and send signals as told, until the process is killed."""
    if is_newer:
        become_newer()
    logging.getLogger("limpet").addHandler(logging.FileHandler(log))
    async with limpet.open(url, agents=AGENTS, worker=limpet.Worker(concurrency=50)) as app:
        pipe.send("ready")
        while True:
            run, signal = await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
            await app.signal(run, signal, 1)
            pipe.send(signal)
