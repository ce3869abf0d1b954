"""Turns, state, budgets, compensation and blocking agents."""

import asyncio
from typing import Any

import msgspec
import pytest

import limpet
from limpet import testing


class Chat(msgspec.Struct):
    mood: str = "fine"
    turns: int = 0


async def test_a_resumed_run_starts_at_its_current_turn() -> None:
    """It has the state from the start of that turn; finished turns are not replayed."""
    entered: list[tuple[int, int]] = []

    @limpet.tool(effect="once")
    async def act(turn: int) -> int:
        return turn

    @limpet.agent()
    async def agent(run: limpet.Run[Chat]) -> Chat:
        await run.patch(goal="count", data=Chat(mood="new"))
        async for turn in run.turns(max=5):
            entered.append((turn.number, run.state.data.turns))
            await run.step(act, turn.number)
            await run.patch(data=Chat(run.state.data.mood, run.state.data.turns + 1), facts={f"t{turn.number}": 1})
            if turn.number == 3:
                await run.ask("go on?")
        await run.step(act, 99)
        return run.state.data

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        await app.crash()
        await app.approve((await app.inbox())[0], by="ann")
        assert await handle.result() == Chat("new", 5)
        assert [call["turn"] for call in app.calls(act)] == [1, 2, 3, 4, 5, 99]
    assert entered[:3] == [(1, 0), (2, 1), (3, 2)]
    assert set(entered[3:]) == {(3, 2), (4, 3), (5, 4)}


async def test_nested_turn_loops_resume_after_a_break() -> None:
    """Each loop has its own current turn. Code after a `break` belongs to the loop's last turn."""

    @limpet.tool(effect="once")
    async def act(what: str) -> str:
        return what

    @limpet.agent()
    async def agent(run: limpet.Run) -> None:
        async for outer in run.turns(max=2):
            async for inner in run.turns():
                await run.step(act, f"{outer.number}.{inner.number}")
                if inner.number == 2:
                    break
            await run.sleep("1h")
        await run.step(act, "end")

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        for _ in range(2):
            await app.settle()
            await app.crash()
            await app.advance("1h")
        await handle.result()
        assert [call["what"] for call in app.calls(act)] == ["1.1", "1.2", "2.1", "2.2", "end"]


async def test_replayed_state_contains_only_what_the_code_has_reached() -> None:
    """`run.state` does not run ahead of the code to later events in the log."""
    seen: list[Any] = []

    @limpet.agent()
    async def agent(run: limpet.Run) -> None:
        seen.append((run.state.goal, dict(run.state.facts)))
        await run.patch(goal="g", plan=["look", "act"], facts={"a": {"b": 1}}, source="test")
        async with run.scope("look"):
            await run.patch(facts={"a": 2}, questions=["why?"])
        seen.append((run.state.goal, dict(run.state.facts), run.state.working.plan_status))
        await run.sleep("1h")
        await run.patch(answered={"why?": "because"})
        seen.append(run.state.open_questions)

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        await app.crash()
        await app.advance("1h")
        await handle.result()
    assert seen[:2] == seen[2:4]
    assert seen[0] == ("", {})
    assert seen[1] == ("g", {"a": 2}, ("done", "pending"))
    assert seen[-1] == []


async def test_an_invalid_patch_changes_nothing_and_can_be_caught() -> None:

    @limpet.agent()
    async def agent(run: limpet.Run) -> list[str]:
        with pytest.raises(limpet.InvalidPatch):
            await run.patch(goal="never", answered={"unasked": "x"})
        return [run.state.goal]

    async with testing.app(agent) as app:
        assert await app.run(agent) == [""]


async def test_a_recorded_decision_is_returned_on_replay() -> None:
    """The code would choose differently in its second execution."""
    choices = iter(["red", "blue", "blue", "blue"])

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        chosen = await run.decide("colour?", choose=next(choices), over=["red", "blue"], because="a whim")
        await run.sleep("1h")
        return chosen

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.advance("1h")
        assert await handle.result() == "red"


