"""Branches that share a queue take the same items on replay: a result does not overtake the calls of other branches."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing

PAGES = "abcdefghij"


@limpet.tool(effect="none")
async def read(page: str) -> str:
    """Return a page at once."""
    return page.upper()


@limpet.tool(effect="none")
async def read_slowly(page: str) -> str:
    """Return a page after some time, which differs."""
    for _ in range(ord(page) * 7 % 5):
        await asyncio.sleep(0)  # noqa: TID251 - turns of the loop
    return page.upper()


@limpet.tool(effect="idempotent")
async def save(page: str) -> str:
    """Save a page."""
    return page.upper()


async def pool(run: limpet.Run, tool: limpet.Tool[Any, Any, Any], *, ask_at: str = "") -> list[str]:
    """Let three workers take pages from a queue."""
    queue: asyncio.Queue[str] = asyncio.Queue()
    found: list[str] = []

    async def work(number: int) -> None:
        async with run.scope(f"worker-{number}"):
            while True:
                page = await queue.get()
                if page == ask_at:
                    await run.ask(f"{page}?")
                found.append(f"{number}{await run.step(tool, page)}")
                queue.task_done()

    workers = [asyncio.ensure_future(work(number)) for number in range(3)]
    for page in PAGES:
        queue.put_nowait(page)
    await queue.join()
    for each in workers:
        each.cancel()
    return found


@pytest.mark.parametrize("tool", [read, read_slowly, save], ids=lambda each: each.name)
@pytest.mark.parametrize("ask_at", ["a", "c", "j"])
async def test_workers_take_the_same_items_after_a_restart(tool: Any, ask_at: str, tmp_path: Path) -> None:
    """The process ends while a person is asked, and another one goes on; a replay agrees."""

    @limpet.agent()
    async def agent(run: limpet.Run) -> list[str]:
        return await pool(run, tool, ask_at=ask_at)

    url = f"sqlite:///{tmp_path}/a.db"
    async with limpet.open(url, agents=[agent]) as app:
        await app.start(agent, id="r")
        while not await app.inbox() or (await app.store.get("r")).status == "running":
            await asyncio.sleep(0.01)  # noqa: TID251 - a real process
    async with limpet.open(url, agents=[agent]) as app:
        await app.approve((await app.inbox())[0], by="ann")
        found = await (await app.get("r", agent)).result()
        assert sorted(each[1:] for each in found) == sorted(PAGES.upper())
        assert len(await app.steps("r")) == len(PAGES)
        assert (await app.replay("r")).value == found


@pytest.mark.parametrize("nth", range(1, 9))
async def test_workers_take_the_same_items_after_a_crash(nth: int) -> None:
    """The process dies when a page has been saved."""

    @limpet.agent()
    async def agent(run: limpet.Run) -> list[str]:
        return await pool(run, save)

    async with testing.app(agent) as app:
        app.crash_at("after", "step.completed", nth=nth)
        found = await app.run(agent, id="r")
        assert sorted(each[1:] for each in found) == sorted(PAGES.upper())
        assert len(await app.steps("r")) == len(PAGES)
        assert (await app.replay("r")).value == found
