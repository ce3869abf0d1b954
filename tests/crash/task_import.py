"""Process function for tests of imports: imports tasks, and is killed at a place."""

from multiprocessing.connection import Connection

import limpet
from tests.crash.agents import install_kill

__all__ = ["import_all"]


async def import_all(pipe: Connection, url: str, source: str, where: str) -> None:
    """Import tasks, or die on the way."""
    pipe.send("ready")
    install_kill(where)
    async with limpet.open(url, worker=False) as app:
        await app.import_tasks(source, agent="imported")
