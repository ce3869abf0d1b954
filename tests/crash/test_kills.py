"""Real processes, really killed: what was acknowledged is there, and whoever comes next goes on at once."""

import os
import random  # noqa: TID251 - where the kill falls
import signal
import subprocess
import sys
from pathlib import Path

import apsw

from limpet import open_store
from limpet.journal import verify_run
from limpet.stores import WorkerRow
from limpet.stores.sqlite import SqliteBackend
from tests.crash.test_many_writers import schema, start

LEASE = 3_600_000_000


async def test_nothing_acknowledged_is_lost(tmp_path: Path, full: bool) -> None:
    """A writer is killed at random moments, again and again, on one file; its lease of an hour is never waited for."""
    path = str(tmp_path / "limpet.db")
    chance = random.Random(7)
    acknowledged = ""
    for _ in range(100 if full else 6):
        writer = start("until_killed", path, "run")
        assert writer.stdout is not None
        for _ in range(chance.randrange(1, 30)):
            acknowledged = writer.stdout.readline()
        os.kill(writer.pid, signal.SIGKILL)
        rest = writer.communicate()[0].splitlines()
        acknowledged = next((line for line in reversed(rest) if len(line.split()[-1]) == 64), acknowledged)
        await _check(path, acknowledged)
    assert apsw.Connection(path).execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_a_killed_workers_run_is_claimed_without_waiting(tmp_path: Path) -> None:
    """The cause, not the time: no clock moves, the dead worker's lease lasts an hour, and the claim succeeds."""
    path = str(tmp_path / "limpet.db")
    writer = start("until_killed", path, "run")
    assert writer.stdout is not None
    writer.stdout.readline()
    os.kill(writer.pid, signal.SIGKILL)
    writer.communicate()
    async with open_store(f"sqlite:///{path}") as store:
        [dead] = await store.workers()
        assert dead.lease_until > await store.now() + LEASE / 2
        await store.register(WorkerRow(id="next", agents={"run": ("1",)}), lease=LEASE)
        [claimed] = await store.claim("next", limit=1)
        assert (claimed.died, claimed.row.fence) == (True, 2)
        assert [worker.id for worker in await store.workers()] == ["next"]
    assert not list(tmp_path.glob("*-worker-run-*"))


def test_a_migration_killed_at_any_statement_ends_in_the_same_schema(tmp_path: Path, full: bool) -> None:
    """The process that makes the schema is killed before its n-th statement; the next one makes it whole."""
    SqliteBackend(tmp_path / "fresh.db").open()
    killed = 0
    for place in range(60) if full else range(11, 60, 9):
        path = str(tmp_path / f"{place}.db")
        script = KILL_BEFORE.format(place=place, path=path)
        killed += subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
        SqliteBackend(path).open()
        assert schema(path) == schema(str(tmp_path / "fresh.db"))
    assert killed > 2


KILL_BEFORE = """
import apsw, os, signal
from limpet.stores.sqlite import SqliteBackend
seen = -1
def trace(cursor, sql, bindings):
    global seen
    seen += 1
    if seen == {place}:
        os.kill(os.getpid(), signal.SIGKILL)
    return True
apsw.connection_hooks.append(lambda db: setattr(db, "exec_trace", trace))
SqliteBackend({path!r}).open()
"""


async def _check(path: str, acknowledged: str) -> None:
    seq, digest = acknowledged.split()
    async with open_store(f"sqlite:///{path}") as store:
        await verify_run(store, "run")
        [event] = await store.read("run", after=int(seq) - 1, limit=1)
        assert event.hash.hex() == digest
