"""External reads with a time to live, and tools that refuse to start on stale data."""

import asyncio
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.testing.app import TestApp, TestSettings


class Market:
    """A source whose value changes, and tools that depend on it."""

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
    return [each.kind for each in await app.log(run)]


async def test_a_read_is_cached_until_its_ttl_expires() -> None:
    """The value is recorded as a fact of its step, and is the same on replay."""
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


async def test_a_tool_with_stale_or_missing_data_is_refused() -> None:
    """Not read, read too long ago, or invalidated by the tool itself: the step is refused before it starts."""
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
async def test_a_crashed_step_does_not_restart_on_stale_data(effect: Any) -> None:
    """The data expires before the approval (or not at all), and the worker dies when the step has started."""
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


async def test_a_retry_on_stale_data_is_refused() -> None:
    """Data that was fresh at the first attempt may have expired by the next."""
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


def test_a_source_with_a_ttl_of_zero_is_refused() -> None:
    with pytest.raises(limpet.DefinitionError):
        limpet.external(ttl=0)


class Desk:
    """A tool that needs approval and fresh data; the person takes longer than the data's time to live."""

    def __init__(self, *, same: Any = None) -> None:
        desk = self
        self.price, self.reads, self.sold = 100, 0, list[int]()

        @limpet.external(ttl="5m", name="desk_price", same=same)
        async def price(symbol: str) -> int:
            desk.reads += 1
            return desk.price

        @limpet.tool(effect="once", name="desk_sell", risk="external_action", fresh=[price])
        async def sell(at: int) -> str:
            desk.sold.append(at)
            return f"sold at {at}"

        @limpet.agent(name="desk_agent", approvals=limpet.Approvals("external_action"))
        async def agent(run: limpet.Run) -> str:
            at = await run.read(price, "x")
            try:
                return await run.step(sell, at)
            except limpet.Stale as stale:
                return f"stale: {stale.source}"

        self.source, self.sell, self.agent = price, sell, agent


async def only_request(app: TestApp) -> limpet.Request:
    """Return the one open request."""
    await app.settle()
    [request] = await app.inbox()
    return request


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("args", [None, {"at": 90}])
async def test_a_late_approval_is_used_if_the_data_has_not_changed(args: Any, dies: bool) -> None:
    """The data is read again and is the same, so the tool runs with the approved arguments and no second request."""
    desk = Desk()
    async with testing.app(desk.agent) as app:
        handle = await app.start(desk.agent)
        request = await only_request(app)
        await app.advance("3d")
        if dies:
            app.crash_at("after", "step.completed", nth=1)
        await app.approve(request, by="ann", args=args)
        assert await handle.result() == f"sold at {90 if args else 100}"
        assert desk.sold == [90 if args else 100]
        assert desk.reads == 2 + dies
        assert await app.inbox() == []


async def test_an_approval_in_time_does_not_read_the_data_again() -> None:
    desk = Desk()
    async with testing.app(desk.agent) as app:
        handle = await app.start(desk.agent)
        await app.approve(await only_request(app), by="ann")
        assert await handle.result() == "sold at 100"
        assert desk.reads == 1


async def test_a_crash_before_the_start_reads_the_data_again() -> None:
    """The worker dies between rereading the data and starting the step."""
    desk = Desk()
    async with testing.app(desk.agent) as app:
        handle = await app.start(desk.agent)
        request = await only_request(app)
        await app.advance("1h")
        app.crash_at("before", "step.started", tool="desk_sell")
        await app.approve(request, by="ann")
        assert await handle.result() == "sold at 100"
        assert (desk.reads, desk.sold) == (3, [100])


async def test_a_person_is_asked_again_if_the_data_has_changed() -> None:
    """The second request shows both values, the first approval and the edited arguments."""
    desk = Desk()
    async with testing.app(desk.agent) as app:
        handle = await app.start(desk.agent)
        first = await only_request(app)
        desk.price = 120
        await app.advance("1h")
        await app.approve(first, by="ann", args={"at": 90})
        second = await only_request(app)
        assert second.id != first.id
        said = 'ann approved this before, but desk_price(symbol="x") has changed from 100 to 120.'
        assert second.question == f"May desk_sell run with these arguments? {said}"
        assert second.args == {"at": 90}
        assert desk.sold == []
        await app.crash()
        await app.approve(second, by="ann")
        assert await handle.result() == "sold at 90"
        assert desk.sold == [90]
        opened = [each.body for each in await app.log(handle.id) if each.kind == "request.opened"]
        assert opened[1]["instead_of"] == first.id
        assert opened[1]["again"] == "changed"


async def test_data_that_keeps_changing_raises_stale_after_three_requests() -> None:
    """The person is asked again at most three times; then the code gets Stale, and the run is flagged."""
    desk = Desk()
    async with testing.app(desk.agent) as app:
        handle = await app.start(desk.agent)
        for _ in range(4):
            request = await only_request(app)
            desk.price += 1
            await app.advance("1h")
            await app.approve(request, by="ann")
            await app.crash()
        assert await handle.result() == "stale: desk_price"
        assert desk.sold == []
        assert "stale: desk_sell" in (await app.state(handle.id)).working.risk_flags


