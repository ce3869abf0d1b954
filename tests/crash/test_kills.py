"""Killed processes: acknowledged events are stored, and the next worker continues immediately."""

import random  # noqa: TID251 - where the kill falls
from pathlib import Path

import apsw

from limpet import open_store
from limpet.events import Head
from limpet.journal import verify_run
from limpet.stores import WorkerRow
from tests.crash.jobs import until_killed
from tests.crash.test_runs import KILLED, Process

LEASE = 3_600_000_000


async def test_no_acknowledged_event_is_lost_after_a_kill(tmp_path: Path, full: bool) -> None:
    """A writer is killed at random moments on one file; its lease of an hour is never waited for."""
    path = str(tmp_path / "limpet.db")
    chance = random.Random(7)
    for _ in range(100 if full else 6):
        writer = Process(until_killed, f"sqlite:///{path}", "run")
        acknowledged = [writer.receive() for _ in range(chance.randrange(1, 30))]
        writer.kill()
        assert await writer.ended() == KILLED
        await _check(path, last_message(writer) or acknowledged[-1])
    assert apsw.Connection(path).execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def last_message(writer: Process) -> Head | None:
    """Return the last unread message of a killed process, if any."""
    last = None
    try:
        while True:
            last = writer.receive()
    except (EOFError, OSError):  # it may have been killed in the middle of a message
        return last


async def test_a_run_of_a_killed_worker_is_claimed_immediately(tmp_path: Path) -> None:
    """Its lease still lasts an hour; the claim depends on its death, not on time."""
    url = f"sqlite:///{tmp_path / 'limpet.db'}"
    writer = Process(until_killed, url, "run")
    writer.receive()
    writer.kill()
    assert await writer.ended() == KILLED
    async with open_store(url) as store:
        [dead] = await store.workers()
        assert dead.lease_until > await store.now() + LEASE / 2
        await store.register(WorkerRow(id="next", agents={"run": ("1",)}), lease=LEASE)
        [claimed] = await store.claim("next", limit=1)
        assert (claimed.died, claimed.row.fence) == (True, 2)
        assert [worker.id for worker in await store.workers()] == ["next"]
    assert not list(tmp_path.glob("*-worker-run-*"))


async def _check(path: str, acknowledged: Head) -> None:
    async with open_store(f"sqlite:///{path}") as store:
        await verify_run(store, "run")
        [event] = await store.read("run", after=acknowledged.seq - 1, limit=1)
        assert event.hash == acknowledged.hash
