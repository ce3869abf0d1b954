"""Tools that need fresh data, called by a model: the loop reads stale data again, once."""

import asyncio
from collections.abc import Callable
from typing import Any

import limpet
from limpet import testing
from limpet.clock import microseconds
from limpet.testing import ScriptedModel, calls

MONEY = limpet.Approvals("money")


class Market:
    """A price that changes, read by symbol, and a tool that needs it."""

    def __init__(self) -> None:
        market = self
        self.read: list[str] = []
        self.sold: list[int] = []
        self.now: Callable[[], int] = int
        self.last = 0
        self.ages: list[int] = []
        """Age of the price at each sale, in microseconds."""
        self.is_open = self.moves = True

        @limpet.external(ttl="5m", name="stale_price")
        async def price(symbol: str) -> int:
            """The price of a share."""
            market.read.append(symbol)
            if not market.is_open:
                raise limpet.Permanent("closed")
            market.last = market.now()
            return 100 + (len(market.read) if market.moves else 0)

        @limpet.tool(effect="once", risk="money", name="stale_sell", fresh=[price], invalidates=[price])
        async def sell(at: int) -> str:
            """Sell."""
            market.sold.append(at)
            market.ages.append(market.now() - market.last)
            return f"sold at {at}"

        self.price, self.sell = price, sell

    def agent(self, name: str, *replies: Any, approvals: limpet.Approvals | None = None) -> Any:
        """Return an agent that trades."""
        model = ScriptedModel(*replies)
        tools: list[Any] = [self.price, self.sell]
        return limpet.llm_agent(name, model=model, instructions="Trade.", tools=tools, approvals=approvals)


async def tool_messages(app: testing.TestApp) -> list[str]:
    """Return the texts of the tool messages."""
    return [each.text for each in await app.messages("r.chat") if each.role == "tool"]


async def test_stale_data_is_read_again_with_the_same_arguments() -> None:
    """It expired while a person decided, and was invalidated by the tool itself."""
    market = Market()
    agent = market.agent(
        "stale_trader",
        calls("stale_price", symbol="y"),
        calls("stale_price", symbol="x"),
        calls("ask_person", question="now?"),
        calls("stale_sell", at=102),
        calls("stale_sell", at=103),
        "done",
    )
    async with testing.app(agent) as app:
        handle = await app.start(agent, "go", id="r")
        await app.settle()
        await app.advance("6m")
        [request] = await app.inbox()
        await app.answer(request, "yes", by="ann")
        assert await handle.result() == "done"
        assert market.read == ["y", "x", "x", "x"]
        assert market.sold == [102, 103]
        assert await tool_messages(app) == ["101", "102", "yes", "sold at 102", "sold at 103"]
        assert (await app.replay("r")).value == "done"
        assert len(market.read) == 4
        state = await app.state("r")
        assert state.facts['stale_price(symbol="x")'] == 104


async def test_a_call_approved_days_later_runs_once_with_unchanged_data() -> None:
    """The approval and the edited arguments still apply, and the model is not called again."""
    market = Market()
    market.moves = False
    sells = (calls("stale_price", symbol="x"), calls("stale_sell", at=100), "done")
    agent = market.agent("stale_patient", *sells, approvals=MONEY)
    async with testing.app(agent) as app:
        handle = await app.start(agent, "go", id="r")
        await app.settle()
        [request] = await app.inbox()
        await app.advance("3d")
        app.crash_at("after", "step.started", tool="stale_price")
        await app.approve(request, by="ann", args={"at": 90})
        assert await handle.result() == "done"
        assert (market.read[:1], market.sold) == (["x"], [90])
        assert (await tool_messages(app))[1] == 'A person changed the arguments to {"at":90}. sold at 90'
        [sold] = await app.tool_calls("stale_sell")
        assert (sold.step.args, sold.step.status) == ({"at": 90}, "completed")
        assert await app.inbox() == []


async def test_a_person_is_asked_again_if_the_price_has_changed() -> None:
    """The second request shows both prices."""
    market = Market()
    sells = (calls("stale_price", symbol="x"), calls("stale_sell", at=100), "done")
    agent = market.agent("stale_moved", *sells, approvals=MONEY)
    async with testing.app(agent) as app:
        handle = await app.start(agent, "go", id="r")
        await app.settle()
        [request] = await app.inbox()
        await app.advance("1h")
        await app.approve(request, by="ann")
        await app.settle()
        [again] = await app.inbox()
        assert "has changed from 101 to 102" in again.question
        await app.approve(again, by="ann")
        assert await handle.result() == "done"
        assert market.sold == [100]


