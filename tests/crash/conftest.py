"""Servers that the crash tests may stop and crash."""

from collections.abc import Iterator

import pytest

from tests.servers.postgres import PostgresServer


@pytest.fixture(scope="session")
def one_server() -> Iterator[PostgresServer]:
    """A server of the crash tests' own."""
    with PostgresServer(fsync="off") as server:
        yield server


@pytest.fixture
def server(one_server: PostgresServer) -> PostgresServer:
    """A running server with no store in it, to be stopped and crashed."""
    one_server.restart("fast")  # the test before may have left it stopped
    one_server.sql("DROP SCHEMA IF EXISTS limpet CASCADE")
    one_server.sql("DROP TABLE IF EXISTS mine")
    return one_server
