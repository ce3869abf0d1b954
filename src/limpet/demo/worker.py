"""The worker process of the demo: it executes runs until it is killed or its stdin closes."""

import asyncio
import logging
import os
import sys
from threading import Thread, Timer

import limpet
from limpet.demo.ticket_agent import support

__all__: list[str] = []


# Seconds in which it may release its runs on shutdown.
GRACE = 3.0


async def work(url: str) -> None:
    """Execute runs until stdin closes: the parent process is done or gone."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def listen() -> None:
        sys.stdin.buffer.read()
        late = Timer(GRACE, os._exit, (1,))
        late.daemon = True
        late.start()
        loop.call_soon_threadsafe(done.set)

    Thread(target=listen, daemon=True).start()
    async with limpet.open(url, agents=[support]):
        await done.wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    asyncio.run(work(sys.argv[1]))
