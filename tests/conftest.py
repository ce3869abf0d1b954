"""Options and fixtures of the whole test suite."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkstemp

import certifi
import pytest
from hypothesis import settings

from tests.servers.postgres import PostgresServer, new_schema

settings.register_profile("limpet", deadline=None)  # no test depends on time
settings.register_profile("full", settings.get_profile("limpet"))


def pytest_configure(config: pytest.Config) -> None:
    """Choose how many examples property tests make.

    Let the programs that tests start react to Ctrl-C, also if the tests run in the background of a shell.
    """
    settings.load_profile("full" if config.getoption("--full") else "limpet")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.set_threshold(10_000, 20, 50)  # with Python's own settings, tests take 8 % longer
    if not hasattr(config, "workerinput") and not config.getoption("--full"):  # a test with --full downloads packages
        config.add_cleanup(_trust_one_authority().unlink)  # processes of pytest-xdist inherit the variable


def _trust_one_authority() -> Path:
    """Let this process and its children trust one certificate authority; return the file with its certificate.

    An HTTP client loads all authorities, also for a server without TLS, and that takes 40 ms. Tests need none of them.
    """
    before, end, _ = Path(certifi.where()).read_text(encoding="utf-8").partition("-----END CERTIFICATE-----")
    file, name = mkstemp(prefix="limpet-authority-", suffix=".pem")
    with open(file, "w", encoding="utf-8") as written:
        written.write(before + end + "\n")
    os.environ["SSL_CERT_FILE"] = name
    return Path(name)


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
    with new_schema(postgres) as url:
        yield url
