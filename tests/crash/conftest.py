"""Servers that crash tests may stop and crash."""

from collections.abc import Iterator

import pytest

from tests.servers.postgres import PostgresServer


@pytest.fixture(scope="session")
def one_server() -> Iterator[PostgresServer]:
    """A server for the crash tests only."""
    with PostgresServer(fsync="off") as server:
        yield server


@pytest.fixture
def server(one_server: PostgresServer) -> PostgresServer:
    """A running server without a store."""
    one_server.restart("fast")  # the previous test may have stopped it
    one_server.sql("DROP SCHEMA IF EXISTS limpet CASCADE")
    one_server.sql("DROP TABLE IF EXISTS mine")
    return one_server
