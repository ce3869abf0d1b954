"""A worker that is killed after an MCP server has acted, but before it received the response."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import limpet
from tests.crash.mcp_agent import run_carrier, run_postman
from tests.crash.processes import Child
from tests.crash.test_runs import KILLED
from tests.servers.mcp import serving


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    """The file that records sent letters."""
    file = tmp_path / "letters"
    file.touch()
    return file


@pytest.fixture(params=["pipes", "http"])
def server(request: pytest.FixtureRequest, letters: Path) -> Iterator[Any]:
    """A server that dies with its worker, and one that outlives it."""
    with serving(request.param, letters) as named:
        yield named


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a store."""
    return f"sqlite:///{tmp_path / 'limpet.db'}"


async def requests(app: limpet.App) -> list[limpet.Request]:
    """Wait for open requests, and return them."""
    async with asyncio.timeout(60):
        with app.store.watch() as watch:
            while not (found := await app.inbox()):
                await watch.changed()
    return found


async def test_an_interrupted_mcp_call_is_resolved_by_a_person_and_not_repeated(
    server: Any, letters: Path, url: str
) -> None:
    """The next process calls nothing until a person gives the outcome."""
    assert Child(run_postman, url, server, "once").end() == KILLED
    sent = letters.read_text()
    assert sent.count("\n") == 1
    second = Child(run_postman, url, server, "once")
    async with limpet.open(url, worker=False) as app:
        [request] = await requests(app)
        assert (request.kind, request.tool, letters.read_text()) == ("unknown", "deliver", sent)
        await app.answer(request, {"applied": "it arrived"}, by="ann")
        assert await asyncio.to_thread(second.receive) == "it says: it arrived"
        assert await asyncio.to_thread(second.end) == 0
        kinds = [each.kind for each in await app.log("r")]
        assert (kinds.count("step.unknown"), kinds.count("step.resolved")) == (1, 1)
        await app.verify("r")
    assert letters.read_text() == sent


@pytest.mark.parametrize("server", ["http"], indirect=True)
async def test_an_interrupted_idempotent_mcp_call_is_repeated_with_its_key(
    server: Any, letters: Path, url: str
) -> None:
    """No person is asked."""
    assert Child(run_postman, url, server, "idempotent").end() == KILLED
    second = Child(run_postman, url, server, "idempotent")
    assert await asyncio.to_thread(second.receive) == "it says: delivered"
    assert second.end() == 0
    first, again = letters.read_text().splitlines()
    assert first == again
    assert first.startswith("Ann r:step_")


@pytest.mark.parametrize("server", ["http"], indirect=True)
async def test_an_interrupted_mcp_call_of_code_shows_its_arguments_to_a_person(
    server: Any, letters: Path, url: str
) -> None:
    """An agent in code: the call was made, its reply is lost, and it is not repeated."""
    assert Child(run_carrier, url, server).end() == KILLED
    sent = letters.read_text()
    second = Child(run_carrier, url, server)
    async with limpet.open(url, worker=False) as app:
        [request] = await requests(app)
        assert (request.kind, request.tool, request.args["name"]) == ("unknown", "deliver", "Ann")
        await app.answer(request, {"applied": "it arrived"}, by="ann")
        assert await asyncio.to_thread(second.receive) == "it says: it arrived"
        assert await asyncio.to_thread(second.end) == 0
    assert letters.read_text() == sent
    assert sent.count("\n") == 1
