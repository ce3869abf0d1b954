"""MCP over HTTP: streams beside JSON replies, tokens, tenants, limits and headers, through the guard of the server."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import pytest
import uvicorn
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.subscriptions import ResourceUpdated
from mcp_types import HEADER_MISMATCH

import limpet
from limpet import Principal
from limpet.mcp import over_http
from limpet.web import asgi
from tests.interfaces.mcp.harbour import AGENTS, asker, data_of, waiting, worker

RUN = "limpet://runs/r"
CALLERS = {
    "o" * 30: Principal(name="olga", roles=("operator", "approver"), groups=("finance",)),
    "v" * 30: Principal(name="vera", roles=("viewer",)),
    "a" * 30: Principal(name="ann", roles=("operator",), tenant="acme"),
}
OLGA, VERA, ANN = CALLERS
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}


class Network:
    """A server on a port of this machine, and clients of it."""

    def __init__(self, apps: Mapping[str, limpet.App], url: str, stopping: asyncio.Event) -> None:
        self.apps, self.url, self.stopping, self._stack = apps, url, stopping, AsyncExitStack()

    async def http(self, token: str) -> httpx2.AsyncClient:
        """Return an HTTP client with a token."""
        headers = {"authorization": f"Bearer {token}", "accept": "application/json, text/event-stream"}
        return await self._stack.enter_async_context(httpx2.AsyncClient(headers=headers, base_url=self.url, timeout=30))

    async def mcp(self, token: str, **more: Any) -> Client:
        """Return an MCP client with a token."""
        http = await self.http(token)
        transport = streamable_http_client(f"{self.url}/mcp", http_client=http)
        return await self._stack.enter_async_context(Client(transport, **more))

    async def aclose(self) -> None:
        await self._stack.aclose()


@asynccontextmanager
async def network() -> AsyncIterator[Network]:
    """Serve two tenants over HTTP."""
    callers = dict(CALLERS)
    async with limpet.open("memory:", agents=AGENTS) as app, limpet.open("memory:", agents=AGENTS) as acme:
        apps = {"main": app, "acme": acme}
        inside, enter = over_http(apps)
        stopping = asyncio.Event()
        served = asgi(app, tenants=apps, auth=callers.get, also={"/mcp": (inside, AsyncExitStack)}, stopping=stopping)
        config = uvicorn.Config(served, port=0, log_level="warning", lifespan="off", timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        async with enter():
            serving = asyncio.create_task(server.serve())
            while not server.started:
                await asyncio.sleep(0)  # noqa: TID251 - an iteration of the loop
            port = server.servers[0].sockets[0].getsockname()[1]
            found = Network(apps, f"http://127.0.0.1:{port}", stopping)
            try:
                yield found
            finally:
                stopping.set()
                await found.aclose()
                server.should_exit = True
                await serving


async def take(stream: Any, wanted: Any) -> None:
    async with asyncio.timeout(20):
        async for event in stream:
            if event == wanted:
                return


async def test_subscriptions_stream_and_hold_no_turn() -> None:
    """More of them than large operations at once, while other requests are answered."""
    async with network() as net:
        client = await net.mcp(OLGA)
        async with AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(client.listen(resource_subscriptions=[RUN])) for _ in range(12)]
            assert len((await data_of(client, "runs"))["items"]) == 0
            await net.apps["main"].run(worker, "x", id="r")
            for stream in streams:
                await take(stream, ResourceUpdated(RUN))


async def test_a_tenant_hears_nothing_of_another() -> None:
    async with network() as net:
        olga, ann = await net.mcp(OLGA), await net.mcp(ANN)
        async with (
            olga.listen(resource_subscriptions=[RUN]) as ours,
            ann.listen(resource_subscriptions=[RUN]) as theirs,
        ):
            await net.apps["main"].run(worker, "bollard", id="r")
            await take(ours, ResourceUpdated(RUN))
            await net.apps["acme"].run(worker, "capstan", id="other")
            with pytest.raises(MCPError):
                await ann.read_resource(RUN)
            assert theirs.honored.resource_subscriptions == [RUN]
            waited = asyncio.create_task(take(theirs, ResourceUpdated(RUN)))
            await data_of(ann, "runs")
            assert not waited.done()
            await net.apps["acme"].run(worker, "capstan", id="r")
            await waited


async def test_a_stream_ends_when_the_token_is_revoked() -> None:
    """Within a second, with the next change."""
    async with network() as net:
        app = net.apps["main"]
        client = await net.mcp((await app.create_token("ed", roles=["operator"])).token)

        async def change() -> None:
            while True:
                await app.run(worker, "x")

        async with client.listen(resource_subscriptions=["limpet://sessions"]) as stream:
            [info] = await app.tokens()
            await app.revoke_token(info.id)
            changing = asyncio.create_task(change())
            async with asyncio.timeout(20):
                async for _ in stream:
                    pass
            changing.cancel()
            with pytest.raises(MCPError):
                await client.list_tools()


async def test_a_stream_ends_when_the_server_stops() -> None:
    """With its last reply, so that the client knows that nothing was lost on the way."""
    async with network() as net:
        client = await net.mcp(OLGA)
        async with client.listen(resource_subscriptions=[RUN]) as stream:
            net.stopping.set()
            async with asyncio.timeout(20):
                assert [event async for event in stream] == []


async def test_a_stream_tells_of_tasks() -> None:
    """With the whole task, to clients that support tasks."""
    extensions: dict[str, Any] = {"io.modelcontextprotocol/tasks": {}}
    capable = {**META, "io.modelcontextprotocol/clientCapabilities": {"extensions": extensions}}
    wanted = {"taskIds": ["r"]}
    async with network() as net:
        http = await net.http(OLGA)
        refused = await http.post(
            "/mcp",
            json=message("subscriptions/listen", notifications=wanted),
            headers=headers("subscriptions/listen"),
        )
        assert refused.json()["error"]["code"] == -32021
        sent = message("subscriptions/listen", notifications=wanted, _meta=capable)
        heard: list[Any] = []
        async with http.stream("POST", "/mcp", json=sent, headers=headers("subscriptions/listen")) as stream:
            async for line in stream.aiter_lines():
                if not line.startswith("data: "):
                    continue
                heard.append(json.loads(line.removeprefix("data: ")))
                if len(heard) == 1:
                    await net.apps["main"].run(worker, "x", id="r")
                elif heard[-1]["params"]["status"] == "completed":
                    break
        assert heard[0]["params"]["notifications"] == wanted
        assert {each["method"] for each in heard[1:]} == {"notifications/tasks"}
        assert heard[-1]["params"]["result"]["structuredContent"]["output"] == "x"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_progress_streams_where_other_replies_are_json(mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    begun = asyncio.Event()

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async with network() as net:
        client, app = await net.mcp(OLGA, mode=mode), net.apps["main"]
        request = await waiting(app, asker, "boats", "r")
        events = app.events

        def watched(*given: Any) -> Any:
            begun.set()
            return events(*given)

        monkeypatch.setattr(app, "events", watched)
        waited = asyncio.create_task(client.call_tool("wait", {"run": "r"}, progress_callback=progress))
        await begun.wait()
        await data_of(client, "answer", request=request.id, answer="red")
        found = (await waited).structured_content
        assert found is not None
        assert found["output"] == "red"
        assert seen


def message(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": META, **params}}


def headers(method: str, name: str | None = None) -> dict[str, str]:
    found = {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
    return found if name is None else {**found, "mcp-name": name}


async def test_only_tools_that_may_take_long_can_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream takes tasks of its own, also if it is not needed."""
    plain: list[bool] = []
    handle = StreamableHTTPSessionManager.handle_request

    async def handled(self: StreamableHTTPSessionManager, *given: Any) -> None:
        plain.append(self.json_response)
        await handle(self, *given)

    monkeypatch.setattr(StreamableHTTPSessionManager, "handle_request", handled)
    async with network() as net:
        await net.apps["main"].run(worker, "x", id="r")
        http = await net.http(OLGA)
        for name in ("info", "wait", "show", "context"):
            asked = message("tools/call", name=name, arguments={"run": "r"})
            answer = await http.post("/mcp", json=asked, headers=headers("tools/call", name))
            assert answer.json()["result"]["structuredContent"], name
    assert plain == [True, False, False, False]


