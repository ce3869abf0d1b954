"""A store for each test, and a server over it, which the command line uses."""

from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import pytest

from tests.interfaces.cli.conftest import template
from tests.interfaces.remote.remote_servers import served_in_thread

__all__ = ["served_copy", "template", "url"]


@pytest.fixture
def url(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a copy of the store. The command line only gets the address of a server over it."""
    yield from served_copy(template, tmp_path, monkeypatch)


def served_copy(template: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Copy a store, and serve it; commands use the server, with a token of the user who types them."""
    copytree(template, folder, dirs_exist_ok=True)
    url = f"sqlite:///{folder}/limpet.db"
    monkeypatch.setenv("LOGNAME", "ann")
    with served_in_thread(url, "ann") as (address, token):
        monkeypatch.setenv("LIMPET_URL", address)
        monkeypatch.setenv("LIMPET_TOKEN", token)
        yield url
