"""Sixteen processes on one SQLite file: nobody is refused, nobody starves, nothing acknowledged is missing."""

import subprocess
import sys
from pathlib import Path

import apsw

from limpet import open_store
from limpet.journal import verify_run

PROCESSES = 16


def start(*arguments: str) -> subprocess.Popen[str]:
    """A process of `writers`."""
    command = [sys.executable, "-m", "tests.crash.writers", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def test_sixteen_processes_share_one_file(tmp_path: Path, full: bool) -> None:
    """2,000 appends each with --full, else 100: no BUSY, no share below half the mean, all there, file intact."""
    path = str(tmp_path / "limpet.db")
    count = 2000 if full else 100
    writers = [start("share", path, f"run-{place}", str(count)) for place in range(PROCESSES)]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    said = [writer.communicate()[0].split() for writer in writers]

    assert [writer.returncode for writer in writers] == [0] * PROCESSES
    shares = [int(each[0]) for each in said]
    print(f"shares when the first of {PROCESSES} had done {count}: {sorted(shares)}")
    assert min(shares) >= sum(shares) / len(shares) / 2
    async with open_store(f"sqlite:///{path}") as store:
        for place, (_, seq, digest) in enumerate(said):
            head = await verify_run(store, f"run-{place}")
            assert (head.seq, head.hash.hex()) == (int(seq), digest) == (count + 2, digest)
    assert apsw.Connection(path).execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_ten_processes_make_one_schema(tmp_path: Path) -> None:
    """All open a file that is not there yet; each finds a schema, and it is the same as a fresh one."""
    path = str(tmp_path / "limpet.db")
    opening = [start("open_only", path) for _ in range(10)]
    assert [each.communicate()[0] for each in opening] == ["0\n"] * 10
    async with open_store(f"sqlite:///{tmp_path / 'fresh.db'}"):
        pass
    assert schema(path) == schema(str(tmp_path / "fresh.db"))


def schema(path: str) -> list[object]:
    """Everything that the schema says."""
    return list(apsw.Connection(path).execute("SELECT type, name, sql FROM sqlite_schema ORDER BY name"))
