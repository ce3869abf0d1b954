"""The brief of a request: both ends of a long input, whole reasons, and the facts with their age."""

from datetime import timedelta
from pathlib import Path

import pytest

import limpet
from limpet import testing
from limpet.context.brief import Brief
from limpet.stores.blobs import CHUNK
from limpet.stores.cipher import MasterKeys
from limpet.testing.app import TestApp

BECAUSE = "the customer wrote three times, " * 40 + "and the last letter came from a lawyer"


@limpet.external(ttl="5m", name="briefs_quotes")
async def quotes(symbol: str) -> int:
    return 40


@limpet.external(ttl="1h", name="briefs_weather")
async def weather() -> str:
    return "rain"


@limpet.tool(effect="once", name="briefs_buy", risk="money", fresh=[quotes], invalidates=[weather])
async def buy(cents: int) -> int:
    return cents


@limpet.agent(name="briefs_asks")
async def asks(run: limpet.Run, text: str) -> bool:
    await run.decide("write back?", choose=True, over=[True, False], because=BECAUSE)
    return await run.ask("go on?")


async def brief_of(app: limpet.App) -> Brief:
    [request] = await app.inbox()
    assert request.context is not None
    return request.context


@pytest.mark.parametrize("size", [1000, 3000, 12_000, 20_000, 3 * CHUNK // 2, 2 * CHUNK + 7])
async def test_a_long_input_keeps_both_ends(size: int) -> None:
    """With the number of characters between them, and the command that prints the whole."""
    text = "first" + "ä" * (size - 9) + "last"
    async with testing.app(asks) as app:
        await app.start(asks, text, id="r")
        await app.settle()
        shown = (await brief_of(app)).input
        assert shown.startswith('"first')
        assert shown.endswith('last"')
        assert ("left out; whole: limpet input r) " in shown) == (size > 2000)
        assert len(shown) < 2100
        if size == 3000:
            assert f"({3002 - 2000} characters left out" in shown
        assert (await app.input("r")).input == text


async def test_secrets_at_the_ends_of_a_long_input_are_hidden() -> None:
    """Also one that the cut would divide."""
    token = "sk-" + "a1B2c3D4" * 6
    text = "x" * 980 + f" {token} " + "y" * 50_000 + f" {token} " + "z" * 970
    async with testing.app(asks) as app:
        await app.start(asks, text, id="r")
        await app.settle()
        shown = (await brief_of(app)).input
        assert "a1B2c3D4" not in shown
        assert shown.endswith('zzz"')


async def test_an_encrypted_input_keeps_both_ends(tmp_path: Path) -> None:
    store = limpet.open_store(f"sqlite:///{tmp_path}/secret.db", keys=MasterKeys(lambda: bytes(32)))
    async with limpet.open(agents=[asks]).replace(store=store) as app:
        handle = await app.start(asks, "first" + "x" * CHUNK + "last", id="r")
        async for event in handle.events():
            if event.kind == "request.opened":
                break
        shown = (await brief_of(app)).input
        assert (shown[:6], shown[-5:]) == ('"first', 'last"')


async def test_the_reason_of_a_decision_is_whole() -> None:
    """In the request, and in the report of the run."""
    async with testing.app(asks) as app:
        await app.start(asks, "x", id="r")
        await app.settle()
        assert [made.because for made in (await brief_of(app)).decisions] == [BECAUSE]
        assert [made.because for made in (await app.show("r")).decisions] == [BECAUSE]


@limpet.agent(name="briefs_buys", approvals=limpet.Approvals("money"))
async def buys(run: limpet.Run) -> int:
    await run.patch(facts={"limit": 50})
    price = await run.read(quotes, "x")
    await run.read(weather)
    await run.patch(facts={"cheap": True}, derived_from=[f'briefs_quotes(symbol="{"x"}")'])
    return await run.step(buy, price)


async def bought(app: TestApp) -> None:
    await app.start(buys, id="r")
    await app.settle()


async def test_facts_show_their_age_and_whether_they_are_stale() -> None:
    """Those that the tool relies on come first. The person who looks 40 minutes later sees that the price is old."""
    async with testing.app(buys) as app:
        await bought(app)
        facts = (await brief_of(app)).facts
        assert [(fact.key, fact.is_needed) for fact in facts] == [
            ('briefs_quotes(symbol="x")', True),
            ("cheap", False),
            ("briefs_weather", False),
            ("limit", False),
        ]
        assert facts[0].time is not None
        now = facts[0].time + timedelta(minutes=40)
        assert [fact.text(now) for fact in facts] == [
            'briefs_quotes(symbol="x") = 40 from briefs_quotes, read 40 min ago, ttl 5 min: stale',
            "cheap = true, recorded 40 min ago",
            'briefs_weather = "rain" from briefs_weather, read 40 min ago, ttl 1 h',
            "limit = 50, recorded 40 min ago",
        ]
        assert "stale" not in facts[0].text(facts[0].time + timedelta(minutes=4))


async def test_a_tool_that_invalidates_a_source_makes_its_facts_stale() -> None:
    """The next request says so."""

    @limpet.agent(name="briefs_twice", approvals=limpet.Approvals("money"))
    async def twice(run: limpet.Run) -> int:
        await run.read(quotes, "x")
        await run.read(weather)
        return await run.step(buy, 1) + await run.step(buy, 2)

    async with testing.app(twice) as app:
        await app.start(twice, id="r")
        await app.settle()
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        await app.settle()
        facts = {fact.source: fact for fact in (await brief_of(app)).facts}
        old, new = facts["briefs_weather"], facts["briefs_quotes"]
        assert old.time is not None
        assert old.text(old.time).endswith(": stale")
        assert "stale" not in new.text(old.time)


async def test_the_ages_of_facts_are_the_same_from_a_snapshot_in_a_fork_and_after_a_crash() -> None:
    async with testing.app(buys) as app:
        await bought(app)
        before = (await brief_of(app)).facts
        await app.crash()
        await app.advance("1m")
        assert (await brief_of(app)).facts == before
        await app.fork("r", at=3, id="f")
        await app.settle()
        [request] = await app.inbox(run="f")
        assert request.context is not None
        assert request.context.facts == before
