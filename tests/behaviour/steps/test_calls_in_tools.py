"""A method of `run` inside a tool is refused: replay does not call a recorded step again, nor the method inside it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

import limpet
import limpet.sync
from limpet import testing

Method = Callable[[limpet.Run], Awaitable[Any]]


@limpet.tool(effect="none")
async def other() -> str:
    """Do nothing."""
    return "other"


@limpet.agent()
async def helper(run: limpet.Run, given: str) -> str:
    """Return its input."""
    return given


async def in_scope(run: limpet.Run) -> None:
    """Enter a scope."""
    async with run.scope("inside"):
        pass


async def in_turn(run: limpet.Run) -> None:
    """Begin a turn."""
    async for _ in run.turns():
        return


async def asked(make: Callable[[], Any]) -> None:
    """Call a method that is not awaited."""
    make()


METHODS: dict[str, Method] = {
    "step": lambda run: run.step(other),
    "call": lambda run: run.call(helper, "x"),
    "handoff": lambda run: run.handoff(helper, "x"),
    "start": lambda run: run.start(helper, "x"),
    "ask": lambda run: run.ask("go on?"),
    "sleep": lambda run: run.sleep("1s"),
    "receive": lambda run: run.receive("go", str),
    "signal": lambda run: run.signal("r-2", "go"),
    "send_patch": lambda run: run.send_patch("r-2", goal="another"),
    "say": lambda run: run.say("hello"),
    "messages": lambda run: run.messages(),
    "context": lambda run: run.context(),
    "patch": lambda run: run.patch(data={"a": 1}),
    "decide": lambda run: asked(lambda: run.decide("which?", choose="a", over=("a", "b"), because="it is first")),
    "artifact": lambda run: run.artifact(b"x", type="text/plain", summary="x"),
    "record": lambda run: run.record("shared"),
    "scope": in_scope,
    "turns": in_turn,
    "version": lambda run: asked(lambda: run.version("new")),
    "now": lambda run: asked(run.now),
    "random": lambda run: asked(run.random),
    "uuid": lambda run: asked(run.uuid),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("timeout", [None, "1m"])
async def test_a_method_of_run_is_refused_in_a_tool(name: str, timeout: str | None) -> None:
    """The tool gets WrongCall, nothing is recorded of the call, and the run is the same after a crash."""
    refused: list[str] = []

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        @limpet.tool(effect="once", timeout=timeout)
        async def work() -> str:
            with pytest.raises(limpet.WrongCall, match="inside a tool") as raised:
                await METHODS[name](run)
            refused.append(raised.value.hint)
            return "done"

        found = await run.step(work)
        await run.ask("go on?")
        return found

    async with testing.app(agent, helper) as app:
        handle = await app.start(agent)
        await app.settle()
        before = [event.kind async for event in app.store.log(handle.id)]
        assert before == [
            "run.created",
            "run.claimed",
            "step.started",
            "step.completed",
            "request.opened",
            "run.waiting",
        ]
        await app.crash()
        await app.approve((await app.inbox())[0], by="ann")
        assert await handle.result() == "done"
    assert len(refused) == 1


async def test_a_refused_call_fails_the_step_without_a_retry() -> None:
    """The mistake is in the code, so a retry would not help."""
    calls: list[int] = []

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        async def read() -> str:
            calls.append(1)
            await run.say("hello")
            return "read"

        return await run.step(limpet.tool(effect="none", retry=limpet.Retry(5))(read))

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        with pytest.raises(limpet.RunFailed, match="inside a tool"):
            await handle.result()
        assert "message.said" not in [event.kind async for event in app.store.log(handle.id)]
    assert calls == [1]


async def test_a_method_of_a_blocking_run_is_refused_in_a_tool() -> None:
    """It is refused on the thread of a blocking tool, too."""

    @limpet.agent()
    def agent(run: limpet.sync.Run) -> str:
        def read() -> str:
            with pytest.raises(limpet.WrongCall, match="inside a tool"):
                run.say("hello")
            return "read"

        return run.step(limpet.tool(effect="none")(read))

    async with testing.app(agent) as app:
        assert await app.run(agent) == "read"


async def test_a_task_that_a_tool_started_is_refused_too() -> None:
    """It belongs to the tool, whether it ends before or after it."""
    tasks: list[asyncio.Task[None]] = []

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        go = asyncio.Event()

        async def later() -> None:
            await go.wait()
            await run.say("hello")

        async def read() -> str:
            tasks.append(asyncio.ensure_future(later()))
            return "read"

        found = await run.step(limpet.tool(effect="none")(read))
        go.set()
        with pytest.raises(limpet.WrongCall, match="inside a tool"):
            await tasks[0]
        return found

    async with testing.app(agent) as app:
        assert await app.run(agent) == "read"


async def test_a_tool_may_read_artifacts_and_the_state() -> None:
    """Both are the same in every execution, and record nothing."""

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        await run.patch(data={"name": "report"})
        artifact = await run.artifact(b"text", type="text/plain", summary="a text")

        async def read() -> str:
            return f"{run.state.data['name']}: {(await run.content(artifact)).decode()}"

        return await run.step(limpet.tool(effect="none")(read))

    async with testing.app(agent) as app:
        assert await app.run(agent) == "report: text"


async def test_a_refused_call_is_not_retried_after_a_verify() -> None:
    """The verify says that nothing was applied; the mistake is still in the code."""
    calls: list[int] = []
    runs: list[limpet.Run] = []

    @limpet.tool(effect="once", retry=limpet.Retry(3))
    async def pay() -> str:
        calls.append(1)
        await runs[-1].say("hello")
        return "paid"

    @pay.verify
    async def was_paid() -> limpet.Done[str] | None:
        return None

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        runs.append(run)
        return await run.step(pay)

    async with testing.app(agent) as app:
        with pytest.raises(limpet.RunFailed, match="inside a tool"):
            await (await app.start(agent)).result()
    assert calls == [1]


async def test_a_refused_call_in_a_compensation_asks_a_person_at_once() -> None:
    """A retry would not help; the question says what is wrong."""
    calls: list[int] = []
    runs: list[limpet.Run] = []

    @limpet.tool(effect="once")
    async def book() -> str:
        return "booked"

    @book.compensate
    async def cancel(result: str | None) -> None:
        calls.append(1)
        await runs[-1].say("undone")

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        runs.append(run)
        await run.step(book)
        raise ValueError("no seats")

    async with testing.app(agent) as app:
        await app.start(agent)
        await app.settle()
        [asked] = await app.inbox()
        assert "result is recorded. Retry or skip?" in asked.question
    assert calls == [1]


async def test_a_scope_is_not_left_in_a_tool() -> None:
    """Leaving it marks an item of the plan as done."""

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        await run.patch(plan=["one"])
        stack = AsyncExitStack()
        await stack.enter_async_context(run.scope("one"))

        @limpet.tool(effect="none")
        async def leave() -> str:
            with pytest.raises(limpet.WrongCall, match="inside a tool"):
                await stack.aclose()
            return "left"

        return await run.step(leave)

    async with testing.app(agent) as app:
        assert await app.run(agent) == "left"
