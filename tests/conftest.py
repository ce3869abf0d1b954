"""Options and fixtures of the whole test suite."""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.servers.postgres import PostgresServer, drop_schema

settings.register_profile("limpet", deadline=None)  # no test depends on time
settings.register_profile("full", settings.get_profile("limpet"))


def pytest_configure(config: pytest.Config) -> None:
    """Choose how many examples property tests make.

    Let the programs that tests start react to Ctrl-C, also if the tests run in the background of a shell.
    """
    settings.load_profile("full" if config.getoption("--full") else "limpet")
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--full`, which runs the long tests with all their cases instead of a part of them."""
    parser.addoption("--full", action="store_true", help="run the long proofs with all their cases")


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    """Return whether `--full` was passed."""
    return bool(request.config.getoption("--full"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Return the URL of a real PostgreSQL: LIMPET_TEST_POSTGRES, or a server that is started here."""
    named = os.environ.get("LIMPET_TEST_POSTGRES")
    if named:
        yield named
        return
    with PostgresServer(fsync="off") as server:  # crashes of the machine are not tested
        yield server.url


@pytest.fixture
def postgres_schema(postgres: str) -> Iterator[str]:
    """Return the URL of a new schema for one test, which does not exist yet."""
    schema = f"limpet_{os.urandom(6).hex()}"
    yield f"{postgres}?schema={schema}&options=-csearch_path%3D{schema}"  # for the caller's own tables
    drop_schema(postgres, schema)
