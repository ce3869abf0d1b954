"""What a reviewer once found about handoffs, budgets and undoing: each is found again here if it comes back."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

import limpet
from limpet import testing
from limpet.engine.definitions.contracts import save_contracts
from limpet.journal import load

RISKY = limpet.Approvals("external_action", to="finance")


async def test_a_handoff_to_nobody_did_not_take_place() -> None:
    """The run goes on."""

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        with pytest.raises(limpet.NotFound):
            await run.handoff("nobody", {})
        return run.uuid()[:0] + "went on"

    async with testing.app(agent) as app:
        assert await app.run(agent) == "went on"


async def test_a_resume_escalates_anew() -> None:
    """What was said to an earlier failure is not taken for an answer to this one."""

    @limpet.tool(effect="none")
    async def look() -> int:
        raise ValueError("odd")

    @limpet.agent(escalate=limpet.Escalate(ValueError))
    async def agent(run: limpet.Run) -> int:
        return await run.step(look)

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        for said in ("fail", {"result": 7}):
            await app.settle()
            [request] = await app.inbox()
            await app.answer(request, said, by="ann")
            await app.settle()
            if said == "fail":
                await app.resume(handle.id)
        assert await handle.result() == 7


async def test_an_approved_transaction_that_is_retried_uses_its_approval_once(tmp_path: Path) -> None:
    """The first attempt has used it."""
    tries: list[int] = []

    @limpet.tool(effect="transaction", risk="external_action", retry=limpet.Retry(2, first=0))
    def write() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("not yet")
        return "written"

    @limpet.agent(approvals=RISKY)
    async def agent(run: limpet.Run) -> str:
        return await run.step(write)

    async with limpet.open(f"sqlite:///{tmp_path}/x.db", agents=[agent]) as app:
        handle = await app.start(agent)
        while not (inbox := await app.inbox()):
            await asyncio.sleep(0.01)  # noqa: TID251 - a real clock
        await app.approve(inbox[0], by="ann")
        assert await handle.result(timeout="10s") == "written"
        assert [event.kind for event in await app.log(handle.id)].count("run.claimed") <= 2
    assert len(tries) == 2


async def test_a_result_by_name_is_the_same_on_replay_whatever_the_contract_is_now() -> None:
    """It was checked when it came."""

    def defined(kind: type) -> limpet.Agent[Any, Any]:
        @limpet.agent(name="other")
        async def other(run: limpet.Run) -> kind:  # type: ignore[valid-type]
            return kind(1)  # type: ignore[no-any-return]

        return other

    @limpet.agent()
    async def agent(run: limpet.Run) -> Any:
        found = await run.call("other", None)
        await run.ask("go on?")
        return found

    async with testing.app(agent, defined(int)) as app:
        handle = await app.start(agent)
        await app.settle()
        await save_contracts(app.store, [defined(str)], served=True)
        await app.crash()
        await app.approve((await app.inbox())[0], by="ann")
        assert await handle.result() == 1


async def test_by_name_means_the_version_that_is_served_now(tmp_path: Path) -> None:
    """Also after a rollback; an app that only looks changes nothing."""
    url = f"sqlite:///{tmp_path}/x.db"

    def defined(version: str) -> limpet.Agent[Any, Any]:
        @limpet.agent(name="other", version=version)
        async def other(run: limpet.Run) -> str:
            return version

        return other

    for version in ("1", "2", "1"):
        async with limpet.open(url, agents=[defined(version)]) as app:
            assert await (await app.start("other")).result(timeout="10s") == version
    async with limpet.open(url, agents=[defined("3")], worker=False) as app:
        assert [row.version for row in await app.store.contracts("other")][-1] == "1"


async def test_what_was_put_aside_for_others_cannot_be_lent_or_granted() -> None:
    """While a step waits for its approval others go on; and a child gets what is really left."""

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


async def test_a_child_that_returns_twice_is_charged_once() -> None:
    """The second time it tells what it used since the first."""

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


async def test_a_refused_budget_is_recorded() -> None:
    """Though a child gives back what it had, the code is told the same again."""

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


async def test_a_run_of_somebody_else_is_not_waited_for() -> None:
    """It has the id that a child would get, the same agent and the same input; but it was not called from here."""

    @limpet.agent()
    async def child(run: limpet.Run) -> int:
        return 1

    @limpet.agent()
    async def parent(run: limpet.Run) -> int:
        return await run.call(child, None)

    async with testing.app(parent, child) as app:
        await app.run(child, id="r1.child-1")
        assert await app.run(parent, id="r1") == 1
        assert [each.body["run"] for each in await app.log("r1") if each.kind == "agent.called"] == ["r1.child-2"]


async def test_a_death_does_not_pay_twice() -> None:
    """What was put aside is gone with it, and the next attempt must be afforded."""

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


async def test_a_person_who_says_skip_is_heard() -> None:
    """Undoing is not tried once more before."""
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


async def test_a_policy_that_comes_back_asks_anew() -> None:
    """Who was asked under another one meanwhile is no reason to stop."""

    @limpet.tool(effect="idempotent", risk="external_action")
    async def pay() -> str:
        return "paid"

    def defined(to: str) -> limpet.Agent[None, str]:
        @limpet.agent(name="agent", approvals=limpet.Approvals("external_action", to=to))
        async def agent(run: limpet.Run) -> str:
            return await run.step(pay)

        return agent

    async with testing.app(defined("a")) as app:
        handle = await app.start("agent")
        for to in ("b", "a"):
            await app.settle()
            app.deploy(defined(to))
            await app.crash()
            await app.pause(handle.id)
            await app.resume(handle.id)
            await app.settle()
            [request] = await app.inbox()
            assert request.to == (to,)
        await app.approve(request, by="ann")
        assert await handle.result() == "paid"


async def test_edited_arguments_are_checked_where_the_tool_is_not(tmp_path: Path) -> None:
    """By the schema that came with the request."""

    @limpet.tool(effect="idempotent", risk="external_action", name="elsewhere")
    async def pay(cents: int) -> int:
        return cents

    @limpet.agent(approvals=RISKY)
    async def agent(run: limpet.Run) -> int:
        return await run.step(pay, 1)

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        [request] = await app.inbox()
        for wrong in ({"cents": "many"}, {"dollars": 1}):
            with pytest.raises(limpet.InvalidAnswer):
                await app.approve(limpet_elsewhere(request), by="ann", args=wrong)
        await app.approve(request, by="ann", args={"cents": 5})
        assert await handle.result() == 5


def limpet_elsewhere(request: limpet.Request) -> limpet.Request:
    """The same request, in a process that does not have the tool."""
    from limpet.engine.definitions import tools  # noqa: PLC0415

    tools._tools.pop("elsewhere", None)
    return request


async def test_one_slot_is_enough_for_a_run_and_those_it_waits_for() -> None:
    """An exclusive agent that calls another one in the same session does not wait for itself."""

    @limpet.agent(exclusive="session")
    async def leaf(run: limpet.Run) -> str:
        return "done"

    @limpet.agent(exclusive="session")
    async def middle(run: limpet.Run) -> str:
        return await run.handoff(leaf, None)

    @limpet.agent(exclusive="session")
    async def top(run: limpet.Run) -> str:
        return await run.call(middle, None)

    async with testing.app(top, middle, leaf) as app:
        assert await app.run(top, session="s1") == "done"


async def test_long_ids_and_odd_names() -> None:
    """A child of a run with a long id is named after a digest; a name that cannot name runs is refused at once."""

    @limpet.agent()
    async def child(run: limpet.Run) -> str:
        return run.id

    @limpet.agent()
    async def parent(run: limpet.Run) -> str:
        return await run.call(child, None)

    async with testing.app(parent, child) as app:
        found = await app.run(parent, id="r" * 200)
        assert len(found) <= 200
        assert found.endswith(".child-1")
    for name in ("my agent", "a/b", "ä", "x" * 101):
        with pytest.raises(limpet.DefinitionError):
            limpet.agent(name=name)(child.fn)
    with pytest.raises(limpet.DefinitionError):
        limpet.open("memory:", notify={"c" * 51: lambda _: None})


async def test_a_channel_may_return_what_is_to_be_awaited() -> None:
    """A lambda over a coroutine, an object with an async call."""
    told: list[str] = []

    class Desk:
        async def __call__(self, request: limpet.Request) -> None:
            told.append(request.question)

    async def own(request: limpet.Request) -> None:
        told.append(request.question)

    @limpet.agent()
    async def agent(run: limpet.Run) -> bool:
        return await run.ask("well?")

    async with testing.app(agent) as app:
        app._settings.channels = {"desk": Desk(), "own": lambda request: own(request)}  # noqa: PLW0108
        await app.crash()
        await app.start(agent)
        await app.settle()
    assert told == ["well?", "well?"]


class Aliased(BaseModel):
    """Called otherwise outside."""

    order_id: str = Field(alias="orderId")


async def test_models_with_aliases_are_inputs_too() -> None:
    """By their own names, and by those that others use."""

    @limpet.agent()
    async def agent(run: limpet.Run, order: Aliased) -> str:
        return order.order_id

    async with testing.app(agent) as app:
        assert await app.run(agent, Aliased(orderId="o-1")) == "o-1"
        for given in ({"orderId": "o-2"}, {"order_id": "o-2"}):
            assert await (await app.start("agent", given)).result() == "o-2"
