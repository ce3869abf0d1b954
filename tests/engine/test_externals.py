"""The outside world: reads that hold for a time, and tools that must not go by old news."""

from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.testing.app import TestApp, TestSettings


class Market:
    """A source that changes, and tools that go by it."""

    def __init__(self) -> None:
        market = self
        self.price, self.reads, self.sold = 100, 0, list[int]()

        @limpet.external(ttl="5m", name="externals_price")
        async def price(symbol: str) -> int:
            market.reads += 1
            return market.price

        @limpet.tool(effect="once", name="externals_sell", fresh=[price], invalidates=[price])
        async def sell(at: int) -> str:
            market.sold.append(at)
            return f"sold at {at}"

        self.source, self.sell = price, sell


async def kinds(app: TestApp, run: str) -> list[str]:
    """The kinds of a log."""
    return [each.kind for each in await app.log(run)]


async def test_a_read_holds_for_its_time() -> None:
    """Within it the source is not asked again; what it said is a fact as of its step, the same on replay."""
    market = Market()

    @limpet.agent(name="externals_reader")
    async def reader(run: limpet.Run) -> list[int]:
        found = [await run.read(market.source, "x"), await run.read(market.source, "x")]
        await run.sleep("4m")
        found.append(await run.read(market.source, "x"))
        found.append(await run.read(market.source, "y"))
        await run.sleep("4m")
        found.append(await run.read(market.source, symbol="x"))
        return found

    async with testing.app(reader) as app:
        handle = await app.start(reader, id="r")
        await app.settle()
        market.price = 200
        await app.advance("4m")
        await app.crash()
        await app.advance("5m")
        assert await handle.result() == [100, 100, 100, 200, 200]
        assert market.reads == 3
        state = await app.state("r")
        facts = {fact.key: (fact.source, fact.step) for fact in state.working.known_facts}
        assert facts == {
            'externals_price(symbol="y")': ("externals_price", 2),
            'externals_price(symbol="x")': ("externals_price", 3),
        }
        assert state.facts['externals_price(symbol="x")'] == 200
        again = await app.replay("r")
        assert (again.value, market.reads) == ([100, 100, 100, 200, 200], 3)


async def test_a_tool_never_starts_on_old_news() -> None:
    """Not read, read too long ago, or changed by itself since: it is refused, before anything has happened."""
    market = Market()

    @limpet.agent(name="externals_seller")
    async def seller(run: limpet.Run) -> list[str]:
        done = []
        for how in ("never read", "fresh", "changed since", "too old"):
            if how in ("fresh", "too old"):
                price = await run.read(market.source, "x")
            if how == "too old":
                await run.sleep("6m")
            try:
                done.append(await run.step(market.sell, 1 if how == "never read" else price))
            except limpet.Stale as stale:
                done.append(f"{how}: {stale.source}")
        return done

    async with testing.app(seller) as app:
        handle = await app.start(seller, id="r")
        await app.settle()
        await app.crash()
        await app.advance("6m")
        wanted = [
            "never read: externals_price",
            "sold at 100",
            "changed since: externals_price",
            "too old: externals_price",
        ]
        assert await handle.result() == wanted
        assert market.sold == [100]
        assert (await app.replay("r")).value == wanted
        assert (await kinds(app, "r")).count("external.invalidated") == 1


@pytest.mark.parametrize("effect", ["once", "idempotent", "none"])
async def test_killed_and_resumed_long_after(effect: Any) -> None:
    """A crash before the start, or in the middle of an attempt, does not let it start on what is stale by then."""
    begun: list[str] = []

    @limpet.external(ttl="5m", name="externals_source")
    async def source() -> int:
        return 1

    @limpet.tool(effect=effect, name="externals_act", fresh=[source])
    async def act() -> str:
        begun.append("act")
        return "done"

    @limpet.agent(name="externals_actor")
    async def actor(run: limpet.Run) -> str:
        await run.read(source)
        await run.ask("go on?")
        try:
            return await run.step(act)
        except limpet.Stale:
            await run.read(source)
            return await run.step(act)

    for when in ("before", "after"):
        begun.clear()
        async with testing.app(actor) as app:
            handle = await app.start(actor, id="r")
            await app.settle()
            [request] = await app.inbox()
            if when == "before":
                await app.advance("10m")
            app.crash_at("after", "step.started", tool="externals_act")
            await app.approve(request, by="ann")
            try:
                assert await handle.result() == "done"
                assert begun in (["act"], ["act", "act"])
            except (limpet.NotDone, limpet.RunFailed):
                assert effect == "once"
                assert begun == []


async def test_a_retry_is_a_start_too() -> None:
    """What was fresh at the first attempt may not be at the next."""
    begun: list[int] = []

    @limpet.external(ttl="5m", name="externals_slow")
    async def source() -> int:
        return 1

    @limpet.tool(
        effect="once",
        name="externals_retry",
        fresh=[source],
        retry=limpet.Retry(3, first="10m", cap="1h", jitter=False),
    )
    async def act() -> str:
        begun.append(1)
        raise limpet.NotApplied("not yet")

    @limpet.agent(name="externals_retrier")
    async def retrier(run: limpet.Run) -> str:
        await run.read(source)
        try:
            return await run.step(act)
        except limpet.StepFailed as failed:
            return failed.error_type

    settings = TestSettings()
    settings.backoffs = True
    async with TestApp(settings, [retrier]) as app:
        handle = await app.start(retrier, id="r")
        await app.settle()
        await app.advance("11m")
        assert await handle.result() == "limpet.Stale"
        assert begun == [1]


def test_sources_that_cannot_be() -> None:
    """What a source says must hold for some time."""
    with pytest.raises(limpet.DefinitionError):
        limpet.external(ttl=0)
