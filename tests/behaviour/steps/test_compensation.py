"""Compensation: which steps are undone, when, and what a person may decide."""

import asyncio

import pytest

import limpet
from limpet import testing


async def test_a_crash_during_compensation_does_not_run_the_agent_again() -> None:
    """The run fails with its original error, although its code would now succeed."""
    fails, undoing = {"yes": True}, asyncio.Event()

    @limpet.tool(effect="idempotent")
    async def pay() -> str:
        return "paid"

    @pay.compensate
    async def unpay(result: str | None) -> None:
        if fails["yes"]:
            undoing.set()
            await asyncio.get_running_loop().create_future()

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        done = await run.step(pay)
        if fails["yes"]:
            raise OSError("disk")
        return done

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await undoing.wait()
        fails["yes"] = False
        await app.crash()
        with pytest.raises(limpet.RunFailed, match="OSError: disk"):
            await handle.result()


async def test_children_are_cancelled_before_compensation_starts() -> None:
    """Even if compensation then waits for a person."""

    @limpet.tool(effect="once")
    async def act() -> None: ...

    @limpet.tool(effect="idempotent", retry=limpet.Retry(1))
    async def pay() -> None: ...

    @pay.compensate
    async def unpay(result: None) -> None:
        raise ConnectionError("no")

    @limpet.agent()
    async def child(run: limpet.Run, n: int) -> None:
        await run.sleep("1h")
        await run.step(act)

    @limpet.agent()
    async def agent(run: limpet.Run) -> None:
        await run.step(pay)
        await run.call(child, 1)

    async with testing.app(agent, child) as app:
        await app.start(agent, id="r1")
        await app.settle()
        await app.cancel("r1", reason="enough")
        await app.advance("2h")
        assert app.calls(act) == []
        assert {run.id: run.status for run in await app.runs()} == {"r1": "waiting", "r1.child-1": "cancelled"}
        [request] = await app.inbox()
        await app.answer(request, "skip", by="ann")
        await app.settle()
        assert {run.status for run in await app.runs()} == {"cancelled"}


async def test_an_attempt_with_an_unknown_outcome_is_compensated() -> None:
    """The run is cancelled between that attempt and its retry. An attempt that was not applied is not compensated."""
    undone: list[str] = []

    @limpet.tool(effect="idempotent", retry=limpet.Retry(3, first="1h", jitter=False))
    async def pay(what: str) -> None:
        raise ConnectionError("lost") if what == "lost" else limpet.NotApplied("busy")

    @pay.compensate
    async def unpay(result: None, what: str) -> None:
        undone.append(what)

    @limpet.agent()
    async def agent(run: limpet.Run) -> None:
        await asyncio.gather(run.step(pay, "lost"), run.step(pay, "busy"))

    async with testing.app(agent) as app:
        app._test_settings.backoffs = True
        await app.crash()
        await app.start(agent, id="r1")
        await app.settle()
        await app.cancel("r1", reason="enough")
        await app.settle()
    assert undone == ["lost"]


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_failed_compensation_is_retried_when_it_is_due(crashes: bool) -> None:
    """The log has the time, so the run may be parked or continued elsewhere until then."""
    tries: list[int] = []

    @limpet.tool(effect="idempotent", retry=limpet.Retry(3, first="1h", cap="2h", jitter=False))
    async def buy() -> int:
        return 1

    @buy.compensate
    async def unbuy(result: int | None) -> None:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("lost")

    @limpet.agent()
    async def agent(run: limpet.Run) -> None:
        await run.step(buy)
        raise ValueError("enough")

    async with testing.app(agent) as app:
        app._test_settings.backoffs = True
        await app.crash()
        if crashes:
            app.crash_at("after", "compensation.failed")
        await app.start(agent, id="r1")
        await app.settle()
        assert len(tries) == 1
        await app.advance("59m")
        assert (len(tries), (await app.info("r1")).waits_text) == (1, "time:retry:undo/1")
        await app.advance("1m")
        assert len(tries) == 2
        await app.advance("2h")
        assert (len(tries), (await app.info("r1")).status) == (3, "failed")
        assert app.crashes == 1 + crashes
        claims = [event for event in await app.log("r1") if event.kind == "run.claimed"]
        assert len(claims) == 3 + crashes


async def test_compensation_is_not_retried_after_a_person_skips_it() -> None:
    tries: list[int] = []

    @limpet.tool(effect="idempotent")
    async def buy() -> int:
        return 1

    @buy.compensate
    async def unbuy(result: int | None) -> None:
        tries.append(1)
        raise ValueError("cannot")

    @limpet.agent()
    async def agent(run: limpet.Run) -> None:
        await run.step(buy)
        raise ValueError("enough")

    async with testing.app(agent) as app:
        await app.start(agent, id="r1")
        await app.settle()
        tried = len(tries)
        await app.answer((await app.inbox())[0], "skip", by="ann")
        await app.settle()
        assert (len(tries), (await app.store.get("r1")).status) == (tried, "failed")
