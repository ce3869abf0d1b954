"""Calls between agents: contracts checked on both sides, context that is passed, handoffs, and calls by name."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

import limpet
from limpet import testing
from limpet.journal import load


class Mail(BaseModel):
    text: str


class Case(BaseModel):
    kind: str
    mail: Mail


async def test_a_handoff_ends_the_run_with_the_other_agents_result() -> None:
    """The run can do nothing afterwards, live and on replay."""
    seen: list[str] = []

    @limpet.tool(effect="none")
    async def note(what: str) -> None:
        seen.append(what)

    @limpet.agent()
    async def second(run: limpet.Run, mail: Mail) -> Case:
        await run.ask("go on?")
        return Case(kind="refund", mail=mail)

    @limpet.agent()
    async def first(run: limpet.Run, mail: Mail) -> Case:
        await run.step(note, "before")
        try:
            return await run.handoff(second, mail)
        finally:
            with pytest.raises((limpet.HandedOff, limpet.Suspended)):
                await run.step(note, "after")

    async with testing.app(first, second) as app:
        handle = await app.start(first, Mail(text="hello"), id="r1")
        await app.settle()
        assert (await handle.info()).waits_text == "run:r1.second-1"
        await app.crash()
        [request] = await app.inbox()
        assert request.run == "r1.second-1"
        await app.approve(request, by="ann")
        assert await handle.result() == Case(kind="refund", mail=Mail(text="hello"))
        kinds = [event.kind for event in await app.log("r1")]
        assert kinds.count("agent.called") == kinds.count("agent.returned") == 1
    assert seen == ["before"]


async def test_a_child_receives_only_the_named_facts_and_artifacts() -> None:
    """It also gets the session, the deadline and a part of the budget."""

    @limpet.agent()
    async def child(run: limpet.Run) -> dict[str, Any]:
        state = run.state
        assert await run.content(state.artifacts[0]) == b"a" * 20_000
        with pytest.raises(limpet.NotFound):
            await run.content("not mine")
        return {"facts": dict(state.facts), "artifacts": [each.summary for each in state.artifacts], "goal": state.goal}

    @limpet.agent(budget=limpet.Budget(max_llm_tokens=100), deadline="1d")
    async def parent(run: limpet.Run) -> dict[str, Any]:
        await run.patch(goal="mine", facts={"customer": "ann", "secret": "x"})
        page = await run.artifact("a" * 20_000, type="text", summary="a long page")
        await run.artifact(b"\x00\xff", type="bytes", summary="not for others")
        return await run.call(
            child,
            None,
            budget=limpet.Budget(max_llm_tokens=30),
            facts=["customer"],
            artifacts=[page.artifact_id],
        )

    async with testing.app(parent, child) as app:
        found = await app.run(parent, id="r1", session="s1")
        assert found == {"facts": {"customer": "ann"}, "artifacts": ["a long page"], "goal": ""}
        created = (await app.log("r1.child-1"))[0].body
        assert created["session"] == "s1"
        assert created["initial"]["budget"]["max_llm_tokens"] == 30
        assert created["deadline"] == (await app.log("r1"))[0].body["deadline"]
        assert created["contract"] == child.contract_hash
        [_content] = created["artifacts"].values()
        called = next(event.body for event in await app.log("r1") if event.kind == "agent.called")
        assert (called["facts"], called["contract"]) == (["customer"], child.contract_hash)
        assert (await load(app.store, "r1.child-1")).working.known_facts[0].source == "run r1"


async def test_passing_an_unknown_fact_is_refused() -> None:
    """Before anything happens: a refused handoff did not take place."""

    @limpet.agent()
    async def child(run: limpet.Run) -> str:
        return run.id

    @limpet.agent()
    async def parent(run: limpet.Run) -> str:
        with pytest.raises(limpet.ContractError, match="no customer"):
            await run.handoff(child, None, facts=["customer"])
        return await run.call(child, None)

    async with testing.app(parent, child) as app:
        assert await app.run(parent, id="r1") == "r1.child-1"


async def test_an_invalid_input_is_refused_by_the_sender() -> None:
    """ContractError lists the path of each fault, and no child run is created."""

    @limpet.agent()
    async def second(run: limpet.Run, case: Case) -> str:
        return case.kind

    @dataclass
    class Fake:
        kind: int
        mail: Any

    @limpet.agent()
    async def first(run: limpet.Run) -> list[str]:
        with pytest.raises(limpet.ContractError) as caught:
            await run.call("second", {"kind": 7, "mail": {"text": None}})
        return list(caught.value.faults)

    async with testing.app(first, second) as app:
        assert await app.run(first, id="r1") == ["kind: expected str, got int", "mail.text: expected str, got None"]
        assert [info.id for info in await app.runs()] == ["r1"]
        with pytest.raises(limpet.ContractError) as caught:
            await app.start("second", {"mail": {"text": 3}})
        assert caught.value.faults == ("kind: missing", "mail.text: expected str, got int")


async def test_an_input_is_checked_again_by_the_receiver() -> None:
    """A newer deployment expects another type: the run is rejected before its function is called."""
    entered: list[str] = []

    def defined(kind: type) -> limpet.Agent[Any, Any]:
        @limpet.agent(name="second")
        async def second(run: limpet.Run, n: kind) -> str:  # type: ignore[valid-type]
            entered.append(run.id)
            return "done"

        return second

    old = defined(int)

    @limpet.agent()
    async def first(run: limpet.Run) -> str:
        try:
            return await run.call(old, 1)
        except limpet.ContractError as error:
            return f"{error.what}: {error.faults}"

    async with testing.app(first) as app:  # no worker serves the other agent yet
        handle = await app.start(first, id="r1")
        await app.settle()
        app.deploy(first, defined(str))
        await app.crash()
        assert await handle.result() == "input: ('n: expected str, got int',)"
        [returned] = [event.body for event in await app.log("r1") if event.kind == "agent.returned"]
        assert returned["outcome"] == "rejected"
        assert (await app.store.get("r1.second-1")).status == "failed"
    assert entered == []


async def test_an_agent_of_another_process_is_called_by_name(tmp_path: Path) -> None:
    """Its contract is in the store. The call waits until a worker serves the agent."""
    url = f"sqlite:///{tmp_path}/x.db"

    @limpet.agent(version="3", budget=limpet.Budget(max_steps=4))
    async def check(run: limpet.Run, mail: Mail) -> Case:
        return Case(kind="checked", mail=mail)

    @limpet.agent()
    async def ask(run: limpet.Run) -> Any:
        return await run.call("check", {"text": "hello"})

    async with limpet.open(url, agents=[check]):
        pass
    async with limpet.open(url, agents=[ask]) as here:
        handle = await here.start(ask, id="r1")
        with pytest.raises(limpet.NotDone):
            await handle.result(timeout="300ms")
        info = await (await here.get("r1.check-1")).info()
        assert (info.status, info.waits_text) == ("pending", "worker:check 3")
        async with limpet.open(url, agents=[check]):
            assert await handle.result(timeout="10s") == {"kind": "checked", "mail": {"text": "hello"}}
        assert {each.name for each in await here.agents()} == {"check", "ask"}
        with pytest.raises(limpet.NotFound):
            await here.start("nobody", {})
    async with limpet.open(url) as nothing:
        by_name = await nothing.start("check", {"text": "later"}, id="r2")
        created = (await nothing.log("r2"))[0].body
        assert (created["agent_version"], created["initial"]["budget"]["max_steps"]) == ("3", 4)
        assert (await by_name.info()).status == "pending"


async def test_a_failed_child_reports_its_error_step_and_traceback() -> None:
    """An exceeded deadline is reported as such."""

    @limpet.tool(effect="none")
    async def look() -> None:
        raise TimeoutError("no answer")

    @limpet.agent()
    async def child(run: limpet.Run, how: str) -> None:
        if how == "sleep":
            await run.sleep("10d")
        await run.step(look)

    @limpet.agent()
    async def parent(run: limpet.Run) -> list[Any]:
        found: list[Any] = []
        for how in ("fail", "sleep"):
            try:
                await run.call(child, how, deadline="1h" if how == "sleep" else None)
            except limpet.AgentFailed as error:
                where = "look" in error.traceback
                found.append([error.outcome, error.step, error.was(OSError), error.was("DeadlineExceeded"), where])
        return found

    async with testing.app(parent, child) as app:
        handle = await app.start(parent)
        await app.advance("2h")
        assert await handle.result() == [["failed", 1, True, False, True], ["expired", None, False, True, False]]


async def test_a_cancel_reaches_all_descendants() -> None:
    """Through calls and handoffs, at every depth."""

    @limpet.agent()
    async def leaf(run: limpet.Run) -> None:
        await run.sleep("1d")

    @limpet.agent()
    async def middle(run: limpet.Run) -> None:
        await run.handoff(leaf, None)

    @limpet.agent()
    async def top(run: limpet.Run) -> None:
        await asyncio.gather(run.call(middle, None), run.call(leaf, None))

    async with testing.app(top, middle, leaf) as app:
        await app.start(top, id="r1")
        await app.settle()
        await app.cancel("r1", reason="enough")
        await app.settle()
        statuses = {info.id: info.status for info in await app.runs()}
        assert len(statuses) == 4
        assert set(statuses.values()) == {"cancelled"}


async def test_a_child_whose_call_the_code_cancels_is_cancelled() -> None:
    """The loser of a race must not run on."""

    @limpet.agent()
    async def slow(run: limpet.Run) -> str:
        await run.sleep("1h")
        return "slow"

    @limpet.agent()
    async def racer(run: limpet.Run) -> str:
        tasks = [asyncio.ensure_future(run.call(slow, None)), asyncio.ensure_future(run.sleep("1m"))]
        _, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await run.ask("go on?")
        return "fast"

    async with testing.app(racer, slow) as app:
        handle = await app.start(racer, id="r1")
        await app.advance("2m")
        await app.crash()
        await app.approve((await app.inbox())[0], by="ann")
        assert await handle.result() == "fast"
        assert (await app.store.get("r1.slow-1")).status == "cancelled"


class Aliased(BaseModel):
    """A model whose field has an alias."""

    order_id: str = Field(alias="orderId")


async def test_a_run_continues_after_a_handoff_to_an_unknown_agent() -> None:

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        with pytest.raises(limpet.NotFound):
            await run.handoff("nobody", {})
        return run.uuid()[:0] + "went on"

    async with testing.app(agent) as app:
        assert await app.run(agent) == "went on"


async def test_an_unrelated_run_with_a_childs_id_is_not_adopted() -> None:
    """It has the id, agent and input of the child, but was not called by this run."""

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


async def test_exclusive_children_share_the_slot_of_their_parent() -> None:
    """An exclusive agent that calls another one in the same session does not deadlock."""

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


async def test_a_child_of_a_run_with_a_long_id_gets_a_short_id() -> None:
    """It contains a digest. Names that cannot be part of an id are refused when they are defined."""

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


async def test_a_model_with_aliases_is_accepted_as_input() -> None:
    """By field names and by aliases."""

    @limpet.agent()
    async def agent(run: limpet.Run, order: Aliased) -> str:
        return order.order_id

    async with testing.app(agent) as app:
        assert await app.run(agent, Aliased(orderId="o-1")) == "o-1"
        for given in ({"orderId": "o-2"}, {"order_id": "o-2"}):
            assert await (await app.start("agent", given)).result() == "o-2"


@limpet.tool(effect="none", name="handoffs_read")
async def handoffs_read(number: int) -> int:
    """Read a number."""
    return number


@pytest.mark.parametrize("strategy", ["every_step", "on_state_change"])
async def test_a_caller_is_charged_for_steps_that_were_stored_with_the_end_of_the_called_run(strategy: Any) -> None:
    """Under `on_state_change`, reads are not stored one by one; the answer of an LLM agent never is."""

    @limpet.agent(name="handoffs_reader", checkpoint=strategy)
    async def reader(run: limpet.Run, _: None) -> int:
        return sum([await run.step(handoffs_read, number) for number in range(3)])

    talker = limpet.llm_agent("handoffs_talker", model=testing.ScriptedModel("done"), instructions="Talk.")

    @limpet.agent(name="handoffs_caller", budget=limpet.Budget(max_steps=50))
    async def caller(run: limpet.Run) -> None:
        await run.call(reader, None)
        await run.call(talker, "go")
        await run.ask("go on?")

    async with testing.app(caller, reader, talker) as app:
        await app.start(caller, id="r")
        await app.settle()
        spent = (await app.state("r")).whole.spent
        assert spent.steps == 4
        assert spent.tokens > 0
