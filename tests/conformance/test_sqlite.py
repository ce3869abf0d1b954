"""Runs the conformance suite on the SQLite store."""

from pathlib import Path

import pytest

from limpet.stores.cipher import MasterKeys
from limpet.stores.conformance import Behaviour, Harness, behaviours
from limpet.stores.sqlite import SqliteBackend

ALL = behaviours(SqliteBackend.capabilities)
# Child processes get no keys. The payload of ten megabytes of numbers only tests the parser, and is slow.
IN_ONE_PROCESS = [each for each in ALL if "processes" not in each.needs and each.name != "ten-megabytes-of-numbers"]
EVERY = 5
KEYS = MasterKeys.from_text("k4c0RCEgeB2s5mU+fT4vDnUOe0rWyq5Ib4a0bV5mYVY=")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Check every fifth behaviour on an encrypted file, and all of them with --full."""
    if "encrypted_behaviour" in metafunc.fixturenames:
        chosen = IN_ONE_PROCESS if metafunc.config.getoption("--full") else IN_ONE_PROCESS[::EVERY]
        metafunc.parametrize("encrypted_behaviour", chosen, ids=str)


@pytest.mark.parametrize("behaviour", ALL, ids=str)
def test_sqlite_store_conforms(behaviour: Behaviour, tmp_path: Path) -> None:
    """Check each behaviour on a new file."""
    path = str(tmp_path / "limpet.db")
    behaviour.run(
        Harness(
            backend=lambda clock: SqliteBackend(path, clock),
            child=("limpet.stores.sqlite:SqliteBackend", path),
        )
    )


def test_encrypted_sqlite_store_conforms(encrypted_behaviour: Behaviour, tmp_path: Path) -> None:
    """Check each behaviour on an encrypted file."""
    path = str(tmp_path / "limpet.db")
    encrypted_behaviour.run(Harness(backend=lambda clock: SqliteBackend(path, clock), keys=KEYS))
