"""Signals and patches from one run to another, and patches from outside."""

from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.testing.crash_points import When


@limpet.agent(name="between_listener")
async def listener(run: limpet.Run, count: int) -> list[Any]:
    return [await run.receive("news", dict[str, int]) for _ in range(count)]


@limpet.agent(name="between_sender")
async def sender(run: limpet.Run, to: str) -> str:
    await run.signal(to, "news", {"n": 1})
    await run.signal(to, "news", {"n": 2})
    return "sent"


def crash_points() -> list[tuple[When, str, int]]:
    kinds = ("step.started", "signal.received", "step.completed")
    return [(when, kind, nth) for when in ("before", "after") for kind in kinds for nth in (1, 2)]


@pytest.mark.parametrize(("when", "kind", "nth"), crash_points())
async def test_a_signal_to_another_run_is_sent_once_whenever_the_worker_dies(when: When, kind: str, nth: int) -> None:
    async with testing.app(listener, sender) as app:
        heard = await app.start(listener, 2, id="l")
        await app.settle()
        app.crash_at(when, kind, nth=nth)
        assert await app.run(sender, "l", id="s") == "sent"
        assert await heard.result() == [{"n": 1}, {"n": 2}]
        signals = [event for event in await app.log("l") if event.kind == "signal.received"]
        assert [(each.body["by"], each.body["via"]) for each in signals] == [("s", "run")] * 2
        steps = await app.steps("s")
        assert [(step.tool, step.status) for step in steps] == [("limpet.signal", "completed")] * 2
        assert app.crashes == 1
        await app.verify("s")
        await app.verify("l")


async def test_a_signal_to_a_run_that_is_missing_or_has_ended_fails_the_step() -> None:
    """The code may catch it, and go on; it stays so on replay."""

    @limpet.agent(name="between_hopeful")
    async def hopeful(run: limpet.Run) -> list[str]:
        found = []
        for other in ("nowhere", "ended"):
            try:
                await run.signal(other, "news", 1)
            except limpet.StepFailed as error:
                found.append(error.error_type)
        await run.ask("Go on?")
        return found

    async with testing.app(hopeful, listener) as app:
        await app.run(listener, 0, id="ended")
        handle = await app.start(hopeful, id="h")
        await app.settle()
        await app.crash()
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        assert await handle.result() == ["limpet.NotFound", "limpet.WrongState"]


async def test_a_run_signals_itself_and_a_run_that_it_started() -> None:
    @limpet.agent(name="between_parent")
    async def parent(run: limpet.Run) -> list[Any]:
        child = await run.start(listener, 1)
        await run.signal(child, "news", {"n": 7})
        await run.signal(run.id, "own", 8)
        return [await run.receive("own", int)]

    async with testing.app(parent, listener) as app:
        assert await app.run(parent, id="p") == [8]
        assert await (await app.get("p.between_listener-1")).result() == [{"n": 7}]


async def test_a_large_signal_arrives_whole() -> None:
    @limpet.agent(name="between_large")
    async def large(run: limpet.Run, to: str) -> None:
        await run.signal(to, "news", {"n": 10**15, "x" * 20_000: 1})

    async with testing.app(large, listener) as app:
        heard = await app.start(listener, 1, id="l")
        await app.run(large, "l")
        assert len(next(iter((await heard.result())[0].keys() - {"n"}))) == 20_000


@pytest.mark.parametrize(("effects", "arrives"), [("live", True), ("stub", False), ("ask", False)])
async def test_a_fork_sends_its_signals_as_its_effects_are_handled(effects: Any, arrives: bool) -> None:
    """A stubbed fork sends nothing; one that asks waits for a person first."""
    async with testing.app(listener, sender) as app:
        await app.start(listener, 4, id="l")
        await app.run(sender, "l", id="s")
        fork = await app.fork("s", at=2, effects=effects, id="f")
        await app.settle()
        signals = [event.body for event in await app.log("l") if event.kind == "signal.received"]
        assert [each["by"] for each in signals] == ["s", "s", *(["f"] * arrives)]
        if effects == "ask":
            [request] = await app.inbox(run="f")
            assert request.tool == "limpet.signal"
            await app.approve(request, by="ann")
        assert await fork.result() == "sent"


@limpet.agent(name="between_looper")
async def looper(run: limpet.Run) -> list[Any]:
    """Wait in each turn, and note what the state says."""
    async for turn in run.turns(max=4):
        seen = [*run.state.facts.get("seen", []), [run.state.goal, run.state.facts.get("price"), run.state.plan]]
        await run.patch(facts={"seen": seen})
        await run.receive(f"go-{turn.number}", str)
    found: list[Any] = run.state.facts["seen"]
    return found


