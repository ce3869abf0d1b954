"""Conversations of LLM agents: several runs in one conversation, and messages that arrive late."""

from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.llm.model import Prompt, Reply
from limpet.llm.transcript import UNDER_WAY
from limpet.testing import ScriptedModel, calls

paid: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_paid() -> None:
    paid.clear()


def payer(**how: Any) -> Any:
    """A tool that pays."""

    @limpet.tool(effect="once", name="again_pay", **how)
    async def pay(order: str) -> str:
        paid.append(order)
        return f"receipt {order}"

    return pay


def pays(request: Prompt) -> Any:
    """Pays what it is told to, once; says hello to everybody else."""
    said = [each.text for each in request.messages[1:]]
    if "receipt o-1" in said:
        return "done"
    return "hello" if UNDER_WAY in said else calls("again_pay", order="o-1")


async def test_what_another_run_calls_is_left_alone() -> None:
    """A second run in the conversation makes up no result for what the first waits to do; nothing is paid twice."""
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


async def test_what_is_said_too_late_is_kept_where_it_was_said() -> None:
    """Also where the run was started in no conversation, and once only when a failed one is resumed."""
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
        assert said.count("also this") == 2  # it was said in each life
        assert said[0] == "go"


async def test_what_is_no_text_is_heard_as_it_is() -> None:
    """A signal by that name may hold anything."""
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
