"""A store behind PgBouncer, which may use another connection for every transaction."""

import os
from collections.abc import Iterator
from functools import partial
from urllib.parse import quote

import pytest

from limpet.stores.conformance import Harness, behaviours
from limpet.stores.postgres import PostgresBackend
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer, drop_schema

TOPICS = ("watch", "append", "claim", "commands", "transactions", "concurrency")
ALL = [each for each in behaviours(PostgresBackend.capabilities) if each.topic in TOPICS]
A_FEW = [
    each
    for each in ALL
    if each.name
    in (
        "a-watch-is-notified-of-writes-through-another-store",
        "if-one-leg-is-stale-no-leg-is-written",
        "a-claimed-run-belongs-to-one-worker",
        "a-callers-row-and-its-event-are-committed-together",
    )
]


@pytest.fixture
def pooler(server: PostgresServer) -> Iterator[PgBouncer]:
    """A pooler in front of the test server."""
    with PgBouncer(server.port) as pooler:
        yield pooler


@pytest.mark.parametrize("listening", [True, False], ids=["listening-beside-it", "polling-alone"])
def test_a_store_behind_pgbouncer_passes_the_conformance_suite(
    server: PostgresServer, pooler: PgBouncer, listening: bool, full: bool
) -> None:
    """All behaviours of watching, appending, claiming and transactions with --full, otherwise four."""
    assert len(A_FEW) == 4
    direct = quote(server.url, safe="") if listening else "no"
    for behaviour in ALL if full else A_FEW:
        schema = f"limpet_{os.urandom(6).hex()}"
        url = f"{PostgresServer.url_at(pooler.port)}?schema={schema}&prepare=no&listen={direct}"
        child = ("limpet.stores.postgres:PostgresBackend", url)
        try:
            behaviour.run(Harness(backend=partial(PostgresBackend, url), child=child))
        except BaseException as error:
            error.add_note(f"behind a pooler: {behaviour}")
            raise
        finally:
            drop_schema(server.url, schema)
            server.sql("DROP TABLE IF EXISTS mine")  # the caller's own table: a pooler has no search path
