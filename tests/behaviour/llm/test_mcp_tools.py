"""Tools of real MCP servers over pipes and HTTP: listed once, called as steps, never repeated blindly."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.adapters.mcp import MCPTools
from limpet.engine.definitions.tools import Tool
from limpet.engine.definitions.traits import Traits
from limpet.errors import DefinitionError
from limpet.llm.tools import CallableTool
from limpet.testing import ScriptedModel, calls
from tests.servers.mcp import command, serving


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    """The file that records sent letters."""
    file = tmp_path / "letters"
    file.touch()
    return file


@pytest.fixture(params=["pipes", "http"])
def server(request: pytest.FixtureRequest, letters: Path) -> Iterator[Any]:
    """A running server, as it is passed to the agent."""
    with serving(request.param, letters) as named:
        yield named


def helper(model: ScriptedModel, tools: MCPTools, **more: Any) -> limpet.Agent[str, str]:
    """Return an agent with the tools of a server."""
    return limpet.llm_agent("mcp_helper", model=model, instructions="Help.", tools=[tools], **more)


async def test_mcp_tools_are_called_as_steps(server: Any, letters: Path) -> None:
    """The tool list is recorded, arguments are validated by its schema, and the idempotency key is sent along."""
    model = ScriptedModel(
        calls("lookup", name="Ann"),
        calls("send", name="Ann"),
        calls("send", name="Ann", text="hello"),
        calls("odd_name", how="badly"),
        "done",
    )
    agent = helper(model, MCPTools(server, name="desk", effects={"lookup": "none"}))
    async with testing.app(agent) as app:
        assert await app.run(agent, "write to Ann", id="r") == "done"
        said = [each.text for each in model.prompts[-1].messages if each.role == "tool"]
        assert said[0] == "Ann lives at 7 Harbour Road"
        assert "do not fit" in said[1]
        assert said[2] == '{"sent":true,"to":"Ann"}'
        assert '"is_error":true' in said[3]
        assert "it failed: badly" in said[3]
        started = [each.body for each in await app.log("r") if each.kind == "step.started"]
        assert [each["tool"] for each in started if each.get("kind") != "model"] == [
            "tools of desk",
            "lookup",
            "send",
            "odd_name",
        ]
        [sent] = [each for each in started if each["tool"] == "send"]
        assert (sent["effect"], sent["args"]["json"]) == ("once", {"name": "Ann", "text": "hello"})
        assert letters.read_text() == f"Ann: hello {sent['key']}\n"
        assert (await app.prompt("r", step=2)).is_exact
        assert "lookup" in [each.name for each in model.prompts[0].tools]


async def test_a_server_that_dies_in_a_call_leaves_an_unknown_outcome(letters: Path) -> None:
    """A person resolves it, and the next call starts the server again."""
    model = ScriptedModel(calls("odd.name", how="die"), calls("odd_name", how="die"), calls("lookup", name="Bo"), "ok")
    agent = helper(model, MCPTools(command(letters), only=["lookup", "odd.name"]))
    async with testing.app(agent) as app:
        handle = await app.start(agent, "go", id="r")
        await app.settle()
        [request] = await app.inbox()
        assert (request.kind, request.tool) == ("unknown", "odd_name")
        await app.answer(request, {"applied": "yes"}, by="me")
        assert await handle.result() == "ok"
        said = [each.text for each in model.prompts[-1].messages if each.role == "tool"]
        assert said[0].startswith("There is no tool 'odd.name'")
        assert said[1:] == ["yes", "Bo lives at 7 Harbour Road"]


async def test_a_resumed_run_uses_the_recorded_tool_list(letters: Path) -> None:
    """The server is not needed until a tool is called."""
    model = ScriptedModel(calls("ask_person", question="Really?"), "done")
    agent = helper(model, MCPTools(command(letters), name="desk", risks={"send": "external_action"}))
    async with testing.app(agent) as app:
        await app.start(agent, "go", id="r")
        await app.settle()
        await app.crash()
        agent.llm.toolboxes[0]._server = ("there-is-no-such-command",)
        [request] = await app.inbox()
        await app.answer(request, "yes", by="me")
        assert await (await app.get("r")).result() == "done"


async def test_an_unreachable_server_fails_the_run() -> None:
    """Listing its tools is retried first."""
    agent = helper(ScriptedModel("x"), MCPTools(["there-is-no-such-command"], name="desk"))
    async with testing.app(agent) as app:
        with pytest.raises(limpet.RunFailed, match="cannot be reached"):
            await app.run(agent, "go", id="r")


async def test_trust_hints_uses_the_servers_hints_and_unknown_tool_names_are_refused(letters: Path) -> None:
    believed = MCPTools(command(letters), trust_hints=True)
    agent = helper(ScriptedModel(calls("lookup", name="Ann"), "done"), believed)
    wrong = limpet.llm_agent(
        "mcp_wrong",
        model=ScriptedModel("x"),
        instructions="x",
        tools=[MCPTools(command(letters), effects={"fly": "once"})],
    )
    async with testing.app(agent, wrong) as app:
        await app.run(agent, "go", id="r")
        effects = {each.body["tool"]: each.body["effect"] for each in await app.log("r") if each.kind == "step.started"}
        assert effects["lookup"] == "none"
        with pytest.raises(limpet.RunFailed, match="the server has no fly"):
            await app.run(wrong, "go", id="w")
    with pytest.raises(DefinitionError, match="use none, idempotent, once"):
        MCPTools("http://x", effects={"send": "transaction"})


class NestedTools(MCPTools):
    """Tools as 0.1.0 called them: with one argument that has all arguments in it."""

    def callable_tools(self, listed: Sequence[Mapping[str, Any]]) -> list[CallableTool]:
        def nested(each: CallableTool) -> CallableTool:
            async def call(arguments: dict[str, Any]) -> Any:
                return f"{arguments['name']} lives far away"

            tool: Tool[..., Any, Any] = Tool(call, each.spec.name, Traits(effect="once"))

            async def does(run: limpet.Run, args: dict[str, Any]) -> Any:
                return await run.step(tool, args)

            return each._replace(execute=does)

        return [nested(each) for each in super().callable_tools(listed)]


async def test_a_run_of_an_earlier_version_continues(letters: Path) -> None:
    """Its recorded calls have their arguments in one; later ones do not."""

    def made(kind: type[MCPTools]) -> limpet.Agent[str, str]:
        model = ScriptedModel(
            calls("lookup", name="Bo"), calls("ask_person", question="?"), calls("lookup", name="Ann"), "ok"
        )
        return helper(model, kind(command(letters), name="desk"))

    async with testing.app(made(NestedTools)) as app:
        handle = await app.start("mcp_helper", "go", id="r")
        await app.settle()
        app.deploy(made(MCPTools))
        await app.crash()
        [request] = await app.inbox()
        await app.answer(request, "yes", by="me")
        assert await handle.result() == "ok"
        args = [each.body["args"]["json"] for each in await app.log("r") if each.body.get("tool") == "lookup"]
        assert args == [{"arguments": {"name": "Bo"}}, {"name": "Ann"}]
