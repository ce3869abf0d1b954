"""A filled store and a server over it."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import pytest_asyncio
from mcp import Client

from tests.interfaces.http_and_mcp.clients import fill, over_pipes, serving


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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pipes(url: str) -> AsyncIterator[Client]:
    """A client of an MCP server over pipes, which all tests of a module use in one event loop."""
    ready, done = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def hold() -> None:
        """Open and close the client in one task, as it requires."""
        async with over_pipes(url) as client:
            ready.set_result(client)
            await done.wait()

    holding = asyncio.create_task(hold())
    await asyncio.wait([ready, holding], return_when="FIRST_COMPLETED")
    if holding.done():
        await holding
    yield ready.result()
    done.set()
    await holding
