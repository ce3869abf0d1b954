"""The SQLite store is a store."""

from pathlib import Path

import pytest

from limpet.stores.conformance import Behaviour, Harness, behaviours
from limpet.stores.sqlite import SqliteBackend


@pytest.mark.parametrize("behaviour", behaviours(SqliteBackend.capabilities), ids=str)
def test_the_sqlite_store_behaves(behaviour: Behaviour, tmp_path: Path) -> None:
    """Each behaviour, on a file of its own."""
    path = str(tmp_path / "limpet.db")
    behaviour.run(
        Harness(
            backend=lambda clock: SqliteBackend(path, clock),
            child=("limpet.stores.sqlite:SqliteBackend", path),
        )
    )
