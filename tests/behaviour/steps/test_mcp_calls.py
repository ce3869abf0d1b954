"""Agents in code call the tools of a real MCP server, and read its resources, as steps with their own arguments."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.adapters.mcp import MCPTools
from tests.servers.mcp import command, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path]]:
    """A server over HTTP for most tests, and its file."""
    file = tmp_path_factory.mktemp("desk") / "letters"
    with serving("http", file) as named:
        yield named, file


@pytest.fixture
def letters(server: tuple[Any, Path]) -> Path:
    """The file that records sent letters, which is empty."""
    server[1].write_text("")
    return server[1]


@pytest.fixture
def desk(server: tuple[Any, Path]) -> Callable[..., MCPTools]:
    """Return a function that makes the tools of the server."""
    return lambda **more: MCPTools(server[0], name="desk", trust_hints=True, **more)


def lines(letters: Path) -> list[str]:
    return letters.read_text().splitlines()


Desk = Callable[..., MCPTools]


async def test_an_approval_shows_the_arguments_of_the_tool(desk: Desk, letters: Path) -> None:
    """A person edits one by its name; a fork and a replay make no call."""
    tools = desk(risks={"send": "external_action"})
    used: dict[limpet.Tool[..., Any, Any], None] = {}

    @limpet.agent(name="mcp_coder", approvals=limpet.Approvals("external_action"))
    async def coder(run: limpet.Run, name: str) -> Any:
        found = await tools.tools(run)
        used.update({found["send"]: None} if not used else {})
        where = await run.step(found["lookup"], name=name)
        return await run.step(found["send"].options(name="letter"), name=name, text=where)

    async with testing.app(coder) as app:
        handle = await app.start(coder, "Ann", id="r")
        await app.settle()
        [request] = await app.inbox()
        assert (request.tool, request.args) == ("send", {"name": "Ann", "text": "Ann lives at 7 Harbour Road"})
        assert request.schema is not None
        assert list(request.schema["properties"]) == ["name", "text"]
        with pytest.raises(limpet.InvalidAnswer, match="text"):
            await app.approve(request, by="ben", args={"name": "Ann", "text": 7})
        await app.approve(request, by="ben", args={"name": "Ann", "text": "hello"})
        assert await handle.result() == {"sent": True, "to": "Ann"}
        started = {each.body["name"]: each.body for each in await app.log("r") if each.kind == "step.started"}
        assert started["letter#1"]["args"]["json"] == {"name": "Ann", "text": "hello"}
        assert [each["effect"] for each in started.values()] == ["none", "none", "once"]
        assert lines(letters) == [f"Ann: hello {started['letter#1']['key']}"]
        [sender] = used
        assert app.calls(sender) == [{"name": "Ann", "text": "hello"}]
        fork = await app.fork("r", at=1, effects="stub")
        assert await fork.result() == {"sent": True, "to": "Ann"}
        assert len(lines(letters)) == 1


async def test_secrets_reach_the_server_and_not_the_log(desk: Desk, letters: Path) -> None:
    tools = desk()

    @limpet.agent(name="mcp_secretive")
    async def secretive(run: limpet.Run) -> Any:
        found = await tools.tools(run)
        return await run.step(found["send"], name="Ann", text=limpet.Secret("the key is under the mat"))

    async with testing.app(secretive) as app:
        await app.run(secretive, id="r")
        assert "under the mat" not in str(await app.log("r"))
        assert "[secret]" in str(await app.log("r"))
    assert lines(letters)[0].startswith("Ann: the key is under the mat ")


async def test_wrong_arguments_and_reported_errors_fail_the_step(desk: Desk, letters: Path) -> None:
    """Nothing is sent, no person is asked, and a reported error is not repeated."""
    tools = desk(retry=limpet.Retry(3))

    @limpet.agent(name="mcp_mistaken")
    async def mistaken(run: limpet.Run) -> list[str]:
        found, said = await tools.tools(run), []
        for args in ({"name": "Ann"}, {"name": "Ann", "text": 7}):
            try:
                await run.step(found["send"], **args)
            except limpet.InvalidArgument as error:
                said.append(str(error))
        try:
            await run.step(found["send"], "Ann")
        except TypeError as error:
            said.append(str(error))
        try:
            await run.step(found["odd.name"], how="badly")
        except limpet.StepFailed as error:
            said.append(str(error))
        return said

    async with testing.app(mistaken) as app:
        missing, wrong, positional, failed = await app.run(mistaken, id="r")
        assert "text" in missing
        assert "expected str, got int" in wrong
        assert "by name; it takes name, text" in positional
        assert "it failed: badly" in failed
        started = [each.body["tool"] for each in await app.log("r") if each.kind == "step.started"]
        assert started == ["tools of desk", "odd_name"]
    assert lines(letters) == []


async def test_a_killed_server_is_called_again_only_if_the_effect_allows_it(tmp_path: Path) -> None:
    """It died after it acted: an idempotent call is repeated with its key, and a call that is not goes to a person."""
    letters = tmp_path / "letters"
    letters.touch()
    retry = limpet.Retry(3, first="1ms")
    tools = MCPTools(command(letters), name="desk", trust_hints=True, retry=retry)

    @limpet.agent(name="mcp_survivor")
    async def survivor(run: limpet.Run, die: str) -> Any:
        found = await tools.tools(run)
        await run.step(found["stamp"], name="Ann", die=die)
        return await run.step(found["odd.name"], how="die")

    async with testing.app(survivor) as app:
        handle = await app.start(survivor, str(tmp_path / "died"), id="r")
        await app.settle()
        first, again = lines(letters)
        assert first == again
        assert first.startswith("Ann r:step_")
        [request] = await app.inbox()
        assert (request.kind, request.tool, request.args) == ("unknown", "odd_name", {"how": "die"})
        await app.answer(request, {"applied": "yes"}, by="me")
        assert await handle.result() == "yes"
        kinds = [each.kind for each in await app.log("r")]
        assert (kinds.count("step.unknown"), kinds.count("step.resolved")) == (1, 1)


async def test_resources_are_sources_with_the_time_to_live_of_the_server(desk: Desk, letters: Path) -> None:
    """Within that time the run uses its data; the source's own time to live takes precedence."""
    tools = desk()
    prices, brief = tools.resource("prices://{city}", name="prices"), tools.resource("prices://Cork", ttl="1s")

    @limpet.agent(name="mcp_reader")
    async def reader(run: limpet.Run) -> list[Any]:
        found = [await run.read(prices, "Rome"), await run.read(prices, "Rome"), await run.read(prices, city="a/b")]
        await run.read(brief)
        await run.sleep("30s")
        found += [await run.read(prices, "Rome"), await run.read(brief)]
        await run.sleep("31s")
        return [*found, await run.read(prices, "Rome")]

    async with testing.app(reader) as app:
        handle = await app.start(reader, id="r")
        await app.settle()
        await app.advance("30s")
        await app.advance("31s")
        found = await handle.result()
        assert found[0] == {"city": "Rome", "cents": 110}
        assert [each["city"] for each in found] == ["Rome", "Rome", "a/b", "Rome", "Cork", "Rome"]
        assert lines(letters) == ["read Rome", "read a/b", "read Cork", "read Cork", "read Rome"]
        facts = (await app.state("r")).working.known_facts
        assert {each.key for each in facts} == {'prices(city="Rome")', 'prices(city="a/b")', "desk prices://Cork"}
    with pytest.raises(limpet.DefinitionError, match="only plain variables"):
        tools.resource("x://{+path}")
    with pytest.raises(limpet.DefinitionError, match="ttl above 0"):
        tools.resource("x://y", ttl=0)
