"""Servers that crash tests may stop and crash, and the part of the tests that runs without `--full`."""

from collections.abc import Iterator
from zlib import crc32

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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run a test that has cases for both databases on one of them, unless `--full` asks for all: `make crash` does."""
    if config.getoption("--full"):
        return
    left_out = [item for item in items if _is_other_store(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _is_other_store(item: pytest.Item) -> bool:
    """Return whether a case uses the database that its test does not use without `--full`."""
    if not isinstance(item, pytest.Function) or "/crash/" not in str(item.path) or not hasattr(item, "callspec"):
        return False
    store = next((each for each in item.callspec.params.values() if each in STORES), None)
    return store is not None and store != STORES[crc32(item.originalname.encode()) % 2]


STORES = ("sqlite", "postgres")