async def test_a_source_can_define_which_values_are_the_same() -> None:
    """Here, a price that moves by less than a tenth is the same."""
    desk = Desk(same=lambda before, after: abs(before - after) < before / 10)
    async with testing.app(desk.agent) as app:
        handle = await app.start(desk.agent)
        request = await only_request(app)
        desk.price = 109
        await app.advance("1h")
        await app.approve(request, by="ann")
        assert await handle.result() == "sold at 100"


async def test_a_step_with_stale_data_opens_no_request() -> None:
    """The data expires before the request would be opened."""
    desk = Desk()

    @limpet.agent(name="desk_late", approvals=limpet.Approvals("external_action"))
    async def late(run: limpet.Run) -> str:
        at = await run.read(desk.source, "x")
        await run.sleep("1h")
        return await run.step(desk.sell, at)

    async with testing.app(late) as app:
        handle = await app.start(late)
        await app.advance("2h")
        with pytest.raises(limpet.RunFailed, match="desk_price"):
            await handle.result()
        assert [each.kind for each in await app.log(handle.id)].count("request.opened") == 0


async def test_rereading_the_data_does_not_change_the_state_of_the_run() -> None:
    """The code sees only what it has read itself, live and on replay."""
    desk = Desk(same=lambda before, after: abs(before - after) < 50)

    @limpet.tool(effect="once", name="desk_note")
    async def note(n: int) -> int:
        return n

    @limpet.agent(name="desk_knows", approvals=limpet.Approvals("external_action"))
    async def knows(run: limpet.Run) -> int:
        await run.step(desk.sell, await run.read(desk.source, "x"))
        known = await run.step(note, run.state.facts['desk_price(symbol="x")'])
        await run.sleep("1m")
        return known

    async with testing.app(knows) as app:
        handle = await app.start(knows)
        request = await only_request(app)
        desk.price = 120
        await app.advance("1h")
        await app.approve(request, by="ann")
        await app.settle()
        await app.crash()
        await app.advance("2m")
        assert await handle.result() == 100
        assert desk.sold == [100]


@pytest.mark.parametrize("price", [100, 120])
async def test_an_expired_approval_is_requested_again_with_fresh_data(price: int) -> None:
    """The approval and the data have both expired; the second approval is used."""
    desk = Desk()

    @limpet.external(ttl="30d", name="desk_mood")
    async def mood() -> str:
        return "fine"

    @limpet.tool(effect="once", name="desk_both", risk="external_action", fresh=[mood, desk.source])
    async def both(at: int) -> int:
        desk.sold.append(at)
        return at

    @limpet.agent(name="desk_valid", approvals=limpet.Approvals("external_action", valid="1h"))
    async def agent(run: limpet.Run) -> int:
        await run.read(mood)
        return await run.step(both, await run.read(desk.source, "x"))

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        request = await only_request(app)
        await app.pause(handle.id)
        await app.approve(request, by="ann", args={"at": 90})
        desk.price = price
        await app.advance("2h")
        await app.resume(handle.id)
        again = await only_request(app)
        assert ("from 100 to 120" if price == 120 else "not start in time") in again.question
        assert desk.reads == 2
        await app.approve(again, by="ann")
        assert await handle.result() == 90
        assert desk.sold == [90]


async def test_a_person_is_asked_if_the_comparison_of_values_fails() -> None:

    def same(before: int, after: int) -> bool:
        raise ValueError("no")

    desk = Desk(same=same)
    async with testing.app(desk.agent) as app:
        handle = await app.start(desk.agent)
        request = await only_request(app)
        desk.price = 101
        await app.advance("1h")
        await app.approve(request, by="ann")
        again = await only_request(app)
        assert "has changed from 100 to 101" in again.question
        await app.approve(again, by="ann")
        assert await handle.result() == "sold at 100"


async def test_rereading_the_data_needs_no_budget() -> None:
    """Whether an approved step runs must not depend on how long the person took."""
    desk = Desk()

    @limpet.agent(name="desk_poor", approvals=limpet.Approvals("external_action"), budget=limpet.Budget(max_steps=2))
    async def poor(run: limpet.Run) -> str:
        return await run.step(desk.sell, await run.read(desk.source, "x"))

    async with testing.app(poor) as app:
        handle = await app.start(poor)
        request = await only_request(app)
        await app.advance("1h")
        await app.approve(request, by="ann")
        assert await handle.result() == "sold at 100"


async def test_two_concurrent_approved_steps_each_reread_their_data() -> None:
    desk = Desk()

    @limpet.agent(name="desk_two", approvals=limpet.Approvals("external_action"))
    async def two(run: limpet.Run) -> list[str]:
        at = await run.read(desk.source, "x")
        return list(await asyncio.gather(run.step(desk.sell, at), run.step(desk.sell, at + 1)))

    async with testing.app(two) as app:
        handle = await app.start(two)
        await app.settle()
        requests = await app.inbox()
        await app.advance("1h")
        for request in requests:
            await app.approve(request, by="ann")
            await app.crash()
        assert await handle.result() == ["sold at 100", "sold at 101"]
        assert sorted(desk.sold) == [100, 101]
