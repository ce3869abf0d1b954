"""Replay and changed code: unchanged code sees the same results; changed code continues, or is refused before any
effect.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.engine.definitions.agents import Agent
from limpet.testing.app import TestApp


async def test_a_race_has_the_same_winner_on_replay() -> None:
    """Although both results are recorded, only the winner's is delivered first."""
    winners: list[str] = []

    @limpet.tool(effect="none")
    async def slow() -> str:
        for _ in range(30):
            await asyncio.sleep(0)  # noqa: TID251 - turns of the loop
        return "slow"

    @limpet.tool(effect="none")
    async def fast() -> str:
        return "fast"

    @limpet.agent()
    async def agent(run: limpet.Run) -> list[str]:
        tasks = [asyncio.ensure_future(run.step(slow)), asyncio.ensure_future(run.step(fast))]
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        winners.append(" ".join(task.result() for task in done))
        await asyncio.wait(rest)
        await run.ask("go on?")
        return [task.result() for task in tasks]

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        await app.crash()
        await app.approve((await app.inbox())[0], by="ann")
        assert await handle.result() == ["slow", "fast"]
    assert len(winners) >= 2
    assert set(winners) == {"fast"}


async def test_two_signals_received_together_are_delivered_one_by_one() -> None:
    """The first signal wins in every execution."""
    winners: list[int] = []

    @limpet.agent()
    async def agent(run: limpet.Run) -> int:
        tasks = [asyncio.ensure_future(run.receive(name, int)) for name in ("b", "a")]
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        winners.append(sum(task.result() for task in done))
        await asyncio.wait(rest)
        await run.ask("go on?")
        return 0

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        await app.signal(handle.id, "a", 1)
        await app.signal(handle.id, "b", 2)
        await app.settle()
        await app.crash()
        await app.approve((await app.inbox())[0], by="ann")
        assert await handle.result() == 0
    assert set(winners) == {1}


async def test_concurrent_branches_without_scopes_are_refused() -> None:
    """Branches with several steps each, all in one scope, fail the run in its first execution."""

    @limpet.tool(effect="none")
    async def read(n: int) -> int:
        return n

    async def branch(run: limpet.Run, n: int, *, scoped: bool) -> int:
        if scoped:
            async with run.scope(f"branch-{n}"):
                return await run.step(read, n) + await run.step(read, n)
        return await run.step(read, n) + await run.step(read, n)

    @limpet.agent()
    async def agent(run: limpet.Run, scoped: bool) -> list[int]:
        return list(await asyncio.gather(*(branch(run, n, scoped=scoped) for n in range(3))))

    async with testing.app(agent) as app:
        assert await app.run(agent, True) == [0, 2, 4]
        with pytest.raises(limpet.RunFailed, match="WrongCall"):
            await app.run(agent, False)


# Changed code: the original, and edits that continue or are refused


@limpet.tool(effect="none")
async def edit_read(n: int = 0) -> int:
    return n


@limpet.tool(effect="once")
async def edit_act(what: str, how: str = "well") -> str:
    return what


@limpet.tool(effect="once")
async def edit_other(what: str) -> str:
    return what


Code = Callable[[limpet.Run], Awaitable[Any]]


async def original(run: limpet.Run) -> str:
    """One read and two effects, then a request, then another effect."""
    await run.step(edit_read, 1)
    await run.step(edit_act, "a")
    await run.step(edit_act, "b")
    await run.ask("go on?")
    return await run.step(edit_act, "c")


async def insert_a_read(run: limpet.Run) -> str:
    await run.step(edit_read, 1)
    await run.step(edit_read, 2)
    return await _rest(run)


async def insert_a_read_before_everything(run: limpet.Run) -> str:
    await run.step(edit_read.options(name="new"), 5)
    await run.step(edit_read, 1)
    return await _rest(run)


async def insert_an_effect(run: limpet.Run) -> str:
    await run.step(edit_read, 1)
    await run.step(edit_other, "new")
    return await _rest(run)


async def insert_an_effect_under_a_version(run: limpet.Run) -> str:
    await run.step(edit_read, 1)
    if run.version("with other"):
        await run.step(edit_other, "new")
    return await _rest(run)


async def insert_an_effect_after_what_was_done(run: limpet.Run) -> str:
    await run.step(edit_read, 1)
    await run.step(edit_act, "a")
    await run.step(edit_act, "b")
    await run.ask("go on?")
    await run.step(edit_other, "new")
    return await run.step(edit_act, "c")


