"""The MCP server of a process: calls a second over HTTP and stdio, beside a minimal server on the same SDK.

Both servers run at the same time, and calls go to one and the other in turns, so that the machine is the same for both.
"""

import asyncio
import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import limpet

__all__ = ["mcp_calls", "mcp_start"]

LIMPET = str(Path(sys.executable).with_name("limpet"))
TOKEN = "0123456789abcdef0123456789abcdef"
REVISION = "2026-07-28"
BATCHES = 20
MINIMAL = """\
import os, socket, sys
from contextlib import asynccontextmanager
import uvicorn
from mcp.server import MCPServer

@asynccontextmanager
async def store(_):
    if "info" not in sys.argv:
        yield
        return
    global app
    import limpet
    async with limpet.open(sys.argv[3], worker=False) as app:
        yield

server = MCPServer("minimal", lifespan=store)

@server.tool()
def echo(text: str) -> str:
    return text

@server.tool()
async def info(run: str) -> dict[str, object]:
    import msgspec
    return msgspec.to_builtins(await app.info(run), enc_hook=str)

if "http" in sys.argv:
    listening = socket.create_server(("127.0.0.1", 0))
    named = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=listening.detach())
    print('{"url": "http://127.0.0.1:%d"}' % named.getsockname()[1], flush=True)
    os.dup2(2, 1)  # the access log, which ours writes to stderr
    app = server.streamable_http_app(json_response=True, stateless_http=True)
    config = uvicorn.Config(app, http="h11")
    uvicorn.Server(config).run([named])
else:
    server.run("stdio")
"""
WITH_ECHO = """\
import asyncio, sys
import mcp_types as t
import limpet
from limpet.mcp.offer import Offer, ToolOffer
from limpet.mcp.server import over_http, server_of
from mcp.server.stdio import stdio_server

URL, HOW, TOKEN = sys.argv[1:]
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

async def echo(_, wanted):
    said = wanted.arguments["text"]
    return t.CallToolResult(content=[t.TextContent(text=said)], structured_content={"result": said})

tool = t.Tool(name="echo", description="", input_schema=SCHEMA)
also = Offer(tools=[ToolOffer(name="echo", shown=lambda _: tool, run=echo)])

async def main():
    async with limpet.open(URL, worker=False) as app:
        if HOW == "stdio":
            server = server_of({"main": app}, also=also)
            async with stdio_server() as (reading, writing):
                await server.run(reading, writing, server.create_initialization_options())
        else:
            from limpet.web.server import ServerOptions, serve
            options = ServerOptions(
                host="127.0.0.1", port=0, token=TOKEN, rate=1e6, also={"/mcp": over_http({"main": app}, also=also)}
            )
            await serve({"main": app}, options, lambda url: print('{"url": "%s"}' % url, flush=True))

asyncio.run(main())
"""
TOOLS = {"echo": ("echo", {"text": "x" * 200}), "info": ("info", {"run": "r-0"})}
Call = Callable[[int], Any]


@limpet.agent(name="bench_called")
async def called(run: limpet.Run, number: int) -> int:
    """Returns its input."""
    await run.patch(goal=f"return {number}")
    return number


