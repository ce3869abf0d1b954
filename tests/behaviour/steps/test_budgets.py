"""Budgets: the maximum of a call is reserved before it starts and settled afterwards."""

import asyncio
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.journal import load


async def test_concurrent_calls_cannot_exceed_the_budget_together() -> None:
    """Each call fits the budget alone; the second is refused while the first is running."""

    @limpet.tool(effect="idempotent", max_tokens=60)
    async def think(n: int) -> int:
        await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop
        limpet.current().spent(tokens=10)
        return n

    @limpet.agent(budget=limpet.Budget(max_llm_tokens=100))
    async def agent(run: limpet.Run) -> list[str]:
        found = await asyncio.gather(run.step(think, 1), run.step(think, 2), return_exceptions=True)
        names = [type(each).__name__ for each in found]
        return [*names, str(await run.step(think, 3))]  # only ten tokens were used, so the third call fits

    async with testing.app(agent) as app:
        assert await app.run(agent, id="r1") == ["int", "BudgetExceeded", "3"]
        reserved = [event.body for event in await app.log("r1") if event.kind == "budget.reserved"]
        assert [(body["number"], body["tokens"]) for body in reserved] == [(1, 60), (3, 60)]
        assert (await load(app.store, "r1")).spent.tokens == 20
        assert len(app.calls(think)) == 2


@pytest.mark.parametrize("limit", [1.0, 1.5])
async def test_a_crash_counts_the_reserved_budget_as_spent(limit: float) -> None:
    """It is unknown what the interrupted call has used, so its maximum is counted, which may exhaust the budget."""

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


async def test_a_retry_is_refused_if_the_budget_does_not_cover_it() -> None:
    """Failed attempts spend the budget, too."""

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


async def test_a_budget_extension_must_be_a_valid_number() -> None:

    @limpet.tool(effect="none")
    async def read() -> None: ...

    @limpet.agent(budget=limpet.Budget(max_steps=1, exhausted="ask"))
    async def agent(run: limpet.Run) -> str:
        await run.step(read)
        await run.step(read)
        return "done"

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        [request] = await app.inbox()
        for wrong in ({"max_steps": "many"}, {"max_steps": -1}, {"max_steps": None}, {"more": 1}, {}):
            with pytest.raises(limpet.InvalidAnswer):
                await app.answer(request, wrong, by="ann")
        await app.answer(request, {"max_steps": 5}, by="ann")
        assert await handle.result() == "done"


async def test_concurrent_children_share_the_budget() -> None:
    """The second child gets what the first has left."""

    @limpet.tool(effect="none")
    async def read() -> None: ...

    @limpet.agent()
    async def child(run: limpet.Run, n: int) -> int:
        for done in range(n):
            try:
                await run.step(read)
            except limpet.BudgetExceeded:
                return done
        return n

    @limpet.agent(budget=limpet.Budget(max_steps=10))
    async def agent(run: limpet.Run) -> list[int]:
        small = limpet.Budget(max_steps=8)
        return list(await asyncio.gather(*(run.call(child, 8, budget=small) for _ in range(2))))

    async with testing.app(agent, child) as app:
        assert await app.run(agent) == [8, 2]


async def test_a_refused_budget_request_stays_refused_on_replay() -> None:
    """A later extension for another step does not change the replayed refusal."""

    @limpet.tool(effect="once")
    async def mail(n: int) -> int:
        return n

    @limpet.agent(budget=limpet.Budget(max_steps=1, exhausted="ask"))
    async def agent(run: limpet.Run) -> list[Any]:
        told: list[Any] = []
        for n in range(3):
            try:
                told.append(await run.step(mail, n))
            except limpet.BudgetExceeded as error:
                told.append(f"{error.limit} {error.allowed:g} {error.wanted:g}")
        await run.ask("go on?")
        return told

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        await app.reject((await app.inbox())[0], by="ann", because="no")
        await app.settle()
        await app.answer((await app.inbox())[0], {"max_steps": 9}, by="ann")
        await app.settle()
        await app.crash()
        await app.approve((await app.inbox())[0], by="ann")
        assert await handle.result() == [0, "max_steps 1 2", 2]
        assert [call["n"] for call in app.calls(mail)] == [0, 2]


