"""Following a run from another process: a follower always receives the last event."""

import asyncio
from typing import Any

from msgspec.structs import replace

import limpet
from limpet import testing


async def test_a_follower_receives_an_end_between_its_two_reads() -> None:
    """The row was read before the last event was appended, the log after it."""

    @limpet.agent(name="following_short")
    async def short(run: limpet.Run) -> int:
        return 1

    async with asyncio.timeout(30), testing.app(short) as app:
        await app.run(short, id="r")
        get, rows = app.store.get, list[Any]()

        async def earlier(run: str) -> Any:
            row = await get(run)
            rows.append(row if rows else replace(row, status="running", seq=row.seq - 1))
            return rows[-1]

        app.store.get = earlier  # type: ignore[method-assign]
        assert [event.kind async for event in app.events("r")][-1] == "run.completed"
        assert [row.status for row in rows] == ["running", "completed"]


async def test_tokens_returns_a_reply_too_large_for_an_event() -> None:
    """A reply that arrives in one piece is not recorded a second time as progress."""
    words = "one two three four " * 1000
    agent = limpet.llm_agent("following_model", model=testing.ScriptedModel(words), instructions="Talk.")
    async with asyncio.timeout(30), testing.app(agent) as app:
        handle = await app.start(agent, "go", id="r")
        await app.settle()
        assert "".join([piece async for piece in handle.tokens()]) == words
        log = await app.log("r")
        assert not [event for event in log if event.kind == "step.progressed"]
