"""Failover to a standby: the store continues there, refuses the old primary, and detects a standby that was behind."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NoReturn

import pytest

from limpet.errors import StaleServer, Tampered
from limpet.stores import Store
from limpet.stores.postgres import PostgresBackend
from tests.crash.jobs import extend, own
from tests.crash.load import Common, Load, check, claim_common, created, recorded, signalled
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy

Pair = tuple[PostgresServer, PostgresServer]


@pytest.fixture
def pair(server: PostgresServer) -> Iterator[Pair]:
    """A primary and its standby."""
    with ExitStack() as stack:
        standby = server.standby()
        stack.push(standby)
        yield server, standby


async def test_a_store_continues_at_the_new_primary_and_refuses_the_old_one(pair: Pair) -> None:
    """Nothing is written to the old primary, which still runs, and no acknowledged write is lost."""
    primary, standby = pair
    with Proxy(primary.port) as proxy:
        async with Store(PostgresBackend(PostgresServer.url_at(proxy.port), patience=0.2), patience=0.2) as store:
            shared = await claim_common(store, 12)
            first = await load(store, "first", shared)
            wait_for_standby(primary, standby)
            standby.promote()
            proxy.lead_to(standby.port)
            second = await load(store, "second", shared)

            row, before = await store.get(shared.runs[0]), events_at(primary)
            proxy.lead_to(primary.port)
            said = await asyncio.gather(
                store.send_commands(row.id, signalled("stale"), actor="w"),
                store.create("stale", created("stale"), actor="w"),
                store.claim("common", limit=1),
                store.get(row.id),
                store.transact(
                    row.id, after=row.head, fence=row.fence, actor="w", work=lambda _: pytest.fail("called")
                ),
                return_exceptions=True,
            )
            assert [type(each) for each in said] == [StaleServer] * 5
            assert events_at(primary) == before

            proxy.lead_to(standby.port)
            third = await load(store, "third", shared)
            await check(store, first | second | third)


async def test_a_standby_that_lost_acknowledged_events_is_detected(pair: Pair) -> None:
    """The writer gets Tampered, and nothing is written."""
    primary, standby = pair
    with Proxy(primary.port) as proxy:
        async with Store(PostgresBackend(PostgresServer.url_at(proxy.port), patience=0.2), patience=0.2) as store:
            head, fence = await own(store, "r1")
            head = await extend(store, "r1", head, fence, recorded("kept"))
            wait_for_standby(primary, standby)
            standby.stop()
            for number in range(3):
                head = await extend(store, "r1", head, fence, recorded(f"lost-{number}"))
            primary.stop("immediate")
            standby.start()
            standby.promote()
            proxy.lead_to(standby.port)

            before = events_at(standby)
            with pytest.raises(Tampered, match="but event 6 was acknowledged"):
                await extend(store, "r1", head, fence, recorded("next"))
            assert events_at(standby) == before == [(3,)]


def never(connection: object) -> NoReturn:
    """Fail the test if this is called."""
    pytest.fail("the work was started")


async def load(store: Store, name: str, shared: Common) -> set[str]:
    """Run writes that can be repeated after a loss, and return their marks."""
    load, places = Load(store, name, shared, kinds=("append", "two_runs", "command", "create")), iter(range(20))
    await load.run(lambda: next(places, None) is not None)
    return load.marks


def wait_for_standby(primary: PostgresServer, standby: PostgresServer) -> None:
    """Wait until the standby has replayed everything that the primary has written."""
    [(written,)] = primary.sql("SELECT pg_current_wal_flush_lsn()")
    while standby.sql(f"SELECT pg_last_wal_replay_lsn() >= '{written}'") != [(True,)]:
        pass


def events_at(server: PostgresServer) -> list[tuple[object, ...]]:
    """Return the number of events at a server."""
    return server.sql("SELECT count(*) FROM limpet.events")