async def test_a_step_refused_by_the_budget_is_no_divergence() -> None:
    """The refused step is not in the log; the steps after it are found on replay."""

    @limpet.tool(effect="idempotent", max_tokens=60)
    async def think() -> None:
        limpet.current().spent(tokens=60)

    @limpet.tool(effect="once")
    async def mail() -> str:
        return "sent"

    @limpet.agent(budget=limpet.Budget(max_llm_tokens=100))
    async def agent(run: limpet.Run) -> str:
        await run.step(think)
        with pytest.raises(limpet.BudgetExceeded):
            await run.step(think)
        sent = await run.step(mail)
        await run.ask("go on?")
        return sent

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        await app.crash()
        await app.approve((await app.inbox())[0], by="ann")
        assert await handle.result() == "sent"
        assert (len(app.calls(think)), len(app.calls(mail))) == (1, 1)


RISKY = limpet.Approvals("external_action", to="finance")


async def test_a_reserved_budget_is_not_available_to_children_or_approved_steps() -> None:
    """Other steps run while a step waits for approval. A child gets only the budget that is not reserved."""

    @limpet.tool(effect="idempotent", max_cost=60, name="spend")
    async def spend(n: int) -> int:
        limpet.current().spent(cost=60)
        return n

    @limpet.tool(effect="idempotent", max_cost=60, risk="external_action", name="risky")
    async def risky(n: int) -> int:
        return n

    @limpet.agent()
    async def child(run: limpet.Run) -> int:
        return await run.step(spend, 2)

    @limpet.agent(budget=limpet.Budget(max_cost=100), approvals=RISKY)
    async def agent(run: limpet.Run, how: str) -> list[str]:
        second = run.call(child, None) if how == "child" else run.step(risky, 2)
        found = await asyncio.gather(run.step(spend, 1), second, return_exceptions=True)
        return [type(each).__name__ for each in found]

    async with testing.app(agent, child) as app:
        assert await app.run(agent, "child") == ["int", "AgentFailed"]
        handle = await app.start(agent, "approval")
        await app.settle()
        for request in await app.inbox():
            await app.approve(request, by="ann")
        assert await handle.result() == ["int", "BudgetExceeded"]
        assert app.calls(risky) == []


async def test_a_resumed_child_is_charged_once() -> None:
    """The second time, the child reports only what it used since the first."""

    @limpet.tool(effect="none")
    async def work(n: int) -> int:
        limpet.current().spent(cost=n)
        return n

    @limpet.agent()
    async def child(run: limpet.Run) -> int:
        await run.step(work, 3)
        return await run.step(work, 2)

    @limpet.agent(budget=limpet.Budget(max_cost=100))
    async def parent(run: limpet.Run) -> int:
        return await run.call(child, None)

    async with testing.app(parent, child) as app:
        app.stub(work, 3, ValueError("once"), 2)
        handle = await app.start(parent, id="r1")
        await app.settle()
        await app.resume("r1")
        assert await handle.result() == 2
        spent = [(await load(app.store, run)).spent.steps for run in ("r1", "r1.child-1")]
        assert spent == [2, 2]


async def test_a_budget_refusal_is_recorded_and_replayed() -> None:
    """The child has released its budget by then, but the replayed refusal is the same."""

    @limpet.tool(effect="none", max_cost=60)
    async def think() -> int:
        return 7

    @limpet.agent(budget=limpet.Budget(max_cost=90))
    async def child(run: limpet.Run) -> bool:
        return await run.ask("child?")

    @limpet.agent(budget=limpet.Budget(max_cost=100))
    async def parent(run: limpet.Run) -> str:
        calling = asyncio.ensure_future(run.call(child, None))
        while not await app.runs(agent="child"):
            await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop
        try:
            found = str(await run.step(think))
        except limpet.BudgetExceeded as error:
            found = f"{error.limit} {error.wanted:g}"
        await calling
        await run.ask("go on?")
        return found

    async with testing.app(parent, child) as app:
        handle = await app.start(parent)
        for _ in range(2):
            await app.settle()
            await app.crash()
            await app.approve((await app.inbox())[0], by="ann")
        assert await handle.result() == "max_cost 150"
        assert app.calls(think) == []


async def test_a_retry_after_a_crash_must_fit_the_budget() -> None:
    """The reservation of the interrupted attempt counts as spent."""

    @limpet.tool(effect="idempotent", max_cost=60)
    async def pay() -> int:
        return 1

    @limpet.agent(budget=limpet.Budget(max_cost=100))
    async def agent(run: limpet.Run) -> int:
        return await run.step(pay)

    async with testing.app(agent) as app:
        app.crash_at("before", "step.completed")
        with pytest.raises(limpet.RunFailed, match="max_cost"):
            await app.run(agent)
        assert len(app.calls(pay)) == 1
