"""Process functions for tests of retention: a worker that deletes old runs, and is killed at a place."""

import asyncio
from multiprocessing.connection import Connection
from pathlib import Path

import limpet
from tests.crash.agents import install_kill

__all__ = ["tidy"]


async def tidy(pipe: Connection, url: str, archive: str, where: str) -> None:
    """Run a worker that deletes old runs until told to stop, or killed."""
    keep = limpet.Retention(older_than="1d", archive=Path(archive) if archive else None, snapshots=1, every="1h")
    pipe.send("ready")
    install_kill(where)
    async with limpet.open(url, worker=limpet.Worker(lease="300ms", keep=keep)):
        await asyncio.to_thread(pipe.recv)
