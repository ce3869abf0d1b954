"""A store in which everything has happened, made once; each test has a copy."""

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
from tests.behaviour.tampering.edit_rows import SqliteHand
from tests.behaviour.tampering.filled_store import alone, happen

KEYS = MasterKeys(lambda: bytes(range(32)))


@pytest.fixture(scope="session")
def plain_story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file in which it can be read."""
    path = tmp_path_factory.mktemp("trust") / "plain.db"
    asyncio.run(happen(alone(f"sqlite:///{path}")))
    return path


@pytest.fixture(scope="session")
def hidden_story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file in which it is encrypted."""
    path = tmp_path_factory.mktemp("trust") / "hidden.db"
    asyncio.run(happen(alone(f"sqlite:///{path}"), KEYS))
    return path


@pytest.fixture(params=["plain"])
def is_hidden(request: pytest.FixtureRequest) -> bool:
    """Whether the store is encrypted; tests say for which they are."""
    return bool(request.param == "encrypted")


@pytest.fixture
def path(is_hidden: bool, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the file."""
    whole = apsw.Connection(str(request.getfixturevalue("hidden_story" if is_hidden else "plain_story")))
    whole.execute("VACUUM INTO ?", (str(tmp_path / "copy.db"),))
    whole.close()
    return tmp_path / "copy.db"


@pytest.fixture
def hand(path: Path) -> Iterator[SqliteHand]:
    """Somebody who has the file."""
    found = SqliteHand(path)
    yield found
    found.close()


@pytest.fixture
async def app(path: Path, is_hidden: bool) -> AsyncIterator[App]:
    """An app on the copy that drives nothing."""
    async with app_at(f"sqlite:///{path}", KEYS if is_hidden else None) as found:
        yield found


def app_at(url: str, keys: MasterKeys | None = None) -> App:
    """An app at an address that drives nothing, and needs no thread."""
    clock = SystemClock()
    settings = Settings(Store(alone(url)(clock), Inline(), keys=keys), clock, RandomIds(clock))
    settings.worker = None
    return App(settings, ())
