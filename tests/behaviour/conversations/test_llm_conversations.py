"""Conversations of LLM agents: several runs in one conversation, and messages that arrive late."""

from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.clock import SystemClock
from limpet.events import bodies as b
from limpet.events import inline
from limpet.journal import ConversationWriter
from limpet.llm.model import Prompt, Reply
from limpet.llm.transcript import UNDER_WAY
from limpet.stores import Extend
from limpet.testing import ScriptedModel, calls

ECHO = ScriptedModel(lambda request: f"re {request.messages[-1].text}")
paid: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_paid() -> None:
    paid.clear()


def payer(**how: Any) -> Any:
    """Return a tool that pays."""

    @limpet.tool(effect="once", name="again_pay", **how)
    async def pay(order: str) -> str:
        paid.append(order)
        return f"receipt {order}"

    return pay


def pays(request: Prompt) -> Any:
    """Reply to a prompt: pay once, or say hello if a payment is pending."""
    said = [each.text for each in request.messages[1:]]
    if "receipt o-1" in said:
        return "done"
    return "hello" if UNDER_WAY in said else calls("again_pay", order="o-1")


async def test_a_second_run_leaves_the_pending_tool_call_of_the_first_alone() -> None:
    """It invents no result for the call, and nothing is paid twice."""
    agent = limpet.llm_agent(
        "again_desk",
        model=ScriptedModel(pays),
        instructions="Pay.",
        tools=[payer(risk="money")],
        approvals=limpet.Approvals("money"),
    )
    async with testing.app(agent) as app:
        await app.start(agent, "pay", id="one", conversation="c")
        await app.settle()
        assert await app.run(agent, "hi", id="two", conversation="c") == "hello"
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        assert await (await app.get("one")).result() == "done"
        assert paid == ["o-1"]
        said = [(each.role, each.text) for each in await app.messages("c")]
        assert [text for role, text in said if role == "tool"] == ["receipt o-1"]
        for run, step in (("one", 1), ("one", 3), ("two", 1)):
            assert (await app.prompt(run, step=step)).is_exact


async def test_a_message_that_arrives_too_late_is_kept_in_the_conversation() -> None:
    """Also in a run's own conversation, and only once when a failed run is resumed."""
    broken = True

    async def fails(run: limpet.Run, request: Prompt, ask: Any) -> Reply:
        await app.say("r.chat", "also this")
        if broken:
            raise ValueError("it is down")
        reply: Reply = await ask(request)
        return reply

    agent = limpet.llm_agent("again_late", model=ScriptedModel("done", "done"), instructions="Say.", choose=fails)
    async with testing.app(agent) as app:
        await app.start(agent, "go", id="r")
        await app.settle()
        assert (await app.info("r")).status == "failed"
        broken = False
        await app.resume("r")
        await app.settle()
        said = [each.text for each in await app.messages("r.chat")]
        assert said.count("also this") == 2  # it was said in each of the two executions
        assert said[0] == "go"


async def test_a_user_signal_that_is_not_text_is_added_as_json() -> None:
    agent = limpet.llm_agent(
        "again_signal", model=ScriptedModel(calls("ask_person", question="?"), "x", "y"), instructions="Say."
    )
    async with testing.app(agent) as app:
        await app.start(agent, "go", id="r")
        await app.settle()
        await app.signal("r", "user", {"a": 1})
        await app.answer((await app.inbox())[0], "yes", by="ann")
        await app.settle()
        assert '{"a":1}' in [each.text for each in await app.messages("r.chat")]


async def texts(app: limpet.App) -> list[str]:
    """Return the texts of the conversation."""
    return [each.text for each in await app.messages("c")]


async def test_a_start_continues_after_what_other_processes_wrote_or_deleted(tmp_path: Path) -> None:
    """The app tries to continue after the last message that it knows, and looks again if that is not the last one."""
    url, agent = f"sqlite:///{tmp_path}/limpet.db", limpet.llm_agent("ends_talker", model=ECHO, instructions="Talk.")
    async with limpet.open(url, agents=[agent]) as one, limpet.open(url, agents=[agent]) as other:
        assert await one.run(agent, "a", conversation="c") == "re a"
        assert await other.run(agent, "b", conversation="c") == "re b"
        assert await one.run(agent, "c", conversation="c") == "re c"
        assert await texts(one) == ["a", "re a", "b", "re b", "c", "re c"]
        runs = {each.id: await other.store.get(each.id) for each in await other.runs()}
        assert await other.store.prune({id: row.head for id, row in {**runs, "c": await other.store.get("c")}.items()})
        assert await one.run(agent, "d", conversation="c") == "re d"
        assert await texts(one) == ["d", "re d"]
        assert (await one.verify()).conversations == 1


