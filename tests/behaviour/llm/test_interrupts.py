"""Interrupts: a message with `interrupt` ends the turn after the running tools, the same in every execution."""

import asyncio
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.engine.run.conversation import INTERRUPT
from limpet.llm.loop import INTERRUPTED
from limpet.llm.model import Prompt, Reply
from limpet.testing import ScriptedModel, calls
from limpet.testing.app import TestApp


async def roles_and_texts(app: TestApp) -> list[tuple[str, str]]:
    """Return role and text of each message."""
    return [(each.role, each.text) for each in await app.messages("c")]


def working_agent(name: str, model: ScriptedModel, done: list[str], gate: asyncio.Event | None = None) -> Any:
    """Return an agent with a quick tool, a slow tool, and one that needs approval."""

    @limpet.tool(effect="idempotent", name="interrupts_quick")
    async def quick() -> str:
        """Quick."""
        done.append("quick")
        return "quick is done"

    @limpet.tool(effect="idempotent", name="interrupts_slow")
    async def slow() -> str:
        """Slow."""
        done.append("slow")
        if gate is not None:
            await gate.wait()
        return "slow is done"

    @limpet.tool(effect="once", risk="money", name="interrupts_pay")
    async def pay() -> str:
        """Pay."""
        done.append("pay")
        return "paid"

    return limpet.llm_agent(
        name,
        model=model,
        instructions="Work.",
        tools=[quick, slow, pay],
        approvals=limpet.Approvals("money"),
    )


async def test_an_interrupt_before_tool_calls_start_skips_them() -> None:
    """The message arrives while the model replies. The model then sees that the calls were skipped."""
    done: list[str] = []
    apps: list[TestApp] = []

    async def thinks(request: Prompt) -> Any:
        if not any(each.text == "stop" for each in request.messages):
            await apps[0].say("c", "stop", interrupt=True)
            return (calls("interrupts_quick"), calls("interrupts_slow"))
        return "stopped"

    model = ScriptedModel(thinks)
    agent = working_agent("interrupts_thinker", model, done)
    async with testing.app(agent) as app:
        apps.append(app)
        handle = await app.start(agent, "go", id="r", conversation="c")
        assert await handle.result() == "stopped"
        assert done == []
        wanted = [("user", "go"), ("assistant", ""), ("tool", INTERRUPTED), ("tool", INTERRUPTED), ("user", "stop")]
        assert await roles_and_texts(app) == [*wanted, ("assistant", "stopped")]
        assert [(each.role, each.text) for each in model.prompts[-1].messages[1:]] == wanted
        assert (await app.replay("r")).value == "stopped"
        assert len(model.prompts) == 2


async def test_an_interrupted_run_does_not_end_with_the_current_answer() -> None:
    """The message is answered although the model was done."""
    apps: list[TestApp] = []

    async def thinks(request: Prompt) -> Any:
        if not any(each.text == "wait" for each in request.messages):
            await apps[0].say("c", "wait", interrupt=True)
            return "done"
        return "I wait"

    agent = working_agent("interrupts_answerer", ScriptedModel(thinks), [])
    async with testing.app(agent) as app:
        apps.append(app)
        assert await app.run(agent, "go", id="r", conversation="c") == "I wait"
        assert await roles_and_texts(app) == [
            ("user", "go"),
            ("assistant", "done"),
            ("user", "wait"),
            ("assistant", "I wait"),
        ]
        assert (await app.replay("r")).value == "I wait"


@pytest.mark.parametrize("finish", ["stop", "refused", "length"])
async def test_an_interrupt_during_a_reply_is_received_however_the_reply_ends(finish: Any) -> None:
    """An answer, a refusal, and an answer that was cut off, which would fail the run or be continued."""
    apps: list[TestApp] = []

    async def thinks(request: Prompt) -> Any:
        if any(each.text == "stop" for each in request.messages):
            return "ok"
        await apps[0].say("c", "stop", interrupt=True)
        return Reply(text="I can", finish=finish)

    agent = working_agent("interrupts_ends", ScriptedModel(thinks), [])
    async with testing.app(agent) as app:
        apps.append(app)
        assert await app.run(agent, "go", id="r", conversation="c") == "ok"
        wanted = [("user", "go"), ("assistant", "I can"), ("user", "stop"), ("assistant", "ok")]
        assert await roles_and_texts(app) == wanted
        assert (await app.replay("r")).value == "ok"


