"""A worker that is killed while an MCP server does something for it: the server did it, and nobody heard."""

import asyncio
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import limpet
from tests.crash.mcp_agent import post
from tests.crash.processes import Child
from tests.crash.test_runs import KILLED
from tests.servers.mcp import serving

get_context("forkserver").set_forkserver_preload(["tests.crash.jobs", "tests.crash.agents", "tests.crash.mcp_agent"])


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    """What was sent."""
    file = tmp_path / "letters"
    file.touch()
    return file


@pytest.fixture(params=["pipes", "http"])
def server(request: pytest.FixtureRequest, letters: Path) -> Iterator[Any]:
    """A server that goes with its worker, and one that outlives it."""
    with serving(request.param, letters) as named:
        yield named


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store that outlives all of them."""
    return f"sqlite:///{tmp_path / 'limpet.db'}"


async def requests(app: limpet.App) -> list[limpet.Request]:
    """What people are asked, once they are."""
    async with asyncio.timeout(60):
        with app.store.watch() as watch:
            while not (found := await app.inbox()):
                await watch.changed()
    return found


async def test_a_call_that_began_is_asked_about_and_not_repeated(server: Any, letters: Path, url: str) -> None:
    """The next process calls nothing until a person has said what came of it."""
    assert Child(post, url, server, "once").end() == KILLED
    sent = letters.read_text()
    assert sent.count("\n") == 1
    second = Child(post, url, server, "once")
    async with limpet.open(url, worker=False) as app:
        [request] = await requests(app)
        assert (request.kind, request.tool, letters.read_text()) == ("unknown", "deliver", sent)
        await app.answer(request, {"applied": "it arrived"}, by="ann")
        assert await asyncio.to_thread(second.hear) == "it says: it arrived"
        assert await asyncio.to_thread(second.end) == 0
        kinds = [each.kind for each in await app.log("r")]
        assert (kinds.count("step.unknown"), kinds.count("step.resolved")) == (1, 1)
        await app.verify("r")
    assert letters.read_text() == sent


@pytest.mark.parametrize("server", ["http"], indirect=True)
async def test_one_that_is_safe_to_repeat_is_repeated_with_its_key(server: Any, letters: Path, url: str) -> None:
    """Its user says so; the server sees the same key again, and nobody is asked."""
    assert Child(post, url, server, "idempotent").end() == KILLED
    second = Child(post, url, server, "idempotent")
    assert await asyncio.to_thread(second.hear) == "it says: delivered"
    assert second.end() == 0
    first, again = letters.read_text().splitlines()
    assert first == again
    assert first.startswith("Ann r:step_")
