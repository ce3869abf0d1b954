"""Runs on a failing disk: `python -m tests.crash.disk FOLDER WHAT`, with a preloaded library that injects failures."""

import asyncio
import errno
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.stores import Store
from limpet.stores.conformance.suite import created
from limpet.stores.sqlite import SqliteBackend
from tests.crash.outage_load import Walkers
from tests.servers.disk import SYNC, WRITE, Disk

FAULTS = {"ENOSPC": (WRITE, errno.ENOSPC), "EIO": (WRITE, errno.EIO), "fsync": (SYNC, errno.EIO)}


async def each(folder: Path, fault: str, *places: str) -> None:
    """Repeat the same runs, each time with another failing write or sync."""
    disk, met, (call, error) = Disk(), 0, FAULTS[fault]
    for place in range(*map(int, places)):
        before = disk.failed
        path = folder / str(place) / "limpet.db"
        path.parent.mkdir()
        async with limpet.open(f"sqlite:///{path}", agents=Walkers.agents) as app:
            # A single run commits on its event loop.
            walkers = Walkers(app, runs=4, steps=8) if place % 2 else Walkers(app, runs=1, steps=32)
            disk.fails(call, error, nth=place, times=1 + place % 3)
            await walkers.start()
            await walkers.arrive()
            disk.is_well()
        for left in path.parent.iterdir():
            left.unlink(missing_ok=True)
        if disk.failed == before:
            break  # no such write or sync
        met += 1
    print(met)


async def chance(folder: Path, faults: str) -> None:
    """Run under this many random failures, then without."""
    disk = Disk()
    async with limpet.open(f"sqlite:///{folder}/limpet.db", agents=Walkers.agents) as app:
        walkers, rounds = Walkers(app), 0
        while disk.failed < int(faults):
            rounds += 1
            disk.fails_by_chance(rounds, 8)
            await walkers.start()
            await walkers.more(10)
            disk.is_well()
        await walkers.arrive()
    print(disk.failed, rounds)


async def unsynced(folder: Path) -> None:
    """Check that nothing is acknowledged between a failed sync of the log and a successful sync of the database.

    A full disk needs no such sync.
    """
    disk = Disk()
    async with Store(SqliteBackend(folder / "limpet.db", patience="300ms"), patience=0) as store:
        disk.fails(SYNC, errno.EIO, times=-1, suffix=".db", rule=1)
        disk.fails(WRITE, errno.ENOSPC, suffix="-wal")
        await store.create("full", created(), actor="test")
        disk.fails(SYNC, errno.EIO, suffix="-wal")
        asked = (store.create("lost", created(), actor="test"), store.get("lost"))
        for ask in asked:
            with pytest.raises(limpet.ConnectionLost):
                await ask
        disk.is_well()
        await store.create("lost", created(), actor="test")
        await store.create("new", created(), actor="test")
        print(await store.count())


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    what: Any = {"each": each, "chance": chance, "unsynced": unsynced}[sys.argv[2]]
    asyncio.run(what(Path(sys.argv[1]), *sys.argv[3:]))