@pytest.mark.parametrize("finish", ["stop", "length"])
async def test_an_interrupt_before_the_first_reply_is_received_once(finish: Any) -> None:
    """The run has just started. Receiving it writes a few events, also if it arrives between two messages."""
    replies = (Reply(text="one", finish=finish), "two", "three")
    agent = working_agent("interrupts_early", ScriptedModel(*replies), [])
    async with testing.app(agent) as app:
        handle = await app.start(agent, "go", id="r", conversation="c")
        await app.say("c", "stop", interrupt=True)
        result = await handle.result()
        said = [text for role, text in await roles_and_texts(app) if role == "user"]
        assert said.count("stop") == 1
        assert (await app.replay("r")).value == result
        assert len([event async for event in handle.events()]) < 60


async def test_a_pause_during_the_last_reply_pauses_the_run() -> None:
    apps: list[TestApp] = []

    async def thinks(_: Prompt) -> Any:
        await apps[0].pause("r")
        return "done"

    agent = working_agent("interrupts_paused", ScriptedModel(thinks), [])
    async with testing.app(agent) as app:
        apps.append(app)
        handle = await app.start(agent, "go", id="r", conversation="c")
        await app.settle()
        assert (await app.store.get("r")).status == "waiting"
        assert await roles_and_texts(app) == [("user", "go"), ("assistant", "done")]
        await app.resume("r")
        assert await handle.result() == "done"


@pytest.mark.parametrize("asks", ["interrupts_pay", "ask_person"])
async def test_an_interrupt_withdraws_open_requests(asks: str) -> None:
    """A parked run wakes up. Completed calls of the same turn stay completed."""
    done: list[str] = []
    question = calls("ask_person", question="well?") if asks == "ask_person" else calls(asks)
    agent = working_agent("interrupts_parked", ScriptedModel((calls("interrupts_quick"), question), "stopped"), done)
    async with testing.app(agent) as app:
        handle = await app.start(agent, "go", id="r", conversation="c")
        await app.settle()
        assert (await app.store.get("r")).status == "waiting"
        assert len(await app.inbox()) == 1
        await app.say("c", "never mind", interrupt=True)
        assert await handle.result() == "stopped"
        assert await app.inbox() == []
        assert done == ["quick"]
        texts = [text for role, text in await roles_and_texts(app) if role in ("tool", "user")]
        assert texts == ["go", "quick is done", INTERRUPTED, "never mind"]
        assert (await app.replay("r")).value == "stopped"


@pytest.mark.parametrize("first", ["asks", "is called"])
@pytest.mark.parametrize("asks", ["interrupts_pay", "ask_person"])
async def test_a_call_that_an_interrupt_withdrew_stays_withdrawn_when_the_run_is_resumed(asks: str, first: str) -> None:
    """The run parks for another call of the same turn. Its resume withdraws the same call, and waits for the other."""

    @limpet.agent(name="interrupts_research")
    async def research(run: limpet.Run, topic: str) -> str:
        """Research."""
        await run.sleep("1h")
        return f"found {topic}"

    @limpet.tool(effect="once", risk="money", name="interrupts_pay")
    async def pay() -> str:
        """Pay."""
        raise AssertionError

    question = calls("ask_person", question="well?") if asks == "ask_person" else calls(asks)
    made = [question, calls("interrupts_research", input="a topic")]
    model = ScriptedModel(tuple(made if first == "asks" else made[::-1]), "stopped")
    agent = limpet.llm_agent(
        "interrupts_resumed",
        model=model,
        instructions="Work.",
        tools=[pay, research],
        approvals=limpet.Approvals("money"),
    )
    async with testing.app(agent, research) as app:
        handle = await app.start(agent, "go", id="r", conversation="c")
        await app.settle()
        await app.say("c", "stop", interrupt=True)
        await app.settle()
        assert ((await app.store.get("r")).status, await app.inbox()) == ("waiting", [])
        assert (await app.replay("r")).how == "waits"
        await app.advance("2h")
        assert await handle.result() == "stopped"
        results = [INTERRUPTED, "found a topic"]
        texts = [text for role, text in await roles_and_texts(app) if role in ("tool", "user")]
        assert texts == ["go", *(results if first == "asks" else results[::-1]), "stop"]
        ends = [each.body["name"] for each in await app.log("r") if each.body.get("how") == "withdrawn"]
        assert len(ends) == 1
        assert (await app.replay("r")).value == "stopped"


