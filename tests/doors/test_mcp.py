"""What an agent of somebody else sees over MCP: tools that only read, and the state of each task as a resource."""

import json
import os
import subprocess
from typing import Any

import httpx
import pytest
from mcp import MCPError
from mcp_types import INVALID_PARAMS, TextResourceContents

import limpet
from limpet import testing
from limpet.adapters.mcp import MCPTools
from limpet.service.questions import QUESTIONS
from tests.doors.stage import LIMPET, TOKEN, called, over_http, over_pipes

STATE = "state://agents/doors_support/tasks/refund-50"


async def test_over_both_ways(url: str, server: httpx.Client) -> None:
    """The newest protocol; every question is a tool that says of itself that it only reads."""
    async with over_pipes(url) as pipes, over_http(server) as http:
        for client in (pipes, http):
            assert client.protocol_version == "2026-07-28"
            assert client.server_info is not None
            assert client.server_info.version == limpet.__version__
            tools = (await client.list_tools()).tools
            assert [each.name for each in tools] == [*QUESTIONS]
            assert all(each.annotations is not None and each.annotations.read_only_hint for each in tools)
            assert all(each.input_schema["additionalProperties"] is False for each in tools)


async def test_resources(url: str, server: httpx.Client) -> None:
    """Where each task is, and what its agent goes by, under an address that is made of names."""
    async with over_pipes(url) as pipes, over_http(server) as http:
        for client in (pipes, http):

            async def read(address: str, client: Any = client) -> Any:
                [content] = (await client.read_resource(address)).contents
                assert isinstance(content, TextResourceContents)
                assert (content.uri, content.mime_type) == (address, "application/json")
                return json.loads(content.text)

            listed = {each.uri: each for each in (await client.list_resources()).resources}
            assert listed[STATE].description == "completed: settle 50"
            state = await read(STATE)
            [artifact] = state.pop("artifacts")
            assert state == {
                "uri": STATE,
                "agent_id": "doors_support",
                "task_id": "refund-50",
                "state": "completed",
                "plan": ["look", "pay"],
            }
            context = await read("limpet://runs/refund-50/context")
            assert context == await called(client, "context", run="refund-50")
            assert context["artifacts"][0]["artifact_id"] == artifact
            assert await read("limpet://runs/refund%2D50/context") == context
            templates = (await client.list_resource_templates()).resource_templates
            assert [each.uri_template for each in templates] == [
                "state://agents/{agent}/tasks/{task}",
                "limpet://runs/{run}/context",
            ]


@pytest.mark.parametrize(
    "address",
    [
        "state://agents/doors_letter/tasks/refund-50",
        "state://agents/doors_support/tasks/refund-51",
        "state://agents/doors_support/tasks/chat-7",
        "state://agents/doors_support/tasks/x%2F..%2Frefund-50",
        "state://agents/doors_support/tasks/refund-50/",
        "state://agents//tasks/refund-50",
        "limpet://runs/chat-7/context",
        "limpet://runs/refund-50/../refund-50/context",
        "limpet://runs/refund-50/log",
        "limpet://runs/%00/context",
        "file:///etc/passwd",
        "http://localhost/",
    ],
)
async def test_addresses_that_lead_nowhere(server: httpx.Client, address: str) -> None:
    """A task of another agent, one that is not there, a way around: the client's mistake, told with the cure."""
    async with over_http(server) as client:
        with pytest.raises(MCPError) as refused:
            await client.read_resource(address)
        assert refused.value.code == INVALID_PARAMS
        assert refused.value.data["cure"]


async def test_a_tool_that_is_not_there(server: httpx.Client) -> None:
    async with over_http(server) as client:
        with pytest.raises(MCPError) as refused:
            await client.call_tool("approve", {"request": "1"})
        assert refused.value.data["code"] == "not_found"


def test_over_http_there_is_one_way_in(server: httpx.Client) -> None:
    """Messages are posted, as JSON, and not larger than can be meant."""
    accept = {"accept": "application/json, text/event-stream"}
    ping: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert server.post("/mcp", json=ping, headers={"authorization": ""}).status_code == 401
    assert server.post("/mcp", json=ping, headers={"origin": "http://evil.example"}).status_code == 403
    assert server.post("/mcp", json=ping, headers={"host": "evil.example"}).status_code == 421
    for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"):
        answer = server.request(method, "/mcp", headers=accept)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert server.post("/mcp", content=b"x" * (4 * 2**20 + 1), headers=accept).status_code == 413
    chunks = (b"x" * 2**20 for _ in range(5))
    assert server.post("/mcp", content=chunks, headers=accept).status_code == 413
    assert server.post("/mcp", content=b"{", headers={**accept, "content-type": "application/json"}).status_code == 400


async def test_one_agent_goes_on_from_what_another_knows(url: str) -> None:
    """Through our own client: the tools are steps of its run, and what they said is recorded."""
    model = testing.ScriptedModel(testing.calls("context", run="refund-950", max_tokens=200), "It was settle 950.")
    tools = MCPTools([LIMPET, "mcp", "--url", url], name="limpet", only=["context"], trust_hints=True)
    agent = limpet.llm_agent("doors_reader", model=model, instructions="Look.", tools=[tools])
    async with testing.app(agent) as app:
        assert await app.run(agent, "what was the goal?", id="r") == "It was settle 950."
        [said] = [each.text for each in model.requests[-1].messages if each.role == "tool"]
        assert json.loads(said)["goal"] == "settle 950"


@pytest.mark.parametrize("words", [["mcp"], ["serve", "--port", "0"]])
def test_there_is_no_store(tmp_path: Any, words: list[str]) -> None:
    """It is said, and none is made."""
    url = f"sqlite:///{tmp_path}/none.db"
    done = subprocess.run(
        [LIMPET, *words, "--url", url, "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "LIMPET_TOKEN": TOKEN},
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert json.loads(done.stderr)["code"] == "no_store"
    assert not list(tmp_path.iterdir())