async def insert_a_patch(run: limpet.Run) -> str:
    await run.patch(goal="new")
    await run.step(edit_read, 1)
    return await _rest(run)


async def remove_the_read(run: limpet.Run) -> str:
    return await _rest(run)


async def remove_an_effect(run: limpet.Run) -> str:
    await run.step(edit_read, 1)
    await run.step(edit_act, "a")
    await run.ask("go on?")
    return await run.step(edit_act, "c")


async def remove_what_comes_after(run: limpet.Run) -> str:
    await run.step(edit_read, 1)
    await run.step(edit_act, "a")
    await run.step(edit_act, "b")
    await run.ask("go on?")
    return "ended"


async def end_before_the_ask(run: limpet.Run) -> str:
    await run.step(edit_read, 1)
    await run.step(edit_act, "a")
    await run.step(edit_act, "b")
    return "ended"


async def rename_an_effect(run: limpet.Run) -> str:
    await run.step(edit_read, 1)
    await run.step(edit_act.options(name="renamed"), "a")
    await run.step(edit_act, "b")
    await run.ask("go on?")
    return await run.step(edit_act, "c")


async def rename_the_read(run: limpet.Run) -> str:
    await run.step(edit_read.options(name="renamed"), 1)
    return await _rest(run)


async def reorder_effects(run: limpet.Run) -> str:
    await run.step(edit_read, 1)
    await run.step(edit_act, "b")
    await run.step(edit_act, "a")
    await run.ask("go on?")
    return await run.step(edit_act, "c")


async def reorder_the_read(run: limpet.Run) -> str:
    await run.step(edit_act, "a")
    await run.step(edit_read, 1)
    await run.step(edit_act, "b")
    await run.ask("go on?")
    return await run.step(edit_act, "c")


async def change_an_argument_of_an_effect(run: limpet.Run) -> str:
    await run.step(edit_read, 1)
    await run.step(edit_act, "changed")
    await run.step(edit_act, "b")
    await run.ask("go on?")
    return await run.step(edit_act, "c")


async def change_an_argument_of_the_read(run: limpet.Run) -> str:
    await run.step(edit_read, 7)
    return await _rest(run)


async def change_an_argument_of_what_comes_after(run: limpet.Run) -> str:
    await run.step(edit_read, 1)
    await run.step(edit_act, "a")
    await run.step(edit_act, "b")
    await run.ask("go on?")
    return await run.step(edit_act, "changed")


async def say_a_default(run: limpet.Run) -> str:
    await run.step(edit_read, 1)
    await run.step(edit_act, "a", how="well")
    return await _rest(run, first=False)


async def another_tool_under_the_name(run: limpet.Run) -> str:
    await run.step(edit_read, 1)
    await run.step(edit_other.options(name="edit_act"), "a")
    return await _rest(run, first=False)


async def parallelise(run: limpet.Run) -> str:
    await run.step(edit_read, 1)
    await asyncio.gather(run.step(edit_act, "a"), run.step(edit_act, "b"))
    await run.ask("go on?")
    return await run.step(edit_act, "c")


async def wrap_in_a_scope(run: limpet.Run) -> str:
    await run.step(edit_read, 1)
    async with run.scope("new"):
        await run.step(edit_act, "a")
    return await _rest(run, first=False)


async def a_step_becomes_a_sleep(run: limpet.Run) -> str:
    await run.step(edit_read, 1)
    await run.step(edit_act, "a")
    await run.step(edit_act, "b")
    await run.sleep("1s")
    return "slept"


async def ask_something_else(run: limpet.Run) -> str:
    await run.step(edit_read, 1)
    await run.step(edit_act, "a")
    await run.step(edit_act, "b")
    await run.ask("in other words, go on?")
    return await run.step(edit_act, "c")


async def _rest(run: limpet.Run, *, first: bool = True) -> str:
    if first:
        await run.step(edit_act, "a")
    await run.step(edit_act, "b")
    await run.ask("go on?")
    return await run.step(edit_act, "c")


SAFE: dict[Code, str] = {
    original: "c",
    insert_a_read: "c",
    insert_a_read_before_everything: "c",
    insert_an_effect_under_a_version: "c",
    insert_an_effect_after_what_was_done: "c",
    insert_a_patch: "c",
    remove_the_read: "c",
    remove_what_comes_after: "ended",
    rename_the_read: "c",
    reorder_the_read: "c",
    change_an_argument_of_what_comes_after: "changed",
    say_a_default: "c",
    another_tool_under_the_name: "c",
    parallelise: "c",
    ask_something_else: "c",
}
REFUSED: tuple[Code, ...] = (
    insert_an_effect,
    remove_an_effect,
    end_before_the_ask,
    rename_an_effect,
    reorder_effects,
    change_an_argument_of_an_effect,
    change_an_argument_of_the_read,
    wrap_in_a_scope,
    a_step_becomes_a_sleep,
)


