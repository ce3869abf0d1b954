"""`make bench`: the speed of the stores compared with bare loops on the same database, and the size of conversations.

Compare the ratios of one run; figures of different runs or machines say little. Each figure is the median of several
rounds, taken in turn, so that a slow moment of the machine affects all of them alike.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import apsw
import psycopg

from bench import conversations, runs
from limpet import open_store
from limpet.clock import SystemClock
from limpet.events import Head, inline, seal
from limpet.events import bodies as b
from limpet.stores import Appended, Claimed, Extend, Store, WorkerRow
from limpet.stores.baseline import Baseline
from limpet.stores.postgres.baseline import bare as bare_postgres
from limpet.stores.postgres.baseline import in_schema
from limpet.stores.sqlite.baseline import bare as bare_sqlite
from tests.servers.postgres import PostgresServer, drop_schema

ROUNDS = 5
BODY = "x" * 950


class Ground(NamedTuple):
    """A database to measure on: bare loops, and the URL of a store."""

    bare: Baseline
    url: str


def main() -> None:
    """Measure in turn, and print medians with their ratios."""
    runs.quiet()
    found: dict[tuple[str, str], list[float]] = {}
    with postgres_server() as server:
        grounds = {f"SQLite {apsw.sqlite_lib_version()}": sqlite, server.version: server.ground}
        for number in range(ROUNDS):
            print(f"round {number + 1} of {ROUNDS}", file=sys.stderr)
            for name, ground in grounds.items():
                for title, measure in MEASURES.items():
                    with ground() as fresh:
                        found.setdefault((name, title), []).append(measure(fresh))
                with ground() as fresh:
                    for title, figure in asyncio.run(runs.measure(fresh.url)).items():
                        found.setdefault((name, title), []).append(figure)
        print("resumes", file=sys.stderr)
        resumes = {name: _resumes(ground) for name, ground in grounds.items()}
    print(f"\n{os.cpu_count()} cores, medians of {ROUNDS} rounds, 1 KB an event, durable commits")
    for name in grounds:
        report(name, {measure: statistics.median(found[name, measure]) for measure in MEASURES})
        report_runs({measure: statistics.median(found[name, measure]) for measure in (*MEASURES, *RUNS)})
        for title, figure in resumes[name].items():
            print(f"  {title:44} {figure:>10.1f} ms")
    conversations.report()


def report(name: str, median: dict[str, float]) -> None:
    """Print the table, with the aims."""
    bare, batch = median["bare commit"], median["bare batch"]
    one, many = median["store, 1 caller"], median["store, 200 callers"]
    rows = [
        ("bare single commits", f"{bare:.0f} µs each", ""),
        ("our store, 1 caller", f"{one:.0f} µs each", f"{one / bare:.2f}× a bare commit (aim: at most 2.5×)"),
        ("bare batches of 200 rows", f"{batch:,.0f} rows/s", ""),
        (
            "our store, 200 callers at once",
            f"{many:,.0f} events/s",
            f"1/{batch / many:.1f} of bare batches (aim: at least 20,000 events/s)",
        ),
    ]
    print(f"\n{name}")
    for title, figure, ratio in rows:
        print(f"  {title:32} {figure:>20}   {ratio}")


def report_runs(median: dict[str, float]) -> None:
    """Measure whole runs."""
    bare = median["bare commit"]
    for kind, aim in (("read", 3), ("effect", 5)):
        one, many = median[f"one {kind}"], median[f"many {kind}s"]
        aims = f"{one / bare:.2f}× a bare commit (aim: at most {aim}×)"
        print(f"  {f'one run, {runs.STEPS} {kind}s':32} {one:>14.0f} µs each   {aims}")
        share = f"1/{median['store, 200 callers'] / many:.1f} of the store's events"
        print(f"  {f'{runs.RUNS} runs of {runs.EACH} {kind}s at once':32} {many:>12,.0f} steps/s   {share}")


def _resumes(ground: Callable[[], AbstractContextManager[Ground]]) -> dict[str, float]:
    with ground() as fresh:
        return asyncio.run(runs.measure_resumes(fresh.url)) | asyncio.run(runs.measure_states(fresh.url))


RUNS = ("one read", "many reads", "one effect", "many effects")


# Our store


def one_caller(ground: Ground) -> float:
    """Return microseconds for one durable append of one event, sealed, fenced and projected."""
    return asyncio.run(_store(ground.url, callers=1, events=2000)) * 1e6


def many_callers(ground: Ground) -> float:
    """Return events per second, with 200 callers that each wait for their own."""
    return 200 / asyncio.run(_store(ground.url, callers=200, events=150))


async def _store(url: str, *, callers: int, events: int) -> float:
    """Return seconds for one event of each caller."""
    async with open_store(url) as store:
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


MEASURES: dict[str, Callable[[Ground], float]] = {
    "bare commit": lambda ground: ground.bare.per_commit(0, 2000),
    "store, 1 caller": one_caller,
    "bare batch": lambda ground: ground.bare.rows_per_second(0, 100),
    "store, 200 callers": many_callers,
}


# Bare loops


@contextmanager
def sqlite() -> Iterator[Ground]:
    """Create a fresh file on the current disk."""
    with (
        tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as folder,
        bare_sqlite(Path(folder) / "bare.db") as bare,
    ):
        yield Ground(bare, f"sqlite:///{folder}/store.db")


class Server(NamedTuple):
    """Run a server for all rounds."""

    url: str
    version: str

    @contextmanager
    def ground(self) -> Iterator[Ground]:
        """Create a fresh schema."""
        drop_schema(self.url, "limpet_bench")
        url = in_schema(self.url, "limpet_bench")
        with bare_postgres(url) as bare:
            yield Ground(bare, url)


@contextmanager
def postgres_server() -> Iterator[Server]:
    """Return the server in LIMPET_TEST_POSTGRES, or start one."""
    named = os.environ.get("LIMPET_TEST_POSTGRES")
    if named:
        yield Server(named, _version(named))
        return
    with PostgresServer(folder=Path.cwd()) as server:
        yield Server(server.url, _version(server.url))


def _version(url: str) -> str:
    with psycopg.connect(url) as db:
        return f"PostgreSQL {db.info.server_version // 10000}.{db.info.server_version % 10000}"


if __name__ == "__main__":
    main()
