"""Code that never ended, and is destroyed later by the garbage collector, in the middle of another run's code."""

import asyncio
import gc
from collections.abc import AsyncGenerator

import pytest

import limpet
from limpet import testing


@limpet.tool(effect="none")
async def fetch(page: str) -> str:
    """Return a page."""
    return page.upper()


@limpet.agent()
async def crawl(run: limpet.Run, pages: list[str]) -> int:
    """Fetch pages in branches, which then wait for something inside their scopes while the run is parked."""
    found: list[str] = []

    async def work(page: str) -> None:
        async with run.scope(page):
            found.append(await run.step(fetch, page))
            await asyncio.Event().wait()

    workers = [asyncio.ensure_future(work(page)) for page in pages]
    await run.ask("publish?")
    for each in workers:
        each.cancel()
    return len(found)


@limpet.agent()
async def report(run: limpet.Run) -> list[str]:
    """Call steps in scopes, and collect garbage meanwhile."""
    found = []
    for number in range(3):
        async with run.scope(f"part-{number}"):
            gc.collect()
            found.append(await run.step(fetch, f"p{number}"))
    return found


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_destroyed_code_does_not_change_the_scope_of_another_run() -> None:
    """The destroyed code leaves its scope, which is not the scope of the code that runs at this moment."""
    async with testing.app(crawl, report) as app:
        parked = [await app.start(crawl, ["a", "b", "c"]) for _ in range(5)]
        await app.settle()
        for _ in range(5):
            assert await app.run(report) == ["P0", "P1", "P2"]
        for asked in await app.inbox():
            await app.approve(asked, by="ann")
        assert [await each.result() for each in parked] == [3] * 5


async def test_a_scope_is_left_when_a_generator_is_closed() -> None:
    """A generator that is closed inside its own task does leave its scope."""

    @limpet.agent()
    async def agent(run: limpet.Run) -> list[str]:
        async def pages() -> AsyncGenerator[str]:
            async with run.scope("pages"):
                yield await run.step(fetch, "a")
                yield await run.step(fetch, "b")

        each = pages()
        first = await anext(each)
        await each.aclose()
        return [first, await run.step(fetch, "c")]

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        assert await handle.result() == ["A", "C"]
        assert [each.name for each in await app.steps(handle.id)] == ["pages/fetch#1", "fetch#1"]