@pytest.mark.parametrize("strategy", ["every_step", "every_iteration", "on_state_change"])
async def test_a_weaker_checkpoint_strategy_repeats_reads_but_no_effect(strategy: Any) -> None:
    waiting = asyncio.Event()

    @limpet.tool(effect="none")
    async def read(n: int) -> int:
        if n == 2 and not waiting.is_set():
            waiting.set()
            await asyncio.get_running_loop().create_future()
        return n

    @limpet.tool(effect="once")
    async def act() -> None: ...

    @limpet.agent(checkpoint=strategy)
    async def agent(run: limpet.Run) -> str:
        await run.step(act)
        await run.step(read, 1)
        await run.step(read, 2)
        return "done"

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await waiting.wait()
        await app.crash()
        assert await handle.result() == "done"
        assert len(app.calls(act)) == 1
        assert [call["n"] for call in app.calls(read)] == ([1, 2, 2] if strategy == "every_step" else [1, 2, 1, 2])


@pytest.mark.parametrize("strategy", ["every_step", "every_iteration", "on_state_change"])
async def test_a_large_result_of_a_read_is_returned_with_every_checkpoint_strategy(strategy: Any) -> None:
    """It is read back from the store, live and after a crash."""

    @limpet.tool(effect="none")
    async def read(n: int) -> str:
        return str(n) * 50_000

    @limpet.agent(checkpoint=strategy)
    async def agent(run: limpet.Run) -> int:
        found = [await run.step(read, 1), await run.step(read, 2)]
        await run.receive("go", str)
        return len("".join(found))

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        await app.crash()
        await app.signal(handle.id, "go", "")
        assert await handle.result() == 100_000
        assert len(app.calls(read)) == 2


async def test_unwritten_events_are_flushed_before_they_grow_without_bound() -> None:
    """A weak checkpoint strategy does not wait for each commit, but limits the events kept in memory."""

    @limpet.tool(effect="none")
    async def read(n: int) -> int:
        return n

    @limpet.agent(checkpoint="on_state_change")
    async def agent(run: limpet.Run) -> int:
        for n in range(600):
            await run.step(read, n)
        return len(await app.log("r1"))

    async with testing.app(agent) as app:
        assert 500 <= await app.run(agent, id="r1") < 1200


# Budgets


async def test_a_step_beyond_the_step_budget_is_refused() -> None:
    """The run is flagged at 80 % of the budget."""

    @limpet.tool(effect="none")
    async def read() -> None: ...

    @limpet.agent(budget=limpet.Budget(max_steps=5))
    async def agent(run: limpet.Run) -> list[str]:
        for _ in range(5):
            await run.step(read)
        flags = run.state.risk_flags
        with pytest.raises(limpet.BudgetExceeded):
            await run.step(read)
        return flags

    async with testing.app(agent) as app:
        assert await app.run(agent) == ["budget_pressure"]
        assert len(app.calls(read)) == 5


async def test_a_person_extends_or_refuses_an_exhausted_budget() -> None:
    """Tools report tokens and cost. A refusal raises BudgetExceeded."""

    @limpet.tool(effect="none")
    async def think() -> None:
        limpet.current().spent(tokens=60, cost=0.5)

    @limpet.agent(budget=limpet.Budget(max_llm_tokens=100, exhausted="ask"))
    async def agent(run: limpet.Run) -> None:
        for _ in range(5):
            await run.step(think)

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        [request] = await app.inbox()
        assert request.kind == "budget"
        with pytest.raises(limpet.InvalidAnswer):
            await app.answer(request, True, by="ann")
        await app.answer(request, {"max_llm_tokens": 200}, by="ann")
        await app.settle()
        assert len(app.calls(think)) == 4
        await app.reject((await app.inbox())[0], by="ann", because="enough")
        with pytest.raises(limpet.RunFailed, match="BudgetExceeded"):
            await handle.result()


