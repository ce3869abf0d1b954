"""What a call uses up at most is put aside before it begins, and settled after it."""

import asyncio

import pytest

import limpet
from limpet import testing
from limpet.journal import load


async def test_parallel_calls_cannot_overspend_together() -> None:
    """Each could be afforded alone; the second is refused while the first is under way."""

    @limpet.tool(effect="idempotent", max_tokens=60)
    async def think(n: int) -> int:
        await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop
        limpet.current().spent(tokens=10)
        return n

    @limpet.agent(budget=limpet.Budget(max_llm_tokens=100))
    async def agent(run: limpet.Run) -> list[str]:
        found = await asyncio.gather(run.step(think, 1), run.step(think, 2), return_exceptions=True)
        names = [type(each).__name__ for each in found]
        return [*names, str(await run.step(think, 3))]  # only ten were used: there is room again

    async with testing.app(agent) as app:
        assert await app.run(agent, id="r1") == ["int", "BudgetExceeded", "3"]
        reserved = [event.body for event in await app.log("r1") if event.kind == "budget.reserved"]
        assert [(body["number"], body["tokens"]) for body in reserved] == [(1, 60), (3, 60)]
        assert (await load(app.store, "r1")).spent.tokens == 20
        assert len(app.calls(think)) == 2


@pytest.mark.parametrize("limit", [1.0, 1.5])
async def test_a_crash_counts_what_was_put_aside_as_spent(limit: float) -> None:
    """Nobody knows what the call in flight has used: the most is counted, and the budget may be gone with it."""

    @limpet.tool(effect="idempotent", max_cost=0.6)
    async def pay() -> str:
        limpet.current().spent(cost=0.1)
        return "paid"

    @limpet.agent(budget=limpet.Budget(max_cost=limit))
    async def agent(run: limpet.Run) -> str:
        await run.step(pay)
        return await run.step(pay)

    async with testing.app(agent) as app:
        app.crash_at("before", "step.completed")
        handle = await app.start(agent, id="r1")
        if limit == 1.0:
            with pytest.raises(limpet.RunFailed, match="max_cost"):
                await handle.result()
        else:
            assert await handle.result() == "paid"
        assert app.crashes == 1
        spent = (await load(app.store, "r1")).spent.cost
        assert spent == pytest.approx(0.6 if limit == 1.0 else 0.8)


async def test_another_attempt_must_be_afforded_too() -> None:
    """What failed has used something up as well."""

    @limpet.tool(effect="none", retry=limpet.Retry(5), max_tokens=40)
    async def think() -> str:
        limpet.current().spent(tokens=40)
        raise limpet.NotApplied("busy")

    @limpet.agent(budget=limpet.Budget(max_llm_tokens=100))
    async def agent(run: limpet.Run) -> str:
        return await run.step(think)

    async with testing.app(agent) as app:
        with pytest.raises(limpet.RunFailed, match="max_llm_tokens"):
            await app.run(agent)
        assert len(app.calls(think)) == 2