async def test_runs_that_answer_in_one_conversation_at_the_same_time_all_have_their_reply(tmp_path: Path) -> None:
    """Each reply is written together with the end of its run, after what the others have said meanwhile."""
    agent = limpet.llm_agent("ends_together", model=ECHO, instructions="Talk.")
    async with limpet.open(f"sqlite:///{tmp_path}/limpet.db", agents=[agent]) as app:
        handles = [await app.start(agent, f"m{n}", conversation="c") for n in range(8)]
        results = [await each.result() for each in handles]
        said = await app.messages("c")
        assert sorted(each.text for each in said if each.role == "assistant") == sorted(results)
        assert len(said) == 16
        assert [(await app.replay(each.id)).value for each in handles] == results
        assert (await app.verify()).conversations == 1


async def test_a_message_that_a_run_has_not_received_is_kept_after_what_others_write_as_it_ends() -> None:
    apps: list[limpet.App] = []

    async def replies(_: Prompt) -> str:
        await apps[0].say("c", "later")
        return "done"

    agent = limpet.llm_agent("ends_unread", model=ScriptedModel(replies), instructions="Talk.")
    async with testing.app(agent) as app:
        apps.append(app)
        append, others = app.store.append, ["from another"]

        async def appending(*legs: Any, **more: Any) -> Any:
            bodies = [sealed.body for leg in legs if isinstance(leg, Extend) for sealed in leg.events]
            if others and any(isinstance(each, b.RunCompleted) for each in bodies):
                talk = ConversationWriter(app.store, "c", SystemClock().now, "other", b.ConversationCreated())
                await talk.append(b.MessageAdded(message="m", role="user", content=inline(others.pop())))
            return await append(*legs, **more)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(app.store, "append", appending)
            assert await app.run(agent, "go", id="r", conversation="c") == "done"
        assert await texts(app) == ["go", "done", "from another", "later"]


async def test_a_run_that_is_cancelled_with_its_answer_keeps_the_answer() -> None:
    """The model has answered, and was paid for it."""
    apps: list[limpet.App] = []

    async def replies(request: Prompt) -> str:
        await apps[0].cancel("r", reason="enough")
        return "done"

    agent = limpet.llm_agent("ends_cancelled", model=ScriptedModel(replies), instructions="Talk.")
    async with testing.app(agent) as app:
        apps.append(app)
        await app.start(agent, "hi", id="r", conversation="c")
        await app.settle()
        assert (await app.store.get("r")).status == "cancelled"
        assert await texts(app) == ["hi", "done"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["step.started", "step.completed", "message.said", "run.completed"])
async def test_a_reply_and_its_message_are_stored_together(when: Any, kind: str) -> None:
    """An answer also with the end of its run. A crash before that asks the model again; after it, never. The reply is
    too large to be inline in its event.
    """
    asked: list[str] = []

    def replies(request: Prompt) -> str:
        asked.append(request.messages[-1].text)
        return "a long reply " * 2_000

    agent = limpet.llm_agent("together_talker", model=ScriptedModel(replies), instructions="Talk.")
    async with testing.app(agent) as app:
        app.crash_at(when, kind)
        assert await app.run(agent, "hi", id="r", conversation="c") == "a long reply " * 2_000
        assert app.crashes == 1
        assert len(asked) == (1 if when == "after" else 2)
        kinds = [event.kind async for event in (await app.get("r")).events()]
        completed = kinds.index("step.completed")
        assert kinds[completed + 1] == "message.said"
        assert [(each.role, len(each.text)) for each in await app.messages("c")] == [("user", 2), ("assistant", 26_000)]
        assert (await app.replay("r")).value == "a long reply " * 2_000
