"""Resuming a failed run: which steps and requests are repeated."""

import asyncio
from typing import Any

import pytest

import limpet
from limpet import testing


async def test_a_resume_keeps_a_failure_that_the_code_handled() -> None:
    """The code took its fallback; a resume repeats only what failed the run."""
    broken = {"yes": True}

    @limpet.tool(effect="once")
    async def pay(bank: str) -> str:
        if bank == "a":
            raise limpet.Permanent("closed")
        return bank

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        try:
            return await run.step(pay, "a")
        except limpet.StepFailed:
            paid = await run.step(pay, "b")
            if broken["yes"]:
                raise KeyError("a bug") from None
            return paid

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        with pytest.raises(limpet.RunFailed):
            await handle.result()
        broken["yes"] = False
        await app.resume(handle.id)
        assert await handle.result() == "b"
        assert [call["bank"] for call in app.calls(pay)] == ["a", "b"]


async def test_a_resumed_run_reopens_requests_that_its_failure_closed() -> None:
    """The request was concurrent with the step that failed."""

    @limpet.tool(effect="none", retry=1)
    async def flaky() -> int:
        raise NotImplementedError

    @limpet.agent()
    async def agent(run: limpet.Run) -> list[Any]:
        return list(await asyncio.gather(run.ask("sure?"), run.step(flaky)))

    async with testing.app(agent) as app:
        app.stub(flaky, ValueError("no"), 7)
        handle = await app.start(agent)
        with pytest.raises(limpet.RunFailed):
            await handle.result()
        assert await app.inbox() == []
        await app.resume(handle.id)
        await app.settle()
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        assert await handle.result() == [True, 7]
