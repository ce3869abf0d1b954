"""A person approves a tool call with other arguments: the model is sent what was really done."""

from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.adapters.mcp import MCPTools
from limpet.testing import ScriptedModel, calls
from limpet.testing.app import TestApp
from tests.servers.mcp import command

CHANGED = 'A person changed the arguments to {"older_than_days":60}. '


@limpet.tool(effect="once", risk="danger", name="edited_clean")
async def clean(older_than_days: int = 7, path: str = "/") -> str:
    """Clean up."""
    if older_than_days > 60:
        raise limpet.NotApplied("nothing is so old")
    return f"{path} is clean of what is older than {older_than_days} days"


def cleaner(model: ScriptedModel, *tools: Any, **more: Any) -> limpet.Agent[str, str]:
    """Return an agent that asks before it cleans."""
    return limpet.llm_agent(
        "edited_cleaner",
        model=model,
        instructions="Clean.",
        tools=tools or [clean],
        approvals=limpet.Approvals("danger"),
        **more,
    )


async def tool_messages(app: TestApp, args: dict[str, Any] | None) -> list[str]:
    """Approve the request with these arguments, and return the tool messages that the model is sent."""
    await app.settle()
    [request] = await app.inbox()
    await app.approve(request, args=args, by="ann")
    assert await (await app.get("r")).result() == "done"
    assert (await app.replay("r")).value == "done"
    return [each.text for each in await app.messages("r.chat") if each.role == "tool"]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (None, "/ is clean of what is older than 30 days"),
        ({"older_than_days": 30}, "/ is clean of what is older than 30 days"),
        ({"older_than_days": 60}, f"{CHANGED}/ is clean of what is older than 60 days"),
        ({"older_than_days": 61}, f"{CHANGED.replace('60', '61')}It failed: limpet.NotApplied: nothing is so old"),
    ],
)
async def test_a_tool_message_says_that_a_person_changed_the_arguments(args: dict[str, Any] | None, text: str) -> None:
    """Only if they changed, and also if the call failed. Other calls of the same turn are unaffected."""
    model = ScriptedModel((calls("edited_clean", older_than_days=30, path="/"), calls("set_plan", items=["x"])), "done")
    agent = cleaner(model)
    async with testing.app(agent) as app:
        await app.start(agent, "go", id="r")
        assert await tool_messages(app, args) == [text, "noted"]
        assert [each.text for each in model.prompts[-1].messages if each.role == "tool"] == [text, "noted"]


@pytest.mark.parametrize("kind", ["request.answered", "step.started", "step.completed", "message.said", "wait.ended"])
async def test_a_tool_message_about_changed_arguments_survives_a_crash(kind: str) -> None:
    for when in ("before", "after"):
        agent = cleaner(ScriptedModel(calls("edited_clean", older_than_days=30), "done"))
        async with testing.app(agent) as app:
            await app.start(agent, "go", id="r")
            await app.settle()
            app.crash_at(when, kind)
            [request] = await app.inbox()
            await app.approve(request, args={"older_than_days": 60}, by="ann")
            await app.settle()
            for asked in await app.inbox():
                await app.answer(asked, {"applied": "clean"}, by="ann")
            assert await (await app.get("r")).result() == "done"
            [text] = [each.text for each in await app.messages("r.chat") if each.role == "tool"]
            assert text.startswith(CHANGED)


async def test_changed_arguments_that_are_too_long_are_stored_as_an_artifact() -> None:
    agent = cleaner(
        ScriptedModel(calls("edited_clean", path="/tmp"), "done"),
        budget=limpet.Budget(max_artifact_bytes_in_context=200),
    )
    async with testing.app(agent) as app:
        await app.start(agent, "go", id="r")
        [text] = await tool_messages(app, {"path": "/" * 190})
        assert text.startswith("A person changed the arguments to [201 bytes, put away as artifact ")


async def test_changed_arguments_of_an_mcp_tool_are_shown_as_the_model_knows_them(tmp_path: Path) -> None:
    letters = tmp_path / "letters"
    letters.touch()
    tools = MCPTools(command(letters), only=["send"], risks={"send": "danger"})
    agent = cleaner(ScriptedModel(calls("send", name="Ann", text="go away"), "done"), tools)
    async with testing.app(agent) as app:
        await app.start(agent, "go", id="r")
        [text] = await tool_messages(app, {"text": "hello"})
        changed = 'A person changed the arguments to {"name":"Ann","text":"hello"}. '
        assert text == changed + '{"sent":true,"to":"Ann"}'
