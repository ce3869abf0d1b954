"""Extend budgets and deadlines: also after a run has failed on one of them, and only forward."""

from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.clock import SECOND, SystemClock


@pytest.fixture
def act() -> Any:
    """Return a tool with an effect."""

    @limpet.tool(effect="once")
    async def act(what: str) -> str:
        return what

    return act


@limpet.agent(name="extend_asking", deadline="1h")
async def asking(run: limpet.Run) -> bool:
    return await run.ask("Really?")


async def kinds(app: limpet.App, run: str) -> list[str]:
    return [event.kind for event in await app.log(run)]


async def test_a_run_that_failed_on_its_budget_goes_on_after_extend_and_resume(act: Any) -> None:
    """Without the extension, a resume fails again at the same step; no step is repeated."""

    @limpet.agent(budget=limpet.Budget(max_steps=2))
    async def agent(run: limpet.Run) -> list[str]:
        return [await run.step(act, str(number)) for number in range(4)]

    async with testing.app(agent) as app:
        handle = await app.start(agent, id="r")
        with pytest.raises(limpet.RunFailed, match="Budget exceeded") as failed:
            await handle.result()
        assert "limpet extend r --budget max_steps=" in failed.value.hint
        await app.resume("r")
        with pytest.raises(limpet.RunFailed, match="Budget exceeded"):
            await handle.result()
        await app.extend("r", budget=limpet.Budget(max_steps=4), by="ann", because="it is long")
        assert (await handle.info()).status == "failed"
        await app.resume("r")
        assert await handle.result() == ["0", "1", "2", "3"]
        assert [call["what"] for call in app.calls(act)] == ["0", "1", "2", "3"]
        await app.verify("r")


async def test_a_run_that_failed_on_its_deadline_goes_on_after_extend_and_resume(act: Any) -> None:
    """The deadline counts from the extension."""

    @limpet.agent(deadline="1h")
    async def agent(run: limpet.Run) -> str:
        await run.step(act, "first")
        await run.sleep("2h")
        return await run.step(act, "second")

    async with testing.app(agent) as app:
        handle = await app.start(agent, id="r")
        await app.advance("1h")
        with pytest.raises(limpet.RunFailed, match="passed its deadline") as failed:
            await handle.result()
        assert "limpet extend r --deadline" in failed.value.hint
        await app.resume("r")
        with pytest.raises(limpet.RunFailed, match="passed its deadline"):
            await handle.result()
        await app.extend("r", deadline="3h")
        await app.resume("r")
        await app.advance("1h")
        assert await handle.result() == "second"
        assert [call["what"] for call in app.calls(act)] == ["first", "second"]
        await app.verify("r")


async def test_a_refusal_that_the_code_caught_stands(act: Any) -> None:
    """After an extension, the resumed code takes the same way as before, up to the call that failed the run."""

    @limpet.agent(deadline="1h", budget=limpet.Budget(max_steps=2))
    async def agent(run: limpet.Run) -> list[str]:
        found = [await run.step(act, "a"), await run.step(act, "b")]
        try:
            found.append(await run.step(act, "caught"))
        except limpet.BudgetExceeded as error:
            found.append(f"over {error.allowed:g}")
        await run.patch(facts={"found": found})
        found.append(await run.step(act, "c"))
        try:
            await run.sleep("2h")
        except limpet.DeadlineExceeded as late:
            found.append(f"late {late.deadline}")
        try:
            await run.step(act, "late")
        except limpet.DeadlineExceeded as late:
            found.append(f"late {late.deadline}")
        await run.patch(facts={"found": found})
        found.append(await run.step(act, "d"))
        return found

    async with testing.app(agent) as app:
        handle = await app.start(agent, id="r")
        with pytest.raises(limpet.RunFailed, match="Budget exceeded"):
            await handle.result()
        await app.extend("r", budget={"max_steps": 10})
        await app.resume("r")
        await app.advance("1h")
        with pytest.raises(limpet.RunFailed, match="passed its deadline"):
            await handle.result()
        await app.crash()
        await app.extend("r", deadline="1h")
        await app.resume("r")
        found = await handle.result()
        assert found[:4] == ["a", "b", "over 2", "c"]
        assert found[6:] == ["d"]
        assert found[4] == found[5]
        assert found[4].startswith("late ")
        assert [call["what"] for call in app.calls(act)] == ["a", "b", "c", "d"]
        await app.verify("r")


