"""The official Python client lists, reads, completes, calls and subscribes, over stdio and over HTTP."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager

import httpx
import pytest
from mcp import Client
from mcp.shared.subscriptions import ResourceUpdated
from mcp_types import ResourceTemplateReference, TextResourceContents

from tests.interfaces.http_and_mcp.clients import fill, over_http, over_pipes, serving

RUN = "limpet://runs/{run}"
WATCHED = "limpet://runs/letter-1"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a store of its own, because the client changes a run."""
    found = f"sqlite:///{tmp_path_factory.mktemp('official')}/limpet.db"
    asyncio.run(fill(found))
    return found


@pytest.fixture(scope="module")
def server(url: str) -> Iterator[httpx.Client]:
    """A client of a server over that store."""
    with serving(url) as client:
        yield client


def connected(how: str, url: str, server: httpx.Client) -> AbstractAsyncContextManager[Client]:
    return over_pipes(url, "operator", "approver") if how == "pipes" else over_http(server)


@pytest.mark.parametrize("how", ["pipes", "http"])
async def test_the_official_client_uses_every_part(how: str, url: str, server: httpx.Client) -> None:
    async with connected(how, url, server) as client:
        assert client.protocol_version == "2026-07-28"
        assert {"runs", "show", "start"} <= {each.name for each in (await client.list_tools()).tools}
        assert {"explain_run", "why_failed"} <= {each.name for each in (await client.list_prompts()).prompts}
        templates = [each.uri_template for each in (await client.list_resource_templates()).resource_templates]
        assert RUN in templates
        reference = ResourceTemplateReference(uri=RUN)
        found = await client.complete(reference, {"name": "run", "value": "refund-"})
        assert set(found.completion.values) == {"refund-50", "refund-950"}
        [content] = (await client.read_resource("limpet://runs/refund-50/context")).contents
        assert isinstance(content, TextResourceContents)
        assert json.loads(content.text)["goal"] == "settle 50"
        prompt = await client.get_prompt("why_failed", {"run": "refund-950"})
        assert "950 is too much" in str(prompt.messages[-1].content)
        async with client.listen(resource_subscriptions=[WATCHED]) as stream, asyncio.timeout(60):
            called = await client.call_tool("pause", {"run": "letter-1"})
            assert not called.is_error
            async for event in stream:
                assert event == ResourceUpdated(WATCHED)
                break
        await client.call_tool("resume", {"run": "letter-1"})
