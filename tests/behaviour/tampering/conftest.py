"""A store with every kind of data, made once; each test gets a copy."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import apsw
import pytest

from limpet.clock import SystemClock
from limpet.ids import RandomIds
from limpet.service.app import App
from limpet.service.settings import Settings
from limpet.stores import Inline, MasterKeys, Store
from tests.behaviour.tampering.edit_rows import SqliteRowEditor
from tests.behaviour.tampering.filled_store import fill_store, single_process

KEYS = MasterKeys(lambda: bytes(range(32)))


@pytest.fixture(scope="session")
def plain_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A filled SQLite file."""
    path = tmp_path_factory.mktemp("trust") / "plain.db"
    asyncio.run(fill_store(single_process(f"sqlite:///{path}")))
    return path


@pytest.fixture(scope="session")
def encrypted_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A filled and encrypted SQLite file."""
    path = tmp_path_factory.mktemp("trust") / "hidden.db"
    asyncio.run(fill_store(single_process(f"sqlite:///{path}"), KEYS))
    return path


@pytest.fixture(params=["plain"])
def is_encrypted(request: pytest.FixtureRequest) -> bool:
    """Whether the store is encrypted; tests set it by parametrisation."""
    return bool(request.param == "encrypted")


@pytest.fixture
def path(is_encrypted: bool, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the file."""
    whole = apsw.Connection(str(request.getfixturevalue("encrypted_file" if is_encrypted else "plain_file")))
    whole.execute("VACUUM INTO ?", (str(tmp_path / "copy.db"),))
    whole.close()
    return tmp_path / "copy.db"


@pytest.fixture
def editor(path: Path) -> Iterator[SqliteRowEditor]:
    """An attacker who can edit the file."""
    found = SqliteRowEditor(path)
    yield found
    found.close()


@pytest.fixture
async def app(path: Path, is_encrypted: bool) -> AsyncIterator[App]:
    """An app without a worker on the copy."""
    async with app_at(f"sqlite:///{path}", KEYS if is_encrypted else None) as found:
        yield found


def app_at(url: str, keys: MasterKeys | None = None) -> App:
    """Return an app without worker and threads."""
    clock = SystemClock()
    settings = Settings(Store(single_process(url)(clock), Inline(), keys=keys), clock, RandomIds(clock))
    settings.worker = None
    return App(settings, ())
