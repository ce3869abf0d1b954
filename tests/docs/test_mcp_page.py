"""The MCP page and the skill name only commands, options, tools and resources that exist."""

import json
import os
import re
from typing import Any

import pytest
import typer
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

import limpet
from limpet import Principal
from limpet.cli.commands import command
from limpet.mcp import server_of
from tests.docs.test_repository import ROOT, blocks
from tests.servers.preloaded import LIMPET

PAGE, SKILL = ROOT / "docs" / "mcp.md", ROOT / "skills" / "limpet" / "SKILL.md"
GROUP: Any = typer.main.get_command(command)
EVERYONE = Principal(name="ann", door="mcp", roles=("viewer", "operator", "approver", "auditor", "writer", "admin"))


def configurations() -> list[dict[str, Any]]:
    """Return the configurations of clients on the page."""
    return [json.loads(text)["mcpServers"]["limpet"] for text in blocks(PAGE, "text") if text.startswith("{")]


@pytest.mark.parametrize("page", [PAGE, SKILL], ids=lambda page: page.name)
def test_commands_and_their_options_exist(page: Any) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`(limpet [^`]+)`", text) + [
        line for block in blocks(page, "bash") for line in block.splitlines() if line.startswith("limpet ")
    ]
    assert named
    for words in named:
        found, rest = GROUP, words.split()[1:]
        while rest and hasattr(found, "commands") and rest[0] in found.commands:
            found = found.commands[rest.pop(0)]
        assert found is not GROUP or rest == ["--help"], words
        known = {option for each in found.params for option in each.opts} | {"--help"}
        assert {each for each in rest if each.startswith("--")} <= known, words


async def test_tools_resources_and_prompts_exist() -> None:
    """Every tool that can change something is on the page, and so is every resource."""
    async with limpet.open("memory:") as app, Client(server_of({"main": app}, local=EVERYONE)) as client:
        tools = {each.name: each for each in (await client.list_tools()).tools}
        resources = [each.uri for each in (await client.list_resources()).resources]
        templates = [each.uri_template for each in (await client.list_resource_templates()).resource_templates]
        prompts = [each.name for each in (await client.list_prompts()).prompts]
    page, skill = PAGE.read_text(encoding="utf-8"), SKILL.read_text(encoding="utf-8")
    rows = [line.split("|") for line in skill.splitlines() if line.startswith("| ") and "MCP tool" not in line]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row[2])}
    assert len(named) > 15
    assert named <= tools.keys()
    for each in tools.values():
        assert each.annotations is not None
        if not each.annotations.read_only_hint and "record" not in each.name:
            assert f"`{each.name}`" in page, each.name
    for uri in [*resources, *templates]:
        last = uri.removeprefix("limpet://runs/{run}") or uri
        assert uri.startswith("state://records") or last in page, uri
    assert all(f"`{name}`" in page for name in prompts)


async def test_the_configuration_of_a_command_works(tmp_path: Any) -> None:
    """The client gets an auditor's tools."""
    piped, remote = configurations()
    assert (remote["type"], remote["url"].endswith("/mcp")) == ("http", True)
    assert remote["headers"] == {"Authorization": "Bearer ${LIMPET_TOKEN}"}
    url = f"sqlite:///{tmp_path}/limpet.db"
    async with limpet.open(url, worker=False):
        pass
    args = [url if each.startswith("sqlite:") else each for each in piped["args"]]
    assert piped["command"] == "limpet"
    server = StdioServerParameters(command=LIMPET, args=args, env=dict(os.environ))
    async with Client(stdio_client(server)) as client:
        names = {each.name for each in (await client.list_tools()).tools}
    assert {"show", "context"} <= names
    assert "start" not in names


def test_the_skill_has_its_front_matter() -> None:
    """A name that is its folder's, and a description that says when to use it, within the limits of skills."""
    front = re.match(r"---\nname: (.+)\ndescription: (.+)\n---\n", SKILL.read_text(encoding="utf-8"))
    assert front is not None
    assert front[1] == SKILL.parent.name
    assert 100 < len(front[2]) < 1024
    assert len(SKILL.read_text(encoding="utf-8").splitlines()) < 120
