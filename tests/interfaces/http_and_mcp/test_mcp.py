"""MCP: tools, and the state of each task as a resource."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import INVALID_PARAMS, TextResourceContents

import limpet
from limpet import testing
from limpet.adapters.mcp import MCPTools
from limpet.mcp.tool_table import BEHIND_QUERY
from limpet.service.operation import operations_of
from tests.interfaces.http_and_mcp.clients import SERVERS, TOKEN, call_json, fill, over_http
from tests.servers import preloaded
from tests.servers.preloaded import LIMPET

OPERATIONS = {name: each for name, each in operations_of(limpet.App).items() if "mcp" in each.doors}

STATE = "state://agents/doors_support/tasks/refund-50"


@pytest.mark.asyncio(loop_scope="module")
async def test_the_tools_are_those_of_the_caller(server: httpx.Client, pipes: Client) -> None:
    """Over pipes and HTTP, with the newest protocol. Rare queries are behind one tool."""
    reading = {name for name, each in OPERATIONS.items() if not each.is_command} - BEHIND_QUERY | {"query"}
    deciding = {"answer", "approve", "reject"}
    changing = {name for name, each in OPERATIONS.items() if each.is_command} - deciding
    async with over_http(server) as http:
        for client, wanted in ((pipes, reading | deciding), (http, reading | changing)):
            assert client.protocol_version == "2026-07-28"
            assert client.server_info is not None
            assert client.server_info.version == limpet.__version__
            tools = (await client.list_tools()).tools
            assert {each.name for each in tools} == wanted | {"wait"}
            for each in tools:
                assert each.annotations is not None
                assert each.annotations.read_only_hint == (each.name in reading)
            assert all(each.input_schema["additionalProperties"] is False for each in tools)


@pytest.mark.asyncio(loop_scope="module")
async def test_state_and_context_are_resources(server: httpx.Client, pipes: Client) -> None:
    """The address consists of names."""
    async with over_http(server) as http:
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
            assert context == await call_json(client, "context", run="refund-50")
            assert context["artifacts"][0]["artifact_id"] == artifact
            assert await read("limpet://runs/refund%2D50/context") == context
            bare = "state://agents/doors_letter/tasks/letter-1"
            assert await read(bare) == {
                "uri": bare,
                "agent_id": "doors_letter",
                "task_id": "letter-1",
                "state": "waiting",
            }
            assert all([(await read(each))["uri"] == each for each in listed if each.startswith("state:")])
            templates = (await client.list_resource_templates()).resource_templates
            assert {each.uri_template for each in templates} >= {
                "state://agents/{agent}/tasks/{task}",
                "limpet://runs/{run}/context",
            }


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
        "limpet://runs/refund-50/events",
        "limpet://runs/%00/context",
        "file:///etc/passwd",
        "http://localhost/",
    ],
)
async def test_an_unknown_resource_address_is_refused(server: httpx.Client, address: str) -> None:
    """A task of another agent, a missing one, or a path traversal: INVALID_PARAMS with a hint."""
    async with over_http(server) as client:
        with pytest.raises(MCPError) as refused:
            await client.read_resource(address)
        assert refused.value.code == INVALID_PARAMS
        assert refused.value.data["hint"]


async def test_an_unknown_tool_is_refused(server: httpx.Client) -> None:
    async with over_http(server) as client:
        with pytest.raises(MCPError) as refused:
            await client.call_tool("approve_all", {"request": "1"})
        assert ", runs, show, step, " in refused.value.data["message"]


def test_mcp_over_http_accepts_only_posted_json_of_limited_size(server: httpx.Client) -> None:
    """It needs the same token, host and origin as the API."""
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


async def test_an_agent_reads_the_context_of_another_run_over_mcp(url: str) -> None:
    """The call is a recorded step of its run."""
    model = testing.ScriptedModel(testing.calls("context", run="refund-950", max_tokens=200), "It was settle 950.")
    tools = MCPTools(
        [LIMPET, "mcp", "--role", "auditor", "--url", url], name="limpet", only=["context"], trust_hints=True
    )
    agent = limpet.llm_agent("doors_reader", model=model, instructions="Look.", tools=[tools])
    async with testing.app(agent) as app:
        assert await app.run(agent, "what was the goal?", id="r") == "It was settle 950."
        [said] = [each.text for each in model.prompts[-1].messages if each.role == "tool"]
        assert json.loads(said)["goal"] == "settle 950"


async def test_mcp_tools_over_http_need_the_token(server: httpx.Client) -> None:
    """Without it, the run fails with the server's status after a single attempt."""

    def reader(name: str, token: str) -> limpet.Agent[str, str]:
        model = testing.ScriptedModel(testing.calls("context", run="letter-1"), "It waits.")
        headers = {"Authorization": limpet.Secret(f"Bearer {token}")}
        tools = MCPTools(f"{server.base_url}/mcp", only=["context"], trust_hints=True, headers=headers)
        return limpet.llm_agent(name, model=model, instructions="Look.", tools=[tools])

    good, bad = reader("doors_good", TOKEN), reader("doors_bad", "x" * 30)
    async with testing.app(good, bad) as app:
        assert await app.run(good, "where is it?", id="good") == "It waits."
        with pytest.raises(limpet.RunFailed, match="401"):
            await app.run(bad, "where is it?", id="bad")
        steps = [each for each in await app.log("bad") if each.kind == "step.started"]
        assert len(steps) == 1
        assert TOKEN not in str(await app.log("good"))
    with pytest.raises(limpet.DefinitionError, match="env="):
        MCPTools([LIMPET, "mcp"], headers={"a": "b"})


