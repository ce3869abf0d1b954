"""The SQLite store is a store."""

from pathlib import Path

import pytest

from limpet.stores.cipher import MasterKeys
from limpet.stores.conformance import Behaviour, Harness, behaviours
from limpet.stores.sqlite import SqliteBackend

ALL = behaviours(SqliteBackend.capabilities)
# Other processes are not given keys; and ten megabytes of numbers are about parsing, and slow.
IN_ONE_PROCESS = [each for each in ALL if "processes" not in each.needs and each.name != "ten-megabytes-of-numbers"]
KEYS = MasterKeys.from_text("k4c0RCEgeB2s5mU+fT4vDnUOe0rWyq5Ib4a0bV5mYVY=")


@pytest.mark.parametrize("behaviour", ALL, ids=str)
def test_the_sqlite_store_behaves(behaviour: Behaviour, tmp_path: Path) -> None:
    """Each behaviour, on a file of its own."""
    path = str(tmp_path / "limpet.db")
    behaviour.run(
        Harness(
            backend=lambda clock: SqliteBackend(path, clock),
            child=("limpet.stores.sqlite:SqliteBackend", path),
        )
    )


@pytest.mark.parametrize("behaviour", IN_ONE_PROCESS, ids=str)
def test_an_encrypted_sqlite_store_behaves(behaviour: Behaviour, tmp_path: Path) -> None:
    """The same promises when nothing on the disk can be read."""
    path = str(tmp_path / "limpet.db")
    behaviour.run(Harness(backend=lambda clock: SqliteBackend(path, clock), keys=KEYS))