async def go(app: limpet.App, number: int) -> None:
    await app.signal("r", f"go-{number}", "go")


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_patch_from_outside_applies_at_the_next_turn(crashes: bool) -> None:
    """Within a turn, the code sees no change, also when it is executed again."""
    async with testing.app(looper) as app:
        handle = await app.start(looper, id="r")
        await app.settle()
        await app.patch("r", goal="sell", facts={"price": 5}, by="ann", command_id="c-1")
        await app.patch("r", goal="sell", facts={"price": 5}, by="ann", command_id="c-1")  # repeated
        if crashes:
            await app.crash()
        assert (await app.state("r")).goal == ""
        assert len((await app.state("r")).whole.patches) == 1
        await go(app, 1)
        await app.settle()
        assert (await app.state("r")).goal == "sell"
        await app.patch("r", retract=["price"], plan=["look"], by="bob")
        if crashes:
            await app.crash()
        for number in (2, 3, 4):
            await go(app, number)
            await app.settle()
            if crashes and number < 4:
                await app.crash()
        assert await handle.result() == [
            ["", None, []],
            ["sell", 5, []],
            ["sell", None, ["look"]],
            ["sell", None, ["look"]],
        ]
        [fact] = [each for each in (await app.state("r", seq=14)).whole.working.known_facts if each.key == "price"]
        assert fact.source == "ann"
        assert (await app.info("r")).position.items == 1
        await app.verify("r")


async def test_items_of_a_plan_from_outside_keep_the_status_they_have_when_it_applies() -> None:
    @limpet.agent(name="between_planner")
    async def planner(run: limpet.Run) -> list[str]:
        async for turn in run.turns(max=2):
            if turn.number == 1:
                await run.patch(plan=["a", "b"])
                await run.receive("go-1", str)
                await run.patch(revise={"a": "done"})
        return list(run.state.working.plan_status)

    async with testing.app(planner) as app:
        handle = await app.start(planner, id="r")
        await app.settle()
        await app.patch("r", plan=["a", "c"])
        await go(app, 1)
        assert await handle.result() == ["done", "pending"]
        assert str((await app.info("r")).position) == "step 2 of 2"
        await app.verify("r")


async def test_a_part_that_is_gone_when_a_patch_applies_is_left_out() -> None:
    @limpet.agent(name="between_quick")
    async def quick(run: limpet.Run) -> list[str]:
        async for turn in run.turns(max=2):
            if turn.number == 1:
                await run.patch(facts={"a": 1, "b": 2}, flags=["slow"])
                await run.receive("go-1", str)
                await run.patch(retract=["a"], lower=["slow"])
        return [*run.state.facts, *run.state.risk_flags]

    async with testing.app(quick) as app:
        handle = await app.start(quick, id="r")
        await app.settle()
        await app.patch("r", retract=["a"], lower=["slow"], facts={"c": 3})
        await go(app, 1)
        assert await handle.result() == ["b", "c"]
        await app.verify("r")


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({}, "patch"),
        ({"retract": ["unknown"]}, "facts"),
        ({"lower": ["unknown"]}, "flags"),
        ({"answered": {"unknown": "x"}}, "questions"),
        ({"budget": limpet.Budget(max_steps=1)}, "budget"),
        ({"revise": {"a": "done"}}, "revise"),
    ],
)
async def test_a_wrong_patch_from_outside_is_refused_where_it_is_sent(change: dict[str, Any], path: str) -> None:
    async with testing.app(looper) as app:
        await app.start(looper, id="r")
        await app.settle()
        before = len(await app.log("r"))
        with pytest.raises(limpet.InvalidArgument) as refused:
            await app.patch("r", **change)
        assert refused.value.path == path
        assert len(await app.log("r")) == before


async def test_an_agent_patches_another_run() -> None:
    @limpet.agent(name="between_adviser")
    async def adviser(run: limpet.Run) -> str:
        await run.send_patch("r", facts={"price": 9})
        try:
            await run.send_patch("r", retract=["unknown"])
        except limpet.StepFailed as error:
            return error.error_type
        return "no error"

    async with testing.app(looper, adviser) as app:
        handle = await app.start(looper, id="r")
        await app.settle()
        app.crash_at("after", "patch.received")
        assert await app.run(adviser, id="a") == "limpet.InvalidArgument"
        for number in (1, 2, 3, 4):
            await go(app, number)
        found = await handle.result()
        assert found[1] == ["", 9, []]
        assert [event.kind for event in await app.log("r")].count("patch.received") == 1
        assert app.crashes == 1


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["patch.received", "state.patched", "turn.started", "signal.received"])
async def test_a_patch_survives_a_kill_at_every_boundary(when: When, kind: str) -> None:
    async with testing.app(looper) as app:
        handle = await app.start(looper, id="r")
        await app.settle()
        app.crash_at(when, kind)
        await app.patch("r", facts={"price": 5})
        for number in (1, 2, 3, 4):
            await go(app, number)
        assert [each[1] for each in await handle.result()] == [None, 5, 5, 5]
        assert app.crashes == 1
        await app.verify("r")


async def test_a_fork_keeps_a_patch_that_still_waits() -> None:
    async with testing.app(looper) as app:
        await app.start(looper, id="r")
        await app.settle()
        await app.patch("r", facts={"price": 5})
        head = len(await app.log("r"))
        fork = await app.fork("r", seq=head, effects="live", id="f")
        for number in (1, 2, 3, 4):
            await app.signal("f", f"go-{number}", "go")
        assert [each[1] for each in await fork.result()] == [None, 5, 5, 5]


async def test_too_many_waiting_patches_are_refused() -> None:
    async with testing.app(listener) as app:
        await app.start(listener, 1, id="l")
        await app.settle()
        for number in range(100):
            await app.patch("l", facts={"n": number})
        with pytest.raises(limpet.WrongState, match="100 patches"):
            await app.patch("l", facts={"n": 100})
