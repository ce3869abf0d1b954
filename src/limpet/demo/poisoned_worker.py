"""A worker process that the importer of the demo kills; it ends by itself once the run is quarantined."""

import asyncio
import sys

import limpet
from limpet.demo.shop_agents import importer

__all__: list[str] = []


async def work(url: str) -> None:
    """Execute the import until it waits for an operator."""
    async with limpet.open(url, agents=[importer]) as app:
        async for event in app.events("import-2019", (await app.info("import-2019")).position.seq):
            if event.kind == "run.waiting":
                return


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