async def test_replies_are_json_unless_there_is_something_to_say() -> None:
    async with network() as net:
        http = await net.http(OLGA)
        for method, name, params in (
            ("tools/list", None, {}),
            ("tools/call", "runs", {"name": "runs", "arguments": {}}),
            ("resources/read", "limpet://inbox", {"uri": "limpet://inbox"}),
        ):
            answer = await http.post("/mcp", json=message(method, **params), headers=headers(method, name))
            assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json"), answer.text
            assert "result" in answer.json()
        old = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "runs", "arguments": {}}}
        answer = await http.post("/mcp", json=old, headers={"mcp-protocol-version": "2025-11-25"})
        assert answer.headers["content-type"] == "application/json"


async def test_headers_of_tasks_must_match() -> None:
    capabilities: dict[str, Any] = {
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    }
    async with network() as net:
        await net.apps["main"].run(worker, "x", id="r")
        http = await net.http(OLGA)
        sent = message("tasks/get", taskId="r", _meta={**META, **capabilities})
        right = await http.post("/mcp", json=sent, headers=headers("tasks/get", "r"))
        assert right.json()["result"]["status"] == "completed"
        for name in ("other", None):
            wrong = await http.post("/mcp", json=sent, headers=headers("tasks/get", name))
            assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, HEADER_MISMATCH)
        plain = await http.post("/mcp", json=message("tasks/get", taskId="r"), headers=headers("tasks/get", "r"))
        assert plain.json()["error"]["code"] == -32021


async def test_every_method_needs_a_token_a_host_and_no_foreign_page() -> None:
    """Also streams and tasks, with either protocol; a large body is refused before it is read."""
    methods = ["tools/list", "tools/call", "resources/read", "subscriptions/listen", "tasks/get", "prompts/get"]
    async with network() as net:
        http = await net.http(OLGA)
        for method in methods:
            for more in ({}, headers(method)):
                sent = {"json": message(method), "headers": more}
                for bad, status in (
                    ({"authorization": ""}, 401),
                    ({"authorization": "Bearer " + "x" * 30}, 401),
                    ({"host": "evil.example"}, 421),
                    ({"origin": "http://evil.example"}, 403),
                    ({"origin": "null"}, 403),
                ):
                    answer = await http.post("/mcp", json=sent["json"], headers={**more, **bad})
                    assert answer.status_code == status, (method, bad)
                large = await http.post("/mcp", content=b"x" * (4 * 2**20 + 1), headers=more)
                assert large.status_code == 413
        for verb in ("GET", "DELETE", "PUT", "PATCH", "OPTIONS"):
            assert (await http.request(verb, "/mcp")).status_code == 405
        broken = await http.post("/mcp", content=json.dumps(message("tools/list"))[:-5], headers=headers("tools/list"))
        assert broken.status_code == 400
        assert len((await (await net.mcp(OLGA)).list_tools()).tools) > 5


async def test_a_viewer_has_a_viewers_tools() -> None:
    async with network() as net:
        client = await net.mcp(VERA)
        assert {each.name for each in (await client.list_tools()).tools} == {"runs", "agents", "query"}
        assert (await data_of(client, "start", agent="harbour_worker"))["code"] == "not_permitted"