@pytest.mark.parametrize(
    ("words", "ends"), [(["mcp"], -signal.SIGINT), (["serve", "--port", "0", "--host", "127.0.0.1"], 0)]
)
def test_ctrl_c_ends_a_server_immediately(url: str, words: list[str], ends: int) -> None:
    """Without output, even if pressed twice."""
    process = subprocess.Popen(
        [LIMPET, *words, "--url", url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "LIMPET_TOKEN": TOKEN},
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
        process.stdin.flush()
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == ends
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_serve_refuses_a_port_in_use(server: httpx.Client, url: str) -> None:
    words = ["serve", "--url", url, "--port", str(server.base_url.port)]
    done = preloaded.run([LIMPET, *words], also=SERVERS)
    assert done.returncode == 2
    assert "is already in use. Pass --port" in done.stderr


@pytest.mark.parametrize("words", [["mcp"], ["serve", "--port", "0"]])
def test_servers_refuse_a_missing_store(tmp_path: Any, words: list[str]) -> None:
    """They do not create one."""
    url = f"sqlite:///{tmp_path}/none.db"
    env = {**os.environ, "LIMPET_TOKEN": TOKEN}
    done = preloaded.run([LIMPET, *words, "--url", url, "--json"], env=env, also=SERVERS)
    assert (done.returncode, done.stdout) == (1, "")
    assert json.loads(done.stderr)["code"] == "no_store"
    assert not list(tmp_path.iterdir())


async def test_mcp_with_an_app_changes_nothing_in_the_store(tmp_path: Path) -> None:
    """The app's module may print while it is imported; its agents are not saved."""
    (tmp_path / "spoken.py").write_text(
        "import limpet\nprint('hello from import')\n"
        "@limpet.agent(name='doors_unknown')\nasync def agent(run: limpet.Run, _: None) -> None: ...\n"
        "app = limpet.open(agents=[agent])\n"
    )
    url = f"sqlite:///{tmp_path}/limpet.db"
    await fill(url)
    words = ["mcp", "--url", url, "--app", "spoken:app"]
    server = StdioServerParameters(command=LIMPET, args=words, env=dict(os.environ), cwd=tmp_path)
    async with limpet.open(url, worker=False) as app, Client(stdio_client(server)) as client:
        before = await app.agents()
        assert len((await call_json(client, "agents"))["items"]) == len(before) == 3
        assert await app.agents() == before


@pytest.mark.parametrize(("words", "extra"), [(["mcp"], "mcp"), (["serve", "--port", "0"], "server")])
def test_a_missing_extra_is_named(url: str, words: list[str], extra: str) -> None:
    script = (
        "import importlib.util as util, sys; find = util.find_spec; "
        "util.find_spec = lambda name, *more: None if name in ('starlette', 'mcp') else find(name, *more); "
        "from limpet.main import main; main()"
    )
    command = [sys.executable, "-c", script, *words, "--url", url]
    done = preloaded.run(command)
    assert done.returncode == 1
    assert f"pip install 'limpet[{extra}]'" in done.stderr
