"""A Temporal server that the tests of engines share."""

from collections.abc import Iterator

import pytest

from tests.servers.temporal import TemporalServer


@pytest.fixture(scope="session")
def temporal() -> Iterator[TemporalServer]:
    """A running server, which a test may kill and start again."""
    with TemporalServer() as server:
        yield server