@pytest.mark.parametrize(
    ("answer", "result"),
    [({"applied": "it was sent"}, "it was sent"), ("not_applied", "sent"), ("unknown", "Unknown")],
)
async def test_an_interrupt_that_withdraws_an_approval_waits_for_an_unknown_outcome(answer: Any, result: str) -> None:
    """A person gives the outcome of the other call after the interrupt, when the run has parked again."""
    done: list[str] = []

    @limpet.tool(effect="once", name="interrupts_dispatch")
    async def dispatch() -> str:
        """Dispatch."""
        done.append("dispatch")
        return "sent"

    @limpet.tool(effect="once", risk="money", name="interrupts_pay")
    async def pay() -> str:
        """Pay."""
        raise AssertionError

    agent = limpet.llm_agent(
        "interrupts_unknown",
        model=ScriptedModel((calls("interrupts_pay"), calls("interrupts_dispatch")), "stopped"),
        instructions="Work.",
        tools=[pay, dispatch],
        approvals=limpet.Approvals("money"),
    )
    async with testing.app(agent) as app:
        handle = await app.start(agent, "go", id="r", conversation="c")
        app.crash_at("after", "step.started", tool="interrupts_dispatch")
        await app.settle()
        assert [each.kind for each in await app.inbox()] == ["approval", "unknown"]
        await app.say("c", "stop", interrupt=True)
        await app.settle()
        [request] = await app.inbox()
        await app.answer(request, answer, by="ann")
        assert await handle.result() == "stopped"
        texts = [text for role, text in await roles_and_texts(app) if role in ("tool", "user")]
        assert [texts[0], texts[1], texts[3]] == ["go", INTERRUPTED, "stop"]
        assert result in texts[2]
        assert len(done) == (answer == "not_applied")  # then it is repeated
        assert (await app.replay("r")).value == "stopped"


async def test_an_interrupted_turn_waits_for_running_tools() -> None:
    """The result of the running tool is used; a call that waits for approval is skipped."""
    done: list[str] = []
    gate = asyncio.Event()
    agent = working_agent(
        "interrupts_running", ScriptedModel((calls("interrupts_slow"), calls("interrupts_pay")), "stopped"), done, gate
    )
    async with testing.app(agent) as app:
        handle = await app.start(agent, "go", id="r", conversation="c")
        while done != ["slow"] or not await app.inbox():
            await app.is_settled()
            await asyncio.sleep(0)  # noqa: TID251 - a turn
        await app.say("c", "stop", interrupt=True)
        gate.set()
        assert await handle.result() == "stopped"
        assert done == ["slow"]
        texts = [text for role, text in await roles_and_texts(app) if role in ("tool", "user")]
        assert texts == ["go", "slow is done", INTERRUPTED, "stop"]
        assert (await app.replay("r")).value == "stopped"


async def test_a_message_without_interrupt_waits_for_the_next_turn() -> None:
    """An open request stays open."""
    done: list[str] = []
    agent = working_agent("interrupts_patient", ScriptedModel(calls("interrupts_pay"), "well"), done)
    async with testing.app(agent) as app:
        handle = await app.start(agent, "go", id="r", conversation="c")
        await app.settle()
        await app.say("c", "by the way")
        await app.settle()
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        assert await handle.result() == "well"
        texts = [text for role, text in await roles_and_texts(app) if role in ("tool", "user")]
        assert (texts, done) == (["go", "paid", "by the way"], ["pay"])


KINDS = ("wait.opened", "wait.ended", "message.said", "step.started", "step.completed", "decision.made", "turn.started")


