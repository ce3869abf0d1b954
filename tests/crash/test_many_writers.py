"""Sixteen processes on one SQLite file: no write is refused or lost, and no process starves."""

from multiprocessing import get_context
from pathlib import Path

import apsw

from limpet import open_store
from limpet.journal import verify_run
from tests.crash.jobs import share
from tests.crash.processes import start_all

PROCESSES = 16


async def test_sixteen_processes_share_one_file_fairly(tmp_path: Path, full: bool) -> None:
    """2,000 appends each with --full, otherwise 200: no BUSY, and no share below half the mean, or a third of it."""
    path, stop, all_there = tmp_path / "limpet.db", tmp_path / "stop", get_context("forkserver").Barrier(PROCESSES)
    url, count = f"sqlite:///{path}", 2000 if full else 200
    writers = start_all([(share, url, f"run-{place}", count, all_there, stop) for place in range(PROCESSES)])
    said = [writer.receive() for writer in writers]
    assert [writer.end() for writer in writers] == [0] * PROCESSES
    shares = [share for share, _ in said]
    print(f"shares when the first of {PROCESSES} had done {count}: {sorted(shares)}")
    assert min(shares) >= sum(shares) / len(shares) / (2 if full else 3)  # few appends differ more
    async with open_store(url) as store:
        for place, (_, head) in enumerate(said):
            assert await verify_run(store, f"run-{place}") == head
            assert head.seq == count + 2
    assert apsw.Connection(str(path)).execute("PRAGMA integrity_check").fetchall() == [("ok",)]
