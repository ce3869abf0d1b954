"""A store with a million runs: copies of three real runs, written directly into its tables, then used as usual.

The copies have the events of their originals, so their hash chains do not verify; nothing measured here reads them.
"""

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from typing import Any

import apsw
import psycopg

import limpet
from bench.script import Stopwatch, path_of, wait_for
from limpet.stores.postgres.connection import Address

__all__ = ["fill", "million"]

SAMPLES = 30
# Shares of the copies, in percent.
SHARES = {"completed": 97, "waiting": 2, "failed": 1}


class Refused(Exception):
    """Error of a failed run."""


@limpet.tool(effect="none", name="bench_bulk_read")
async def bulk_read(asked: str) -> str:
    """Tell the waiting test that the first step runs."""
    reached[asked].set()
    return asked


reached: dict[str, asyncio.Event] = {}


@limpet.agent(name="bench_bulk")
async def bulk(run: limpet.Run, how: str) -> str:
    if how == "failed":
        raise Refused
    if how == "waiting":
        await run.receive("go", str)
    if how in reached:
        await run.step(bulk_read, how)
    return how


async def million(url: str, runs: int) -> dict[str, float]:
    """Fill a store, and measure starting, claiming and listing there."""
    watch = Stopwatch()
    await fill(url, runs)
    filled = watch.seconds
    async with limpet.open(url, agents=[bulk]) as app:
        await _first_step(app, "warm")
        first = await _median(lambda n: _first_step(app, f"one-{n}"))
        started = await _median(lambda n: app.start(bulk, "completed", id=f"started-{n}"))
        figures = {
            "start": started,
            "first step": first,
            "list": await _median(lambda _: app.runs()),
            "failed": await _median(lambda _: app.runs(status="failed")),
            "count": await _median(lambda _: app.stats()),
        }
    return figures | {"fill": filled}


async def _first_step(app: limpet.App, name: str) -> None:
    """Start a run, and wait until a worker has claimed it and runs its first step."""
    reached[name] = asyncio.Event()
    await app.start(bulk, name)
    await reached[name].wait()


async def _median(work: Callable[[int], Awaitable[Any]]) -> float:
    taken = []
    for number in range(SAMPLES):
        watch = Stopwatch()
        await work(number)
        taken.append(watch.seconds * 1e3)
    return statistics.median(taken)


async def fill(url: str, runs: int) -> None:
    """Run one original of each kind, then copy them until the store has this many runs."""
    async with limpet.open(url, agents=[bulk]) as app:
        for how in SHARES:
            await app.start(bulk, how, id=how)
            await wait_for(lambda how=how: _has(app, how))  # type: ignore[misc]
    shares = [(how, runs * share // 100) for how, share in SHARES.items()]
    if url.startswith("sqlite"):
        _copy_in_sqlite(path_of(url), shares)
    else:
        _copy_in_postgres(url, shares)


async def _has(app: limpet.App, how: str) -> bool:
    return (await app.info(how)).status == how


def _copy_in_sqlite(file: str, shares: Sequence[tuple[str, int]]) -> None:
    with closing(apsw.Connection(file)) as db:
        db.execute("PRAGMA synchronous = OFF; PRAGMA cache_size = -400000; PRAGMA temp_store = MEMORY")
        streams = _columns(db.execute("SELECT name FROM pragma_table_info('limpet_streams')").fetchall())
        events = _columns(db.execute("SELECT name FROM pragma_table_info('limpet_events')").fetchall())
        series = "WITH RECURSIVE copies(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM copies WHERE n < :count) "
        with db:
            for how, count in shares:
                base = db.execute("SELECT max(number) FROM limpet_streams").fetchall()[0][0]
                given = {"how": how, "count": count, "base": base}
                db.execute(series + _streams("limpet_streams", streams, ":"), given)
                db.execute(series + _events("limpet_events", "limpet_streams", events, ":"), given)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _copy_in_postgres(url: str, shares: Sequence[tuple[str, int]]) -> None:
    address = Address.parse(url)
    streams, events = (f'"{address.schema}".{name}' for name in ("streams", "events"))
    with psycopg.connect(address.server) as db:
        # Without triggers, which would update one counter a million times in one transaction.
        db.execute("SET LOCAL session_replication_role = replica")
        rows = db.execute(
            "SELECT table_name, column_name FROM information_schema.columns"
            " WHERE table_schema = %s AND is_generated = 'NEVER'",
            [address.schema],
        ).fetchall()
        of_streams = _columns([row[1:] for row in rows if row[0] == "streams"])
        of_events = _columns([row[1:] for row in rows if row[0] == "events"], without=("xid",))
        for how, count in shares:
            found = db.execute(f"SELECT max(number) FROM {streams}".encode()).fetchone()
            assert found is not None
            given = {"how": how, "count": count, "base": found[0]}
            series = "WITH copies AS (SELECT generate_series(1, %(count)s::bigint) AS n) "
            db.execute((series + _streams(streams, of_streams, "%(")).encode(), given)
            db.execute((series + _events(events, streams, of_events, "%(")).encode(), given)
        sequence = f"pg_get_serial_sequence('{streams}', 'number')"
        db.execute(f"SELECT setval({sequence}, max(number)) FROM {streams}".encode())
        counters = f'"{address.schema}".counters'
        db.execute(f"DELETE FROM {counters}".encode())
        counted = f"SELECT agent, status, 0, count(*) FROM {streams} WHERE type = 'run' GROUP BY agent, status"
        db.execute(f"INSERT INTO {counters} (agent, status, spread, n) {counted}".encode())
    with psycopg.connect(address.server, autocommit=True) as db:
        for table in (streams, events):
            db.execute(f"VACUUM ANALYZE {table}".encode())


def _columns(rows: Sequence[Any], without: Sequence[str] = ()) -> list[str]:
    return [row[0] for row in rows if row[0] not in ("position", *without)]


def _streams(table: str, columns: Sequence[str], mark: str) -> str:
    """Return the statement that copies the row of the run `how`."""
    own = {"number": f"{_given(mark, 'base')} + n", "id": "id || '-' || n"}
    chosen = ", ".join(own.get(name, f'"{name}"') for name in columns)
    source = f"{table}, copies WHERE id = {_given(mark, 'how')}"
    return f"INSERT INTO {table} ({_quoted(columns)}) SELECT {chosen} FROM {source}"


def _events(table: str, streams: str, columns: Sequence[str], mark: str) -> str:
    """Return the statement that copies its events."""
    chosen = ", ".join(f"{_given(mark, 'base')} + n" if name == "run" else f'e."{name}"' for name in columns)
    return (
        f"INSERT INTO {table} ({_quoted(columns)}) SELECT {chosen} FROM {table} e, copies "
        f"WHERE e.run = (SELECT number FROM {streams} WHERE id = {_given(mark, 'how')}) ORDER BY n, e.seq"
    )


def _given(mark: str, name: str) -> str:
    """Return a parameter in the style of the database."""
    return f"{mark}{name})s" if mark.endswith("(") else f"{mark}{name}"


def _quoted(columns: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in columns)
