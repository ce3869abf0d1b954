"""`agent(concurrency=)`: how many runs of an agent are driven at the same time."""

import asyncio

import pytest

import limpet
from limpet import testing


async def test_only_so_many_runs_of_an_agent_are_driven_at_the_same_time() -> None:
    """A run that waits frees its slot; the others go on without a push."""
    live: list[int] = []

    @limpet.tool(effect="none", name="concurrency_work")
    async def work(number: int) -> int:
        live.append(number)
        await asyncio.sleep(0)  # noqa: TID251 - let the others start
        found = len(live)
        live.remove(number)
        return found

    @limpet.agent(name="concurrency_two", concurrency=2)
    async def two(run: limpet.Run, number: int) -> int:
        first = await run.step(work, number)
        await run.sleep("1h")
        return max(first, await run.step(work, number))

    async with testing.app(two) as app:
        handles = [await app.start(two, number) for number in range(7)]
        await app.advance("1h")
        await app.advance("1h")
        assert max([await handle.result() for handle in handles]) <= 2


async def test_a_killed_worker_frees_its_slots() -> None:
    @limpet.tool(effect="none", name="concurrency_die")
    async def die(number: int) -> int:
        return number

    @limpet.agent(name="concurrency_one", concurrency=1)
    async def one(run: limpet.Run, number: int) -> int:
        return await run.step(die, number)

    async with testing.app(one) as app:
        app.crash_at("after", "step.started")
        handles = [await app.start(one, number) for number in range(3)]
        assert [await handle.result() for handle in handles] == [0, 1, 2]
        assert app.crashes == 1


async def test_a_run_names_the_one_that_has_its_slot() -> None:
    """The other one is driven, or waits for a person for days."""
    seen: list[str] = []

    @limpet.tool(effect="none", name="concurrency_look")
    async def look() -> None:
        waiting = await app.runs(waits_for="slot")
        seen.extend(f"{each.id} {each.waits_text}" for each in waiting)

    @limpet.agent(name="concurrency_looks", concurrency=1)
    async def looks(run: limpet.Run) -> None:
        await run.step(look)

    @limpet.agent(name="concurrency_asks", exclusive="user")
    async def asks(run: limpet.Run) -> object:
        return await run.ask("Go on?", options=["yes"])

    async with testing.app(looks, asks) as app:
        for run in ("a1", "a2"):
            await app.start(asks, id=run, user="ann")
        await app.start(asks, id="b1", user="bob")
        await app.settle()
        assert [str(each) for each in (await app.info("a2")).waits_for] == ["slot:a1"]
        assert [each.id for each in await app.runs(waits_for="slot")] == ["a2"]
        assert {each.id: each.waits_text for each in await app.runs()}["a2"] == "slot:a1"
        await app.pause("a2")
        await app.resume("a2")
        assert (await app.info("a2")).waits_text == "slot:a1"
        for run in ("a1", "a2"):
            await app.answer((await app.inbox(run=run))[0], "yes", by="ann")
            await app.settle()
        assert [each.id for each in await app.runs(waits_for="slot")] == []
        for run in ("l1", "l2"):
            await app.start(looks, id=run)
        await app.settle()
        assert seen == ["l2 slot:l1"]


def test_a_concurrency_below_one_is_refused() -> None:
    with pytest.raises(limpet.DefinitionError, match="concurrency must be at least 1"):
        limpet.agent(concurrency=0)