async def test_running_time_and_cost_are_limited_by_the_budget() -> None:
    """Time counts only while a worker runs the run, not while it waits. Tools report their cost."""
    clock: list[Any] = []

    @limpet.tool(effect="none")
    async def work(cost: float) -> None:
        limpet.current().spent(cost=cost)
        clock[0].advance("40s")

    @limpet.agent(budget=limpet.Budget(max_wall_time="100s", max_cost=1.0))
    async def agent(run: limpet.Run, cost: float) -> int:
        for done in range(9):
            try:
                await run.step(work, cost)
            except limpet.BudgetExceeded as exceeded:
                return done if exceeded.limit == ("max_cost" if cost else "max_wall_time_ms") else -1
            await run.sleep("1h")
        return 9

    async with testing.app(agent) as app:
        clock.append(app._test_settings.frozen)
        for cost, steps in ((0.0, 3), (0.5, 2)):
            handle = await app.start(agent, cost)
            await app.advance("5h")
            assert await handle.result() == steps


async def test_a_child_gets_at_most_the_remaining_budget() -> None:
    """The budget that a child uses counts against its parent."""

    @limpet.tool(effect="none")
    async def read() -> None: ...

    @limpet.agent()
    async def child(run: limpet.Run, n: int) -> int:
        done = 0
        for _ in range(n):
            try:
                await run.step(read)
            except limpet.BudgetExceeded:
                break
            done += 1
        return done

    @limpet.agent(budget=limpet.Budget(max_steps=10))
    async def agent(run: limpet.Run) -> list[int]:
        return [
            await run.call(child, 3, budget=limpet.Budget(max_steps=2)),
            await run.call(child, 100),
            await run.call(child, 100),
        ]

    async with testing.app(agent, child) as app:
        assert await app.run(agent) == [2, 8, 0]


# Compensation


async def test_a_failed_run_is_compensated_in_reverse_order_once_per_step() -> None:
    """A step with an unknown outcome is compensated with its partial value, an irreversible one is skipped, and the run
    cannot be resumed afterwards.
    """
    undone: list[Any] = []

    @limpet.tool(effect="idempotent")
    async def book(what: str) -> str:
        if what == "last":
            limpet.current().partial("half")
            raise ConnectionError("?")
        return f"booked {what}"

    @book.compensate
    async def cancel_booking(result: str | None, what: str) -> None:
        undone.append((what, result))

    @limpet.tool(effect="once", irreversible=True)
    async def tell() -> None: ...

    @limpet.tool(effect="none")
    async def read() -> None: ...

    @limpet.agent()
    async def agent(run: limpet.Run) -> None:
        await run.step(book, "first")
        await run.step(read)
        await run.step(tell)
        await run.step(book, "last")

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        with pytest.raises(limpet.RunFailed, match="OutcomeUnknown"):
            await handle.result()
        assert undone == [("last", "half"), ("first", "booked first")]
        log = await app.log(handle.id)
        marks = [(event.kind, event.body["number"]) for event in log if event.kind.startswith("compensation.")]
        assert marks == [
            ("compensation.started", 4),
            ("compensation.completed", 4),
            ("compensation.skipped", 3),
            ("compensation.started", 1),
            ("compensation.completed", 1),
        ]
        with pytest.raises(limpet.WrongState, match="compensated"):
            await app.resume(handle.id)


async def test_compensation_continues_after_a_crash_and_asks_a_person() -> None:
    """A failed compensation is retried, then a person is asked. Completed compensations are not repeated."""
    fails = {"yes": True}
    undone: list[str] = []

    @limpet.tool(effect="idempotent")
    async def book(what: str) -> None: ...

    @book.compensate
    async def cancel_booking(result: None, what: str) -> None:
        undone.append(what)
        if what == "a" and fails["yes"]:
            raise ConnectionError("no")

    @limpet.agent()
    async def agent(run: limpet.Run) -> None:
        for what in "abc":
            await run.step(book, what)
        raise ValueError("over")

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        assert undone == ["c", "b", "a", "a", "a"]
        [request] = await app.inbox()
        assert (request.kind, request.options) == ("compensation", ("retry", "skip"))
        await app.crash()
        fails["yes"] = False
        await app.answer(request, "retry", by="ann")
        with pytest.raises(limpet.RunFailed, match="over"):
            await handle.result()
        assert undone == ["c", "b", "a", "a", "a", "a"]


