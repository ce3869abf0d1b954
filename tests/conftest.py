"""Options of the whole suite."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.servers.postgres import PostgresServer, drop_schema

settings.register_profile("limpet", deadline=None)  # no test is about time
settings.load_profile("limpet")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--full` runs the long proofs with all their cases; without it, a slice of each."""
    parser.addoption("--full", action="store_true", help="run the long proofs with all their cases")


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    """Whether all cases were asked for."""
    return bool(request.config.getoption("--full"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a real PostgreSQL: the one that LIMPET_TEST_POSTGRES names, or one that is started here."""
    named = os.environ.get("LIMPET_TEST_POSTGRES")
    if named:
        yield named
        return
    with PostgresServer(fsync="off") as server:  # a crash of the machine is not among what is tested
        yield server.url


@pytest.fixture
def postgres_schema(postgres: str) -> Iterator[str]:
    """The address of a schema of a test's own, which does not exist yet."""
    schema = f"limpet_{os.urandom(6).hex()}"
    yield f"{postgres}?schema={schema}&options=-csearch_path%3D{schema}"  # a caller's own tables live there too
    drop_schema(postgres, schema)
