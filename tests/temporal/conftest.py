"""One Temporal server for the tests of a process, started when the first one needs it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.temporal import TemporalServer
from tests.temporal.ledger import FOLDER
from tests.temporal.temporal_world import TemporalWorld


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