@pytest.mark.parametrize("kind", [*KINDS, "run.claimed", "value.recorded", "run.waiting"])
async def test_an_interrupt_has_the_same_effect_after_a_crash_at_any_commit(kind: str) -> None:
    """The same calls are skipped, the same messages are written, and no completed call is repeated."""
    for when in ("before", "after"):
        for nth in (1, 2, 3, 4):
            done: list[str] = []
            model = ScriptedModel((calls("interrupts_quick"), calls("interrupts_pay")), calls("interrupts_slow"), "ok")
            agent = working_agent("interrupts_killed", model, done)
            async with testing.app(agent) as app:
                handle = await app.start(agent, "go", id="r", conversation="c")
                if nth % 2:
                    app.crash_at(when, kind, nth=nth)
                await app.settle()
                if not nth % 2:
                    app.crash_at(when, kind, nth=nth // 2)
                await app.say("c", "stop", interrupt=True)
                assert await handle.result() == "ok"
                texts = [text for role, text in await roles_and_texts(app) if role in ("tool", "user")]
                assert texts == ["go", "quick is done", INTERRUPTED, "stop", "slow is done"]
                assert done.count("slow") <= 1 + app.crashes  # repeated with the same key
                assert "pay" not in done
                assert await app.inbox() == []
                assert len(model.prompts) <= 3 + app.crashes
                assert (await app.replay("r")).value == "ok"


async def until_started(app: TestApp, done: list[str], what: str) -> None:
    """Wait until a tool is running."""
    while what not in done:
        await app.is_settled()
        await asyncio.sleep(0)  # noqa: TID251 - a turn


def ends_of(log: list[Any], tool: str) -> list[str]:
    """Return the kinds of the events that end a tool's steps."""
    numbers = {each.body["number"] for each in log if each.kind == "step.started" and each.body["tool"] == tool}
    return [each.kind for each in log if each.body.get("number") in numbers and each.kind != "step.started"]


async def test_an_interrupt_during_a_tool_ends_the_turn_after_it() -> None:
    """The step is recorded, and the next turn starts with the user's message."""
    done: list[str] = []
    gate = asyncio.Event()
    model = ScriptedModel((calls("interrupts_quick"), calls("interrupts_slow")), "stopped")
    agent = working_agent("interrupts_lone", model, done, gate)
    async with testing.app(agent) as app:
        handle = await app.start(agent, "go", id="r", conversation="c")
        await until_started(app, done, "slow")
        await app.say("c", "stop", interrupt=True)
        assert ends_of(await app.log("r"), "interrupts_slow") == []
        gate.set()
        assert await handle.result() == "stopped"
        assert ends_of(await app.log("r"), "interrupts_slow") == ["step.completed"]
        wanted = [("user", "go"), ("assistant", ""), ("tool", "quick is done"), ("tool", "slow is done")]
        assert [(each.role, each.text) for each in model.prompts[-1].messages[1:]] == [*wanted, ("user", "stop")]
        assert sorted(done) == ["quick", "slow"]
        assert len(model.prompts) == 2
        assert (await app.replay("r")).value == "stopped"


@pytest.mark.parametrize("again", ["said before", "said after"])
async def test_an_interrupt_around_a_crash_in_a_repeatable_tool_waits_for_its_result(again: str) -> None:
    """The next process repeats the tool. The message follows its result, sent before or after the crash."""
    done: list[str] = []
    gate = asyncio.Event()
    model = ScriptedModel((calls("interrupts_quick"), calls("interrupts_slow")), "stopped")
    agent = working_agent("interrupts_dying", model, done, gate)
    async with testing.app(agent) as app:
        handle = await app.start(agent, "go", id="r", conversation="c")
        await until_started(app, done, "slow")
        if again == "said before":
            await app.say("c", "stop", interrupt=True)
        await app.crash()
        done.remove("slow")
        await until_started(app, done, "slow")
        if again == "said after":
            await app.say("c", "stop", interrupt=True)
        gate.set()
        assert await handle.result() == "stopped"
        texts = [text for role, text in await roles_and_texts(app) if role in ("tool", "user")]
        assert texts == ["go", "quick is done", "slow is done", "stop"]
        assert ends_of(await app.log("r"), "interrupts_slow") == ["step.unknown", "step.completed"]
        assert done.count("quick") == 1
        assert len(model.prompts) == 2
        assert (await app.replay("r")).value == "stopped"


async def test_an_interrupt_before_a_crash_in_a_once_tool_waits_for_the_outcome() -> None:
    """The outcome is unknown until a person gives it; then the message is delivered."""
    running: list[str] = []
    gate = asyncio.Event()

    @limpet.tool(effect="once", name="interrupts_send")
    async def send() -> str:
        """Send."""
        running.append("send")
        await gate.wait()
        return "sent"

    model = ScriptedModel(calls("interrupts_send"), "stopped")
    agent = limpet.llm_agent("interrupts_sender", model=model, instructions="Work.", tools=[send])
    async with testing.app(agent) as app:
        handle = await app.start(agent, "go", id="r", conversation="c")
        await until_started(app, running, "send")
        await app.say("c", "stop", interrupt=True)
        await app.crash()
        await app.settle()
        [request] = await app.inbox()
        assert (request.kind, request.tool) == ("unknown", "interrupts_send")
        await app.answer(request, {"applied": "it was sent"}, by="ann")
        assert await handle.result() == "stopped"
        texts = [text for role, text in await roles_and_texts(app) if role in ("tool", "user")]
        assert (texts, running) == (["go", "it was sent", "stop"], ["send"])
        assert (await app.replay("r")).value == "stopped"


@pytest.mark.parametrize("kind", ["signal.received", "step.started", "step.completed", "message.said", "wait.ended"])
async def test_an_interrupt_during_a_tool_survives_a_crash_at_any_commit(kind: str) -> None:
    """The same messages are written, and no recorded call is repeated."""
    for when in ("before", "after"):
        for nth in (1, 2):
            done: list[str] = []
            gate = asyncio.Event()
            model = ScriptedModel(calls("interrupts_slow"), calls("interrupts_quick"), "ok")
            agent = working_agent("interrupts_often", model, done, gate)
            async with testing.app(agent) as app:
                handle = await app.start(agent, "go", id="r", conversation="c")
                await until_started(app, done, "slow")
                await app.say("c", "stop", interrupt=True)
                app.crash_at(when, kind, nth=nth)
                gate.set()
                assert await handle.result() == "ok"
                texts = [text for role, text in await roles_and_texts(app) if role in ("tool", "user")]
                assert texts == ["go", "slow is done", "stop", "quick is done"]
                assert len(done) <= 2 + app.crashes  # repeated with the same key
                assert len(model.prompts) <= 3 + app.crashes
                assert (await app.replay("r")).value == "ok"


async def test_an_interrupt_stops_a_handoff_and_other_messages_go_along() -> None:
    """Without `interrupt`, the agent that takes over receives the message."""
    running, may_end = asyncio.Event(), asyncio.Event()

    @limpet.tool(effect="none", name="again_slow")
    async def slow() -> str:
        running.set()
        await may_end.wait()
        return "slow"

    def user_texts(request: Prompt) -> str:
        return "|".join(each.text for each in request.messages if each.role == "user")

    def first(request: Prompt) -> Any:
        if request.messages[-1].text == "stop":
            return "stopped"
        return (calls("again_slow"), calls("hand_over_to_again_second", input="x"))

    second = limpet.llm_agent("again_second", model=ScriptedModel(user_texts), instructions="Hear.")
    agent = limpet.llm_agent(
        "again_first", model=ScriptedModel(first), instructions="Go.", tools=[slow], handoffs=[second]
    )
    async with testing.app(agent, second) as app:
        for interrupt, result in ((True, "stopped"), (False, "go|stop|x")):
            running.clear()
            may_end.clear()
            handle = await app.start(agent, "go")
            await running.wait()
            await app.say(f"{handle.id}.chat", "stop", interrupt=interrupt)
            may_end.set()
            assert await handle.result() == result
            replayed = await app.replay(handle.id)
            assert (replayed.how, replayed.value) == ("returned", result)


async def test_a_run_that_crashed_before_its_end_replays_and_refuses_a_late_interrupt() -> None:
    agent = limpet.llm_agent("again_last", model=ScriptedModel("done"), instructions="Say.")
    async with testing.app(agent) as app:
        app.crash_at("before", "run.completed")
        await app.start(agent, "go", id="r")
        while not app._test_settings.faulty.is_down and not await app.is_settled():
            await asyncio.sleep(0)  # noqa: TID251 - a turn
        await app.settle()
        await app.store.get("r")
        found = await app.replay("r")
        assert (found.how, found.value) == ("returned", "done")
        with pytest.raises(limpet.WrongState):
            await app.signal("r", INTERRUPT, None)