async def test_missing_or_unavailable_data_is_reported_to_the_model() -> None:
    """The tool does not start."""
    market = Market()
    agent = market.agent(
        "stale_hasty",
        calls("stale_sell", at=1),
        calls("stale_price", symbol="x"),
        calls("ask_person", question="now?"),
        calls("stale_sell", at=2),
        "done",
    )
    async with testing.app(agent) as app:
        handle = await app.start(agent, "go", id="r")
        await app.settle()
        market.is_open = False
        await app.advance("6m")
        [request] = await app.inbox()
        await app.answer(request, "yes", by="ann")
        assert await handle.result() == "done"
        texts = await tool_messages(app)
        assert all("the data from stale_price is out of date" in text for text in (texts[0], texts[3]))
        assert market.sold == []
        assert (await app.replay("r")).value == "done"


async def test_a_crash_while_rereading_sells_once_and_on_fresh_data() -> None:
    """Before and after every commit."""
    for kind in ("step.started", "step.completed", "state.patched", "value.recorded", "external.read", "run.claimed"):
        for when in ("before", "after"):
            for nth in (1, 2, 3):
                market = Market()
                agent = market.agent(
                    "stale_killed",
                    calls("stale_price", symbol="x"),
                    calls("ask_person", question="now?"),
                    calls("stale_sell", at=1),
                    "done",
                )
                async with testing.app(agent) as app:
                    market.now = app._test_settings.frozen.now
                    handle = await app.start(agent, "go", id="r")
                    await app.settle()
                    await app.advance("6m")
                    app.crash_at(when, kind, nth=nth)
                    [request] = await app.inbox()
                    await app.answer(request, "yes", by="ann")
                    await app.settle()
                    for request in await app.inbox():  # the outcome is unknown
                        await app.answer(request, {"applied": "sold"} if market.sold else "not_applied", by="ann")
                    assert await handle.result() == "done"
                    assert market.sold == [1]
                    assert set(market.read) == {"x"}
                    assert max(market.ages) <= microseconds("5m")


async def test_data_that_expires_during_an_outage_is_read_again() -> None:
    """The worker dies around the start of the sale, and the run continues an hour later."""
    began: Any = {"tool": "stale_sell"}
    for when in ("before", "after"):
        for kind, facts in (("step.started", began), ("wait.ended", {})):
            market = Market()
            agent = market.agent(
                "stale_dead", calls("stale_price", symbol="x"), calls("stale_sell", at=1), "done", approvals=MONEY
            )
            async with testing.app(agent) as app:
                market.now = app._test_settings.frozen.now
                handle = await app.start(agent, "go", id="r")
                await app.settle()
                app.crash_at(when, kind, **facts)
                await app.approve((await app.inbox())[0], by="ann")
                while not app._test_settings.faulty.is_down and not await app.is_settled():
                    await asyncio.sleep(0)  # noqa: TID251 - a turn
                app._test_settings.frozen.set(app._test_settings.frozen.now() + microseconds("1h"))
                await app.settle()
                while inbox := await app.inbox():  # the outcome is unknown, or approval is needed again
                    if inbox[0].kind == "approval":
                        await app.approve(inbox[0], by="ann")
                    else:
                        await app.answer(inbox[0], {"applied": "sold"} if market.sold else "not_applied", by="ann")
                    await app.settle()
                await handle.result()
                assert app.crashes == 1
                assert market.sold == [1]
                assert all(age <= microseconds("5m") for age in market.ages)


async def test_a_call_that_was_not_applied_rereads_stale_data_and_runs() -> None:
    """The worker died; by the time a person answers "not applied", the data is stale."""
    sold: list[str] = []

    @limpet.external(ttl="5m", name="stale_quoted")
    async def price() -> int:
        return 100

    @limpet.tool(effect="once", fresh=[price], name="stale_sold")
    async def sell(symbol: str) -> str:
        sold.append(symbol)
        return f"sold {symbol}"

    model = ScriptedModel(calls("stale_quoted"), calls("stale_sold", symbol="ACME"), "done")
    agent = limpet.llm_agent("stale_unknown", model=model, instructions="Sell.", tools=[price, sell])
    async with testing.app(agent) as app:
        app.crash_at("after", "step.started", tool="stale_sold")
        handle = await app.start(agent, "sell", id="r")
        await app.settle()
        [request] = await app.inbox()
        await app.advance("1h")
        await app.answer(request, "not_applied", by="ann")
        assert await handle.result() == "done"
        said = [each.text for each in model.prompts[-1].messages if each.role == "tool"]
        assert said[-1] == "sold ACME"
    assert sold == ["ACME"]