def mcp_calls(url: str, how: str, tool: str, calls: int) -> dict[str, float]:
    """Return calls a second of Limpet and of a minimal server, Limpet's share of it in percent, and milliseconds.

    `tool` is echo, which returns its text, or info, which reads a run: the minimal server calls the same method of the
    app, without roles, redaction or limits.
    """
    asyncio.run(_filled(url))
    connect = _over_http if how == "http" else _over_stdio
    command = _command(url, how) if tool == "info" else [sys.executable, "-c", WITH_ECHO, url, how, TOKEN]
    with ExitStack() as stack:
        ours = stack.enter_context(connect(command, TOOLS[tool]))
        by_hand = [sys.executable, "-c", MINIMAL, how, tool, url]
        minimal = stack.enter_context(connect(by_hand, TOOLS[tool]))
        taken: dict[Call, list[float]] = {ours: [], minimal: []}
        for number in range(BATCHES + 1):
            for call in (ours, minimal) if number % 2 else (minimal, ours):
                found = [_timed(call, each) for each in range(calls // BATCHES)]
                taken[call] += found if number else []  # the first batch warms up
    seconds, bare = statistics.median(taken[ours]), statistics.median(taken[minimal])
    return {"calls": 1 / seconds, "bare": 1 / bare, "share": 100 * bare / seconds, "p50": seconds * 1e3}


def mcp_start(url: str, times: int) -> dict[str, float]:
    """Return the CPU of `limpet mcp`, and of a minimal server, until its first answer, and Limpet's time; in
    milliseconds.
    """
    asyncio.run(_filled(url))
    minimal_server = [sys.executable, "-c", MINIMAL]
    found = [(_first(_command(url, "stdio"), "info"), _first(minimal_server, "echo")) for _ in range(times + 1)]
    ours, minimal = zip(*found[1:], strict=True)  # the first one warms up
    return {
        "cpu": min(cpu for cpu, _ in ours) * 1e3,
        "minimal cpu": min(cpu for cpu, _ in minimal) * 1e3,
        "p50": statistics.median(taken for _, taken in ours) * 1e3,
    }


def _first(command: Sequence[str], tool: str) -> tuple[float, float]:
    """Return the seconds of CPU and of time until the first answer of a new process."""
    begun = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(_request(0, *TOOLS[tool]))
    process.stdin.flush()
    _answer(process.stdout.readline())
    taken = time.monotonic() - begun
    process.kill()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdin.close()
    process.stdout.close()
    return used.ru_utime + used.ru_stime, taken


def _command(url: str, how: str) -> list[str]:
    if how == "http":
        return [LIMPET, "serve", "--url", url, "--port", "0", "--json", "--rate", "1000000"]
    return [LIMPET, "mcp", "--url", url, "--role", "operator"]


async def _filled(url: str) -> None:
    async with limpet.open(url, agents=[called]) as app:
        await app.run(called, 0, id="r-0")


def _request(number: int, tool: str, arguments: dict[str, Any]) -> bytes:
    meta = {
        "io.modelcontextprotocol/protocolVersion": REVISION,
        "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode() + b"\n"


def _answer(line: bytes) -> None:
    """Check that a line is the result of a call."""
    found = json.loads(line)
    if found.get("result", {"isError": True}).get("isError"):
        raise RuntimeError(f"not a result: {line[:500]!r}")


def _timed(call: Call, number: int) -> float:
    begun = time.monotonic()
    call(number)
    return time.monotonic() - begun


@contextmanager
def _over_stdio(command: Sequence[str], tool: tuple[str, dict[str, Any]]) -> Iterator[Call]:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        writing, reading = server.stdin, server.stdout
        assert writing is not None
        assert reading is not None

        def call(number: int) -> None:
            writing.write(_request(number, *tool))
            writing.flush()
            _answer(reading.readline())

        try:
            yield call
        finally:
            server.kill()


@contextmanager
def _over_http(command: Sequence[str], tool: tuple[str, dict[str, Any]]) -> Iterator[Call]:
    env = {**os.environ, "LIMPET_TOKEN": TOKEN}
    headers = {
        "Authorization": f"Bearer {TOKEN}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": REVISION,
        "Mcp-Method": "tools/call",
        "Mcp-Name": tool[0],
    }
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env) as server:
        assert server.stdout is not None
        connection = http.client.HTTPConnection(json.loads(server.stdout.readline())["url"][7:], timeout=60)

        def call(number: int) -> None:
            connection.request("POST", "/mcp", _request(number, *tool), headers)
            _answer(connection.getresponse().read())

        try:
            yield call
        finally:
            connection.close()
            server.terminate()
