"""`make bench`: how fast the store is beside bare loops on the same disk, in one run.

Figures of different runs or machines say little; the ratios of one run do. Each figure is the median of some rounds,
taken in turn, so that a slow moment of the machine hits all of them alike.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import apsw

from limpet import open_store
from limpet.clock import SystemClock
from limpet.events import Head, inline, seal
from limpet.events import bodies as b
from limpet.stores import Appended, Claimed, Extend, Store, WorkerRow

ROUNDS = 5
BODY = "x" * 950
LAYOUT = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE events (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    run INTEGER NOT NULL, seq INTEGER NOT NULL, time INTEGER NOT NULL, kind TEXT NOT NULL,
    body BLOB NOT NULL, hash BLOB NOT NULL, UNIQUE (run, seq)
);
"""
INSERT = "INSERT INTO events (run, seq, time, kind, body, hash) VALUES (?, ?, ?, ?, ?, ?)"


def main() -> None:
    """Measure in turn, and print medians with their ratios."""
    found: dict[str, list[float]] = {}
    for number in range(ROUNDS):
        print(f"round {number + 1} of {ROUNDS}", file=sys.stderr)
        for name, measure in MEASURES.items():
            with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as folder:
                found.setdefault(name, []).append(measure(Path(folder) / "bench.db"))
    report({name: statistics.median(values) for name, values in found.items()})


def report(median: dict[str, float]) -> None:
    """The table, and the aims."""
    bare, batch = median["bare commit"], median["bare batch"]
    one, many = median["store, 1 caller"], median["store, 200 callers"]
    rows = [
        ("bare single durable commits, 1 KB", f"{bare:.0f} µs each", ""),
        ("our store, 1 caller, 1 KB", f"{one:.0f} µs each", f"{one / bare:.2f}× a bare commit (aim: at most 2.5×)"),
        ("bare batches of 200 rows, 1 KB", f"{batch:,.0f} rows/s", ""),
        (
            "our store, 200 callers at once, 1 KB",
            f"{many:,.0f} events/s",
            f"1/{batch / many:.1f} of bare batches (aim: at least 20,000 events/s)",
        ),
    ]
    print(f"\nSQLite {apsw.sqlite_lib_version()}, {os.cpu_count()} cores, medians of {ROUNDS} rounds, durable commits")
    for name, figure, ratio in rows:
        print(f"  {name:40} {figure:>20}   {ratio}")


def bare_commit(path: Path, count: int = 2000) -> float:
    """Microseconds for one durable commit of one row."""
    db = _bare(path)
    cursor = db.cursor()
    data, digest = BODY.encode(), bytes(32)
    took = []
    for seq in range(count):
        begun = time.perf_counter()
        cursor.execute("BEGIN IMMEDIATE")
        cursor.execute(INSERT, (1, seq, seq, "step.completed", data, digest))
        cursor.execute("COMMIT")
        took.append(time.perf_counter() - begun)
    db.close()
    return statistics.mean(took) * 1e6


def bare_batch(path: Path, batches: int = 100) -> float:
    """Rows a second in durable commits of 200 rows, one for each of 200 runs."""
    db = _bare(path)
    cursor = db.cursor()
    data, digest = BODY.encode(), bytes(32)
    begun = time.perf_counter()
    for seq in range(batches):
        cursor.execute("BEGIN IMMEDIATE")
        cursor.executemany(INSERT, [(run, seq, seq, "step.completed", data, digest) for run in range(200)])
        cursor.execute("COMMIT")
    took = time.perf_counter() - begun
    db.close()
    return batches * 200 / took


def one_caller(path: Path) -> float:
    """Microseconds for one durable append of one event, sealed, fenced and projected."""
    return asyncio.run(_store(path, callers=1, events=2000)) * 1e6


def many_callers(path: Path) -> float:
    """Events a second, of 200 callers that each wait for their own."""
    return 200 / asyncio.run(_store(path, callers=200, events=150))


async def _store(path: Path, *, callers: int, events: int) -> float:
    """Seconds for one event of each caller."""
    async with open_store(f"sqlite:///{path}") as store:
        claimed = await _claimed(store, callers)
        begun = time.perf_counter()
        await asyncio.gather(*(_append(store, each, events) for each in claimed))
        return (time.perf_counter() - begun) / events


async def _claimed(store: Store, count: int) -> list[Claimed]:
    await store.register(WorkerRow(id="w1", agents={"a": ("1",)}), lease=600_000_000)
    body = b.RunCreated(agent="a", agent_version="1", input=inline(None))
    await asyncio.gather(*(store.create(f"r{place}", body, actor="bench") for place in range(count)))
    return list(await store.claim("w1", limit=count))


async def _append(store: Store, claimed: Claimed, events: int) -> None:
    clock, row = SystemClock(), claimed.row
    head: Head = row.head
    for number in range(1, events + 1):
        body = b.StepCompleted(name=f"t#{number}", number=number, attempt=1, output=inline(BODY))
        sealed = seal(head, row.id, body, time=clock.now(), fence=row.fence, actor="w1")
        done = await store.append(Extend(run=row.id, after=head, fence=row.fence, events=(sealed,)))
        assert isinstance(done, Appended)
        head = sealed.event.head


def _bare(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path))
    db.execute(LAYOUT).fetchall()
    return db


MEASURES: dict[str, Callable[[Path], float]] = {
    "bare commit": bare_commit,
    "store, 1 caller": one_caller,
    "bare batch": bare_batch,
    "store, 200 callers": many_callers,
}

if __name__ == "__main__":
    main()