async def test_a_deadline_that_is_extended_while_the_run_waits_applies_at_once() -> None:
    """A request can be answered after the old deadline."""

    async with testing.app(asking) as app:
        handle = await app.start(asking, id="r")
        await app.settle()
        [request] = await app.inbox()
        assert request.expires is not None
        await app.advance("30m")
        await app.extend("r", deadline="2h")
        await app.advance("1h")
        [later] = await app.inbox()
        assert later.expires is not None
        assert (later.expires - request.expires).total_seconds() == 90 * 60
        await app.approve(later, by="ann")
        assert await handle.result() is True
        await app.verify("r")


async def test_a_request_without_an_answer_expires_at_the_extended_deadline() -> None:
    async with testing.app(asking) as app:
        handle = await app.start(asking, id="r")
        await app.settle()
        [request] = await app.inbox()
        await app.extend("r", deadline="2h")
        await app.advance("2h")
        with pytest.raises(limpet.RunFailed, match="expired"):
            await handle.result()
        with pytest.raises((limpet.Expired, limpet.AlreadyAnswered)):
            await app.approve(request, by="ann")


async def test_a_running_tool_gets_the_extended_deadline(tmp_path: Path) -> None:
    """The timer of the old deadline does not cancel it."""

    @limpet.tool(effect="once", name="extend_slow")
    async def slow() -> str:
        await SystemClock().sleep(4 * SECOND)
        return "done"

    @limpet.agent(name="extend_hurried", deadline="3s")
    async def hurried(run: limpet.Run) -> str:
        return await run.step(slow)

    async with limpet.open(f"sqlite:///{tmp_path}/limpet.db", agents=[hurried]) as app:
        handle = await app.start(hurried, id="r")
        await app.extend("r", deadline="1h")
        assert await handle.result() == "done"


async def test_an_extension_reaches_called_runs_that_have_the_same_deadline(act: Any) -> None:
    """All are extended in one append; a called run with an earlier deadline of its own keeps it."""

    @limpet.agent()
    async def child(run: limpet.Run) -> str:
        await run.sleep("90m")
        return await run.step(act, "child")

    @limpet.agent(deadline="10m")
    async def hasty(run: limpet.Run) -> str:
        await run.sleep("20m")
        return "never"

    @limpet.agent(deadline="1h")
    async def parent(run: limpet.Run) -> str:
        try:
            await run.call(hasty, None)
        except limpet.AgentFailed as error:
            await run.patch(facts={"hasty": error.outcome})
        return await run.call(child, None)

    async with testing.app(parent, child, hasty) as app:
        handle = await app.start(parent, id="p")
        await app.settle()
        await app.extend("p", deadline="3h", command_id="c-1")
        await app.extend("p", deadline="3h", command_id="c-1")  # Repeated: no further effect.
        await app.advance("15m")
        await app.extend("p", deadline="4h")
        await app.advance("2h")
        assert await handle.result() == "child"
        assert (await app.state("p")).facts["hasty"] == "expired"
        extended = [event for event in await app.log("p") if event.kind == "deadline.extended"]
        assert len(extended) == 2
        assert "deadline.extended" not in await kinds(app, "p.hasty-1")
        assert "deadline.extended" in await kinds(app, "p.child-2")


async def test_a_caller_and_its_called_run_that_failed_on_one_deadline_go_on_together(act: Any) -> None:
    """One extension and one resume of the caller are enough."""

    @limpet.agent()
    async def child(run: limpet.Run) -> str:
        await run.sleep("2h")
        return await run.step(act, "child")

    @limpet.agent(deadline="1h")
    async def parent(run: limpet.Run) -> str:
        return await run.call(child, None)

    async with testing.app(parent, child) as app:
        handle = await app.start(parent, id="p")
        await app.advance("1h")
        with pytest.raises(limpet.RunFailed):
            await handle.result()
        assert (await app.info("p.child-1")).status == "failed"
        await app.extend("p", deadline="3h")
        await app.resume("p")
        await app.advance("2h")
        assert await handle.result() == "child"
        assert len(app.calls(act)) == 1


async def test_extend_answers_an_open_request_for_a_larger_budget(act: Any) -> None:
    @limpet.agent(budget=limpet.Budget(max_steps=1, exhausted="ask"))
    async def agent(run: limpet.Run) -> list[str]:
        return [await run.step(act, "a"), await run.step(act, "b")]

    async with testing.app(agent) as app:
        handle = await app.start(agent, id="r")
        await app.settle()
        [request] = await app.inbox()
        assert request.kind == "budget"
        for _ in range(2):
            await app.extend("r", budget={"max_steps": 5}, by="ann", command_id="c-1")
        assert await handle.result() == ["a", "b"]
        assert await app.inbox() == []
        assert (await kinds(app, "r")).count("budget.extended") == 1


