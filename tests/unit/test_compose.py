"""The composition root: opens a store by its URL."""

from pathlib import Path

import pytest

import limpet
from limpet import errors, open_store
from limpet.errors import InvalidArgument, LimpetError


def test_memory_and_sqlite_stores_are_opened_by_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files may be relative or absolute; the default comes from the environment."""
    assert not open_store("memory:").capabilities.durable
    assert open_store("sqlite:///x.db").capabilities.durable
    monkeypatch.setenv("LIMPET_URL", "memory:")
    assert not open_store().capabilities.durable
    monkeypatch.delenv("LIMPET_URL")
    assert open_store().capabilities.durable


@pytest.mark.parametrize(
    "url",
    ["x", "sqlite:", "sqlite://", "sqlite:///", "sqlite://host/x.db", "mysql://h/db", "memory:x", "sqlite:///a?b"],
)
def test_other_urls_are_refused_with_a_hint(url: str) -> None:
    with pytest.raises(InvalidArgument, match="sqlite:///"):
        open_store(url)


def test_a_password_is_not_repeated_in_an_error() -> None:
    """A URL may contain a secret."""
    with pytest.raises(InvalidArgument) as error:
        open_store("mysql://me:hunter2@host/db")
    assert "hunter2" not in str(error.value)


def test_every_error_can_be_imported_from_limpet() -> None:
    found = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, LimpetError)}
    assert found <= set(dir(limpet))


async def test_open_store_creates_no_file_before_it_is_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_store("sqlite:///limpet.db")
    assert list(tmp_path.iterdir()) == []
