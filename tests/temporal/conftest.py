"""One Temporal server for the tests of a process, started when the first one needs it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.temporal import TemporalServer
from tests.temporal.ledger import FOLDER
from tests.temporal.temporal_world import TemporalWorld


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark of tests that only run with `--full`: `make chaos` runs them."""
    config.addinivalue_line("markers", "long: a test that takes seconds, and runs with --full only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out long tests, unless `--full` asks for all."""
    if config.getoption("--full"):
        return
    left_out = [item for item in items if item.get_closest_marker("long") is not None]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def temporal_server() -> Iterator[TemporalServer]:
    """The server of this test process."""
    with TemporalServer() as server:
        yield server


@pytest.fixture
def world(
    temporal_server: TemporalServer, postgres_schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> TemporalWorld:
    """The server, a new store, and a ledger."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    return TemporalWorld(temporal_server, postgres_schema, tmp_path)
