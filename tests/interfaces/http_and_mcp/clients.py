"""Helpers for tests of HTTP and MCP: a filled store, and real servers over it."""

import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import TextContent

import limpet
from limpet import testing
from limpet.mcp.tool_results import DATA
from tests.servers.parking import parking
from tests.servers.preloaded import LIMPET, PipedProgram

TOKEN = "limpet_" + "5a" * 32
SERVERS = ("limpet.mcp", "limpet.web.server")
"""Modules of `limpet serve` and `limpet mcp`."""


@limpet.tool(effect="idempotent", name="doors_refund", risk="external_action")
def refund(order: str, cents: int) -> str:
    """Pays back what is not too much."""
    if cents > 900:
        raise limpet.Permanent(f"{cents} is too much")
    return f"receipt-{order}"


@limpet.agent(name="doors_support")
async def support(run: limpet.Run, cents: int) -> str:
    """Decides, puts something away, and pays."""
    await run.patch(goal=f"settle {cents}", plan=["look", "pay"], facts={"cents": cents, "note": "größer"})
    async with run.scope("look"):
        await run.artifact("Der Brief.\n" * 9_000, type="text/plain", summary="the letter of complaint")
        await run.decide("refund?", choose="full", over=["none", "full"], because="arrived broken")
        await run.patch(questions=["who packed it?"], flags=["fragile"])
    async with run.scope("pay"):
        return await run.step(refund, f"o-{cents}", cents)


@limpet.agent(name="doors_letter")
async def letter(run: limpet.Run, to: str) -> str:
    """Waits for a person."""
    return await run.ask(f"Which colour for {to}?", options=["red", "blue"], to="sales")


def chat() -> limpet.Agent[str, str]:
    """Talks of harbours."""
    model = testing.ScriptedModel("The harbour is closed.", "It opens at nine.")
    return limpet.llm_agent("doors_chat", model=model, instructions="Talk of harbours.")


async def fill(url: str) -> None:
    """Fill a store with refunds, one of them too large, a request to a person, and a conversation."""
    talk = chat()
    async with parking(limpet.open(url, agents=[support, letter, talk])) as app:
        await app.run(support, 50, id="refund-50", session="ann-1")
        with pytest.raises(limpet.RunFailed):
            await app.run(support, 950, id="refund-950")
        await app.patch_record("board", read=0, facts={"owner": "ann"}, questions={"q1": "When?"}, by="ann")
        await app.score("refund-50", "quality", 0.5, comment="slow", step=1, by="ann")
        waiting = await app.start(letter, "ann", id="letter-1")
        await app.run(talk, "Is it open?", id="talk-1", conversation="chat-7", session="ann-1", user="ann")
        await app.run(talk, "And tomorrow?", id="talk-2", conversation="chat-7", session="ann-1", user="ann")
        async for event in waiting.events():
            if event.kind == "run.waiting":
                break


@contextmanager
def serving(url: str, *words: str, **env: str) -> Iterator[httpx.Client]:
    """Run a server over a store, and yield an authenticated client."""
    command = [LIMPET, "serve", "--port", "0", "--json", "--url", url, *words]
    around = {**os.environ, "LIMPET_TOKEN": TOKEN, **env}
    with PipedProgram(command, env=around, stderr=2, also=SERVERS) as process:
        try:
            where = json.loads(process.stdout.readline())["url"]
            with httpx.Client(base_url=where, headers={"authorization": f"Bearer {TOKEN}"}, timeout=30) as client:
                yield client
        finally:
            process.terminate()
            assert process.wait(30) == 0


@asynccontextmanager
async def over_pipes(url: str, *roles: str) -> AsyncIterator[Client]:
    """Start an MCP server over pipes, and yield its client, who may read all data unless roles say otherwise."""
    words = [word for role in roles or ("auditor", "approver") for word in ("--role", role)]
    server = StdioServerParameters(command=LIMPET, args=["mcp", "--url", url, *words], env=dict(os.environ))
    async with Client(stdio_client(server)) as client:
        yield client


@asynccontextmanager
async def over_http(server: httpx.Client) -> AsyncIterator[Client]:
    """Yield an MCP client of a running HTTP server."""
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {TOKEN}"}) as http,
        Client(streamable_http_client(f"{server.base_url}/mcp", http_client=http)) as client,
    ):
        yield client


async def call_json(client: Client, tool: str, /, **given: Any) -> Any:
    """Call a tool and return its result as data."""
    result = await client.call_tool(tool, given)
    data = json.loads(text_of(result))
    assert data == result.structured_content
    return data


def text_of(result: Any) -> str:
    """Return the text of a result, which comes before the note that it is data."""
    content, note = result.content
    assert isinstance(content, TextContent)
    assert note.text == DATA
    return content.text