# Blocking agents


async def test_a_blocking_agent_writes_the_same_log_as_an_async_one() -> None:
    """It runs in its own thread; when the run is parked, its blocked call raises Suspended."""

    @limpet.tool(effect="once")
    def act(what: str) -> str:
        return what.upper()

    ends: list[str] = []

    @limpet.agent(name="same")
    def blocking(run: limpet.sync.Run[Chat], what: str) -> list[Any]:
        run.patch(goal=what, plan=["one", "two"])
        found: list[Any] = []
        try:
            with run.scope("one"):
                found.append(run.step(act, what))
            for turn in run.turns(max=2):
                run.patch(data=Chat(turns=turn.number))
                found.append(run.step(act, f"t{turn.number}"))
            found.append(run.ask("sure?"))
            found.append(run.receive("go", int))
        except limpet.Suspended:
            ends.append("suspended")
            raise
        run.decide("x?", choose=1, over=[1, 2], because="y")
        return [*found, run.state.data.turns, run.now() is not None]

    @limpet.agent(name="same")
    async def flowing(run: limpet.Run[Chat], what: str) -> list[Any]:
        await run.patch(goal=what, plan=["one", "two"])
        found: list[Any] = []
        async with run.scope("one"):
            found.append(await run.step(act, what))
        async for turn in run.turns(max=2):
            await run.patch(data=Chat(turns=turn.number))
            found.append(await run.step(act, f"t{turn.number}"))
        found.append(await run.ask("sure?"))
        found.append(await run.receive("go", int))
        await run.decide("x?", choose=1, over=[1, 2], because="y")
        return [*found, run.state.data.turns, run.now() is not None]

    logs = []
    for agent in (blocking, flowing):
        async with testing.app(agent) as app:
            handle = await app.start(agent, "hi", id="r1")
            await app.settle()
            await app.crash()
            await app.approve((await app.inbox())[0], by="ann")
            await app.settle()
            await app.signal("r1", "go", 5)
            assert await handle.result() == ["HI", "T2", True, 5, 2, True]
            assert len(app.calls(act)) == 3
            logs.append([(event.kind, event.body.get("name")) for event in await app.log("r1")])
    assert logs[0] == logs[1]
    assert ends


async def test_loops_of_turns_side_by_side_are_refused() -> None:
    """A resumed run has one state, that at the start of a turn; the changes of the other loop would be lost."""

    @limpet.agent()
    async def agent(run: limpet.Run) -> None:
        async def loop(name: str) -> None:
            async with run.scope(name):
                async for _ in run.turns(max=2):
                    await run.patch(facts={name: 1})

        await asyncio.gather(loop("a"), loop("b"))

    async with testing.app(agent) as app:
        with pytest.raises(limpet.RunFailed, match="b/turns#1 while another branch is in a/turns#1"):
            await app.run(agent)


async def test_loops_of_turns_may_follow_each_other_and_be_nested() -> None:
    """Also in branches that have ended, and if a loop was left early."""

    @limpet.agent()
    async def agent(run: limpet.Run) -> int:
        count = 0

        async def loop(name: str) -> int:
            found = 0
            async with run.scope(name):
                async for _ in run.turns(max=2):
                    found += 1
                    if name == "left":
                        break
            return found

        for name in ("left", "whole"):
            count += await asyncio.create_task(loop(name))
        async for _ in run.turns(max=2):
            count += await asyncio.create_task(loop("inner"))
        return count

    async with testing.app(agent) as app:
        assert await app.run(agent) == 7
