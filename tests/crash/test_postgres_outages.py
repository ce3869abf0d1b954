"""PostgreSQL outages under running runs: runs continue afterwards without an operator."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

import psycopg
import pytest

import limpet
from limpet.stores.sql_files import load
from tests.crash.outage_load import Walkers
from tests.servers.disk import fill, small_disk
from tests.servers.postgres import PostgresServer

BACKENDS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'limpet'"
WAITING = "SELECT 1 FROM pg_locks WHERE NOT granted"


def crash_a_backend(server: PostgresServer) -> None:
    """Kill a server process; the server then closes all connections and recovers.

    It may still be closing connections after the last crash.
    """
    found: list[tuple[object, ...]] = []
    for _ in range(50):
        with suppress(psycopg.OperationalError):
            found = server.sql(f"{BACKENDS} AND query LIKE '%COMMIT%' LIMIT 1") or server.sql(f"{BACKENDS} LIMIT 1")
            break
        time.sleep(0.1)  # noqa: TID251 - a real server
    for (pid,) in found:
        os.kill(int(str(pid)), signal.SIGKILL)


def terminate_all(server: PostgresServer) -> None:
    """Terminate every connection of limpet, as an operator might."""
    server.sql(f"SELECT pg_terminate_backend(pid) FROM ({BACKENDS}) AS ours")


def cancel_all(server: PostgresServer) -> None:
    """Cancel every statement of limpet, as an operator might."""
    server.sql(f"SELECT pg_cancel_backend(pid) FROM ({BACKENDS}) AS ours")


FAULTS: dict[str, Callable[[PostgresServer], None]] = {
    "crash": crash_a_backend,
    "restart": PostgresServer.restart,
    "terminate": terminate_all,
    "cancel": cancel_all,
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_runs_continue_after_a_server_fault(server: PostgresServer, fault: str, full: bool) -> None:
    """20 faults with --full, otherwise 2, each in the middle of steps. Every run completes, and every effect happens
    once.
    """
    async with limpet.open(server.url, agents=Walkers.agents) as app:
        walkers = Walkers(app)
        for _ in range(20 if full else 2):
            await walkers.start()
            await walkers.more(20)
            await asyncio.to_thread(FAULTS[fault], server)
        await walkers.arrive()


async def test_queries_and_commands_wait_for_a_stopped_server(server: PostgresServer) -> None:
    """All calls made during the outage succeed after it, including opening a store."""
    async with limpet.open(server.url, agents=Walkers.agents) as app:
        walkers = Walkers(app)
        await walkers.start()
        await walkers.arrive()
        handle = await app.start(*Walkers.agents, 1, id="later", at="1h")
        await asyncio.to_thread(server.stop, "immediate")
        asked = [
            asyncio.ensure_future(each)
            for each in (
                app.inbox(),
                app.runs(),
                app.log("w1-0"),
                app.state("w1-0"),
                app.info("w1-0"),
                app.stats(),
                app.agents(),
                app.timeline("w1-0"),
                app.verify("w1-0"),
                app.get("w1-0"),
                app.result("w1-0", None),
                app.signal("later", "word", 1),
                app.pause(handle.id),
                app.start(*Walkers.agents, 1, id="next"),
                open_and_read(server.url),
            )
        ]
        await asyncio.to_thread(server.start)
        await asyncio.gather(*asked)


async def open_and_read(url: str) -> None:
    """Open a store as a command does, and read."""
    async with limpet.open(url) as app:
        await app.runs()


async def test_runs_continue_after_rows_were_locked_by_an_operator(
    server: PostgresServer, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The locks last longer than the lock timeout; ten times with --full."""

    def hasty(*where: str, **words: str) -> dict[str, str]:
        return {name: text.replace("'5s'", "'50ms'") for name, text in load(*where, **words).items()}

    monkeypatch.setattr("limpet.stores.postgres.backend.load", hasty)
    async with limpet.open(server.url, agents=Walkers.agents) as app:
        walkers = Walkers(app)
        for _ in range(10 if full else 1):
            await walkers.start()
            await walkers.more(20)
            with psycopg.connect(server.url) as holding:
                holding.execute("SELECT 1 FROM limpet.streams FOR UPDATE")
                for is_waiting in (True, False):  # until a statement waits, and until it has timed out
                    while bool(await asyncio.to_thread(server.sql, WAITING)) is not is_waiting:
                        pass
        await walkers.arrive()


async def test_runs_continue_when_the_servers_full_disk_has_space_again() -> None:
    """The server cannot extend its tables, or cannot write its WAL and crashes."""
    settings = {"fsync": "off", "min_wal_size": "32MB", "max_wal_size": "64MB", "wal_recycle": "off"}
    with small_disk("256m") as folder, PostgresServer(folder, **settings) as server:
        async with limpet.open(server.url, agents=Walkers.agents) as app:
            walkers = Walkers(app)
            await walkers.start()
            await walkers.more(20)
            filler = fill(folder)
            await use_up(server)
            filler.unlink()
            if not await asyncio.to_thread(is_up, server):  # it could not recover without space, and has ended
                await asyncio.to_thread(server.restart)
            await walkers.start()
            await walkers.arrive()


async def use_up(server: PostgresServer) -> None:
    """Write until the server refuses for lack of space, or crashes."""
    async with limpet.open_store(server.url, patience="100ms") as store:
        while True:
            try:
                await store.put_blob(os.urandom(2 << 20))
            except (limpet.StoreBusy, limpet.ConnectionLost):
                return


def is_up(server: PostgresServer) -> bool:
    """Return whether the server answers."""
    try:
        return bool(server.sql("SELECT 1"))
    except psycopg.OperationalError:
        return False
