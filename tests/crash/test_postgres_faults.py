"""PostgreSQL under load with colliding writers, cut connections and a crashing server.

Callers repeat writes whose outcome is unknown; then every write is in the log exactly once.
"""

import asyncio

import pytest

from limpet import open_store
from limpet.errors import ConnectionLost
from limpet.events import bodies as b
from limpet.events import inline
from limpet.stores import Store, WorkerRow
from limpet.stores.postgres import PostgresBackend
from tests.crash.jobs import shuffle
from tests.crash.load import Load, check, claim_common, created, make_rows, rows, signalled
from tests.crash.processes import start_all
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy

PROCESSES = 4
RUNS = 12


async def test_four_processes_can_write_the_same_runs_in_any_order(postgres_schema: str, full: bool) -> None:
    """20,000 appends with --full, otherwise 400, to one or two runs each: none refused, lost or doubled."""
    count = (20_000 if full else 400) // PROCESSES
    async with open_store(postgres_schema) as store:
        shared = await claim_common(store, RUNS * PROCESSES)
        writers = start_all([(shuffle, postgres_schema, f"w{n}", shared, count) for n in range(PROCESSES)])
        for writer in writers:
            writer.send("go")
        marks = set().union(*(writer.receive() for writer in writers))
        assert [writer.end() for writer in writers] == [0] * PROCESSES
        assert len(marks) >= count * PROCESSES
        await check(store, marks)


async def test_cut_connections_lose_or_double_no_write(postgres_schema: str, full: bool) -> None:
    """1,000 cuts with --full, otherwise 20: between a commit and its reply, before a statement, or in the middle."""
    times = 1000 if full else 20
    with Proxy(port_of(postgres_schema)) as proxy:
        through = postgres_schema.replace(f":{proxy.target}/", f":{proxy.port}/")
        patient, hasty = PostgresBackend(through), PostgresBackend(through, patience=0.0)
        async with open_store(postgres_schema) as direct, Store(patient) as first, Store(hasty) as second:
            make_rows(postgres_schema)
            shared = await claim_common(direct, RUNS)
            loads = [Load(first, "patient", shared), Load(second, "hasty", shared)]
            proxy.cut(times)
            async with asyncio.TaskGroup() as group:
                for load in loads:
                    group.create_task(load.run(lambda: proxy.total < times))
            print(f"cut {dict(proxy.cuts)}; done {[dict(load.done) for load in loads]}")
            assert [load.lost > 0 for load in loads] == [False, True]
            await check(direct, loads[0].marks | loads[1].marks)
    assert sorted(rows(postgres_schema)) == sorted(loads[0].rows | loads[1].rows)


async def test_a_retried_operation_returns_its_own_outcome_after_a_lost_reply(postgres_schema: str, full: bool) -> None:
    """The store returns what its operation did, not what it finds when it looks again.

    A created run is new, a claim returns the run that it claimed, and a release succeeds. 300 cuts with --full,
    otherwise 12.
    """
    times, rounds = (300 if full else 12), 0
    with Proxy(port_of(postgres_schema), seed=2) as proxy:
        through = postgres_schema.replace(f":{proxy.target}/", f":{proxy.port}/")
        async with Store(PostgresBackend(through)) as store:
            proxy.cut(times, furthest=60)
            while proxy.total < times:
                rounds += 1
                worker, run = f"w{rounds}", f"r{rounds}"
                await store.register(WorkerRow(id=worker, agents={"mine": ("1",)}), lease=600_000_000)
                body = b.RunCreated(agent="mine", agent_version="1", input=inline(rounds))
                row, fresh = await store.create(run, body, actor=worker)
                assert (row.id, fresh) == (run, True)
                [claimed] = await store.claim(worker, limit=10)
                assert (claimed.row.id, claimed.row.fence) == (run, 1)
                await store.release(run, fence=1, worker=worker, reason="for a while")
                [again] = await store.claim(worker, limit=10)
                assert (again.row.id, again.row.fence, again.died) == (run, 2, False)
                assert (await store.renew(worker, lease=600_000_000)).held == {run: 2}
    print(f"cut {dict(proxy.cuts)} in {rounds} rounds")


async def test_a_crashing_server_loses_or_doubles_no_write(server: PostgresServer, full: bool) -> None:
    """10 immediate restarts with --full, otherwise 1, under load. The store reconnects and continues."""
    make_rows(server.url)
    async with open_store(server.url) as store:
        load = Load(store, "w", await claim_common(store, RUNS))
        over = False
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(lambda: not over))
            for _ in range(10 if full else 1):
                await load.more(50)
                await asyncio.to_thread(server.restart)
            await load.more(50)
            over = True
        print(f"done {dict(load.done)}, {load.lost} unknown outcomes")
        await check(store, load.marks)
    assert sorted(rows(server.url)) == sorted(load.rows)


async def test_calls_fail_with_connection_lost_during_a_long_outage(server: PostgresServer) -> None:
    """The same store works again when the server is back."""
    async with Store(PostgresBackend(server.url, patience=0.2), patience=0.2) as store:
        shared = await claim_common(store, RUNS)
        row = await store.get(shared.runs[0])
        await asyncio.to_thread(server.stop, "immediate")
        said = await asyncio.gather(
            store.send_commands(row.id, signalled("told"), actor="w"),
            store.create("created", created("created"), actor="w"),
            store.claim("common", limit=1),
            store.get(row.id),
            store.transact(row.id, after=row.head, fence=row.fence, actor="w", work=lambda _: pytest.fail("called")),
            return_exceptions=True,
        )
        assert [type(each) for each in said] == [ConnectionLost] * 5
        await asyncio.to_thread(server.start)
        load, places = Load(store, "w", shared, kinds=("append", "two_runs", "command", "create")), iter(range(50))
        await load.run(lambda: next(places, None) is not None)
        await check(store, load.marks)


def port_of(url: str) -> int:
    """Return the port of a URL."""
    return int(url.partition("@")[2].partition("/")[0].rpartition(":")[2])
