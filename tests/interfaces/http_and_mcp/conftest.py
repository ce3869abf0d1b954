"""A filled store and a server over it."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from tests.interfaces.http_and_mcp.clients import fill, serving


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of the store."""
    found = f"sqlite:///{tmp_path_factory.mktemp('doors')}/limpet.db"
    asyncio.run(fill(found))
    return found


@pytest.fixture(scope="session")
def server(url: str) -> Iterator[httpx.Client]:
    """A client of the server."""
    with serving(url) as client:
        yield client