@pytest.mark.parametrize(
    ("given", "path", "reason"),
    [
        ({"budget": {"max_steps": 2}}, "budget.max_steps", "must be more than 2"),
        ({"budget": {"max_cost": 2}}, "budget.max_cost", "has no such limit"),
        ({"budget": {"max_step": 2}}, "budget", "unknown field"),
        ({"budget": {"max_steps": "many"}}, "budget.max_steps", "int"),
        ({"deadline": "30m"}, "deadline", "must be later than"),
        ({}, "budget", "pass budget="),
    ],
)
async def test_an_extension_that_does_not_extend_is_refused(
    given: dict[str, Any], path: str, reason: str, act: Any
) -> None:
    """Nothing is written."""

    @limpet.agent(deadline="1h", budget=limpet.Budget(max_steps=2))
    async def agent(run: limpet.Run) -> str:
        return await run.receive("go", str)

    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        await app.settle()
        before = len(await app.log("r"))
        with pytest.raises(limpet.InvalidArgument, match=reason) as refused:
            await app.extend("r", **given)
        assert refused.value.path == path
        assert len(await app.log("r")) == before


async def test_a_run_without_a_deadline_or_that_has_ended_cannot_be_extended(act: Any) -> None:
    """A failed run whose effects were undone cannot be resumed, so it cannot be extended either."""

    async def undo(result: str | None, what: str) -> None: ...

    act.compensate(undo)

    @limpet.agent(budget=limpet.Budget(max_steps=1))
    async def agent(run: limpet.Run, what: str) -> str:
        await run.step(act, what)
        return what if what == "fine" else await run.step(act, "more")

    async with testing.app(agent) as app:
        await app.run(agent, "fine", id="fine")
        await (await app.start(agent, "bad", id="bad")).info()
        await app.settle()
        with pytest.raises(limpet.InvalidArgument, match="no deadline"):
            await app.extend("bad", deadline="1h")
        for run in ("fine", "bad"):
            with pytest.raises(limpet.WrongState, match="extending the budget"):
                await app.extend(run, budget={"max_steps": 9})


async def test_a_fork_may_change_both(act: Any) -> None:
    """The limits that are not given stay; the original run keeps its own."""

    @limpet.agent(deadline="1h", budget=limpet.Budget(max_steps=2, max_cost=5))
    async def agent(run: limpet.Run) -> list[str]:
        return [await run.step(act, str(number)) for number in range(4)]

    async with testing.app(agent) as app:
        handle = await app.start(agent, id="r")
        with pytest.raises(limpet.RunFailed):
            await handle.result()
        fork = await app.fork("r", at=3, effects="live", budget={"max_steps": 9}, deadline="2d", id="f")
        assert await fork.result() == ["0", "1", "2", "3"]
        budget = (await app.state("f")).whole.working.budget
        assert budget is not None
        assert (budget.max_steps, budget.max_cost) == (9, 5)
        was, now = (await app.state("r")).whole, (await app.state("f")).whole
        assert was.deadline is not None
        assert now.deadline is not None
        assert now.deadline - was.deadline == 47 * 3600 * 10**6


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["budget.extended", "deadline.extended", "resume.requested", "step.started"])
async def test_a_worker_killed_around_an_extension_loses_and_doubles_nothing(when: Any, kind: str, act: Any) -> None:
    @limpet.agent(deadline="1h", budget=limpet.Budget(max_steps=1))
    async def agent(run: limpet.Run) -> list[str]:
        return [await run.step(act, "a"), await run.step(act, "b")]

    async with testing.app(agent) as app:
        handle = await app.start(agent, id="r")
        with pytest.raises(limpet.RunFailed):
            await handle.result()
        app.crash_at(when, kind)
        await app.extend("r", budget={"max_steps": 5}, deadline="3h", command_id="c-1")
        await app.resume("r", command_id="c-2")
        if kind == "step.started" and when == "after":
            await app.settle()
            [asked] = await app.inbox()  # The tool declares effect="once": a person decides.
            await app.answer(asked, "not_applied", by="ann")
        assert await handle.result() == ["a", "b"]
        assert (await kinds(app, "r")).count("budget.extended") == 1
        assert (await kinds(app, "r")).count("deadline.extended") == 1
        assert [call["what"] for call in app.calls(act)] == ["a", "b"]
        assert app.crashes == 1
        await app.verify("r")
