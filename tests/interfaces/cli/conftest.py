"""A store for each test."""

from pathlib import Path
from shutil import copytree

import pytest

from tests.interfaces.cli.run_cli import fill


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a failed run, one that waits for a person, and one whose agent no worker serves."""
    folder = tmp_path_factory.mktemp("store")
    fill(folder)
    return folder


@pytest.fixture
def url(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a copy of the store."""
    copytree(template, tmp_path, dirs_exist_ok=True)
    found = f"sqlite:///{tmp_path}/limpet.db"
    monkeypatch.setenv("LIMPET_URL", found)
    return found