def agent_of(code: Code) -> Agent[None, Any]:
    async def edited(run: limpet.Run) -> Any:
        return await code(run)

    return limpet.agent(name="edited")(edited)


async def resume_with(app: TestApp, code: Code) -> limpet.Handle[Any]:
    """Resume a waiting run with other code after its process was killed."""
    handle = await app.start(agent_of(original))
    await app.settle()
    [request] = await app.inbox()
    app.deploy(agent_of(code))
    await app.crash()
    await app.approve(request, by="ann")
    await app.settle()
    return handle


@pytest.mark.parametrize("code", SAFE, ids=lambda code: code.__name__)
async def test_a_run_continues_after_a_safe_edit(code: Code) -> None:
    """Completed effects are not repeated, and new ones happen once."""
    async with testing.app(agent_of(original)) as app:
        handle = await resume_with(app, code)
        assert await handle.result() == SAFE[code]
        done = [call["what"] for call in app.calls(edit_act)]
        assert done[:2] == ["a", "b"]
        assert len(done) == len(set(done))


@pytest.mark.parametrize("code", REFUSED, ids=lambda code: code.__name__)
async def test_an_unsafe_edit_is_refused_before_any_effect(code: Code) -> None:
    """The run waits for an operator, and continues with its original code."""
    async with testing.app(agent_of(original)) as app:
        handle = await resume_with(app, code)
        await app.advance("1h")
        info = await handle.info()
        assert (info.status, info.waits_text) == ("waiting", "operator:diverged")
        assert [call["what"] for call in app.calls(edit_act)] == ["a", "b"]
        assert app.calls(edit_other) == []
        app.deploy(agent_of(original))
        await app.crash()
        await app.resume(handle.id)
        assert await handle.result() == "c"


async def kinds(app: limpet.App, run: str) -> list[str]:
    return [event.kind for event in await app.log(run)]


async def test_code_that_raises_before_a_recorded_step_has_diverged() -> None:
    """A release with a bug does not trigger compensation."""
    undone: list[str] = []

    @limpet.tool(effect="idempotent")
    async def pay() -> str:
        return "paid"

    @pay.compensate
    async def unpay(result: str | None) -> None:
        undone.append("undone")

    async def good(run: limpet.Run) -> str:
        paid = await run.step(pay)
        await run.sleep("1h")
        return paid

    async def bad(run: limpet.Run) -> str:
        raise NameError("pay")

    before = limpet.agent(name="released")(good)
    async with testing.app(before) as app:
        handle = await app.start(before)
        await app.settle()
        app.deploy(limpet.agent(name="released")(bad))
        await app.crash()
        await app.advance("1h")
        assert (await handle.info()).waits_text == "operator:diverged"
        assert undone == []


async def test_newer_code_continues_only_runs_of_accepted_versions() -> None:
    """Runs of other versions wait for another worker."""

    async def code(run: limpet.Run) -> str:
        await run.sleep("1h")
        return "done"

    first = limpet.agent(name="moved")(code)
    async with testing.app(first) as app:
        handle = await app.start(first)
        await app.settle()
        app.deploy(limpet.agent(name="moved", version="2")(code))
        await app.crash()
        await app.advance("1h")
        with pytest.raises(limpet.NotDone):
            await handle.result()
        app.deploy(limpet.agent(name="moved", version="2", accepts=["1"])(code))
        await app.crash()
        assert await handle.result() == "done"


async def test_a_suspended_run_records_no_version_choice(tmp_path: Path) -> None:
    """`run.version` raises Suspended, so the next execution makes the choice."""
    waits, told = asyncio.Event(), list[BaseException]()

    @limpet.agent(name="cut_while_it_waits")
    async def agent(run: limpet.Run) -> None:
        waits.set()
        try:
            await run.receive("go", int)
        finally:
            try:
                run.version("late")
            except limpet.LimpetError as error:
                told.append(error)

    url = f"sqlite:///{tmp_path}/t.db"
    async with limpet.open(url, agents=[agent]) as app:
        await app.start(agent, id="r1")
        await waits.wait()
    async with limpet.open(url) as app:
        assert "version.chosen" not in await kinds(app, "r1")
    assert [type(each) for each in told] == [limpet.Suspended]
