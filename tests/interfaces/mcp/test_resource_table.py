"""Resources: every kind is listed, read with the same result as its operation, and completed; tricks are refused."""

import json
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp_types import INVALID_PARAMS, PromptReference, ResourceTemplateReference, TextResourceContents

import limpet
from limpet.mcp.resource_table import RESOURCES
from tests.interfaces.mcp.harbour import connected, data_of, opened, payer, person, waiting, worker


async def content(client: Client, uri: str) -> TextResourceContents:
    """Read a resource with one text."""
    [found] = (await client.read_resource(uri)).contents
    assert isinstance(found, TextResourceContents)
    assert found.uri == uri
    return found


async def data(client: Client, uri: str) -> Any:
    return json.loads((await content(client, uri)).text)


@limpet.tool(effect="none", name="table_look")
def look(place: str) -> str:
    return f"looked at {place}"


@limpet.agent(name="table_looking")
async def looking(run: limpet.Run, place: str) -> str:
    await run.patch(facts={"place": place})
    await run.step(look, place)
    await run.patch(facts={"seen": True})
    await run.artifact("# Report\n", type="text/markdown", summary="a report")
    return place


async def test_every_kind_is_read() -> None:
    async with opened(looking) as app, connected(app) as client:
        await app.run(looking, "quay", id="r", session="s")
        [about] = (await app.context("r")).artifacts
        assert (await data(client, "limpet://runs/r"))["output"] == "quay"
        for name in ("log", "steps", "context", "diff"):  # also a tool that is not listed is called by its name
            assert await data(client, f"limpet://runs/r/{name}") == await data_of(client, name, run="r")
        assert (await data(client, "limpet://runs/r/diff?since=before:1&until=after:1"))["steps"]
        assert (await data(client, "limpet://runs/r/steps/1"))["tool"] == "table_look"
        before, after = [await data(client, f"limpet://runs/r/steps/1/{each}") for each in ("before", "after")]
        assert [each["step"] for each in (before, after)] == [0, 1]
        [listed] = (await data(client, "limpet://runs/r/artifacts"))["items"]
        assert listed == {
            "uri": f"limpet://runs/r/artifacts/{about.artifact_id}",
            "type": "text/markdown",
            "summary": "a report",
            "bytes": 9,
        }
        report = await content(client, listed["uri"])
        assert (report.text, report.mime_type) == ("# Report\n", "text/markdown")
        assert (await data(client, "limpet://runs/r/conversation"))["items"] == []
        assert (await data(client, "limpet://inbox"))["items"] == []
        assert [each["id"] for each in (await data(client, "limpet://sessions"))["items"]] == ["s"]
        assert "table_looking" in [each["name"] for each in (await data(client, "limpet://agents"))["items"]]


async def test_only_content_that_never_changes_may_be_kept() -> None:
    async with opened(looking) as app, connected(app) as client:
        await app.run(looking, "quay", id="r")
        [about] = (await app.context("r")).artifacts
        kept = {
            uri: (await client.read_resource(uri)).ttl_ms
            for uri in (
                "limpet://runs/r",
                "limpet://runs/r/log",
                "limpet://runs/r/steps/1",
                "limpet://runs/r/steps/1/before",
                "limpet://runs/r/steps/1/after",
                f"limpet://runs/r/artifacts/{about.artifact_id}",
                "limpet://inbox",
            )
        }
        assert {uri for uri, ttl in kept.items() if ttl} == {
            "limpet://runs/r/steps/1/before",
            "limpet://runs/r/steps/1/after",
            f"limpet://runs/r/artifacts/{about.artifact_id}",
        }


async def test_the_list_has_pages() -> None:
    async with opened() as app, connected(app) as client:
        for number in range(60):
            await app.start(worker, "x", id=f"r{number}", at="1h")
        first = await client.list_resources()
        second = await client.list_resources(cursor=first.next_cursor)
        assert second.next_cursor is None
        names = [each.name for each in (*first.resources, *second.resources)]
        assert names == ["inbox", "sessions", "records", "agents", *(f"r{number}" for number in range(59, -1, -1))]
        with pytest.raises(MCPError):
            await client.list_resources(cursor="nowhere")


async def test_templates_are_those_that_the_caller_may_read() -> None:
    async with opened() as app:
        wanted = {each.template for each in RESOURCES if "{" in each.template}
        for who, has in ((person(), wanted), (person("viewer"), set()), (person("approver"), set())):
            async with connected(app, who) as client:
                found = (await client.list_resource_templates()).resource_templates
                assert {each.uri_template for each in found} == has
        async with connected(app, person("viewer")) as client:
            listed = (await client.list_resources()).resources
            assert [each.uri for each in listed] == ["limpet://sessions", "limpet://records", "limpet://agents"]


TRICKS = [
    "limpet://runs/../r",
    "limpet://runs/r/../../etc/passwd",
    "limpet://runs/%2e%2e/log",
    "limpet://runs/..%2Fr/log",
    "limpet://runs/r%2Flog",
    "limpet://runs/r%5Clog",
    "limpet://runs/r%00/log",
    "limpet://runs/r%252Flog",
    "limpet://runs/r/steps/1/before/..",
    "limpet://runs/r/steps/one",
    "limpet://runs/r/steps/-1",
    "limpet://runs/r/log?limit=1",
    "limpet://runs/r/diff?step=1&step=2",
    "limpet://runs/r/diff?raw=true",
    "limpet://runs/r/artifacts/..%2F..%2Fr",
    "limpet://runs//log",
    "limpet://runs/r/log/",
    "limpet://runs/r/log#x",
    "LIMPET://runs/r/log",
    "limpet://user@runs/r/log",
    f"limpet://runs/{'r' * 5000}/log",
    "limpet://runs/{run}/log",
    "limpet:runs/r/log",
    "file:///etc/passwd",
    "",
]


async def test_tricks_in_addresses_are_refused() -> None:
    """With invalid params, and nothing of a run in the error."""
    async with opened() as app, connected(app) as client:
        await app.run(worker, "bollard", id="r")
        for uri in TRICKS:
            with pytest.raises(MCPError) as refused:
                await client.read_resource(uri)
            assert refused.value.code == INVALID_PARAMS, uri
            assert "bollard" not in str(refused.value)


async def completions(client: Client, argument: str, typed: str, **known: str) -> list[str]:
    ref = ResourceTemplateReference(uri="limpet://runs/{run}/steps/{step}")
    return (await client.complete(ref, {"name": argument, "value": typed}, known or None)).completion.values


async def test_arguments_are_completed_for_those_who_may_see_them() -> None:
    async with opened(looking) as app:
        await app.run(looking, "quay", id="ticket-1")
        await app.run(worker, "x", id="ticket-2")
        await app.run(worker, "x", id="other")
        request = await waiting(app, payer, 5, "paying")
        async with connected(app) as client:
            assert sorted(await completions(client, "run", "ticket")) == ["ticket-1", "ticket-2"]
            assert await completions(client, "task", "ticket", agent="harbour_worker") == ["ticket-2"]
            assert await completions(client, "agent", "table") == ["table_looking"]
            assert await completions(client, "request", request.id[:3]) == [request.id]
            assert await completions(client, "step", "", run="ticket-1") == ["1"]
            assert await completions(client, "step", "", run="nothing") == []
            assert len(await completions(client, "artifact", "", run="ticket-1")) == 1
            assert await completions(client, "colour", "") == []
            prompt = await client.complete(PromptReference(name="explain_run"), {"name": "run", "value": "oth"})
            assert prompt.completion.values == ["other"]
        async with connected(app, person("approver")) as client:
            assert await completions(client, "run", "") == []
            assert await completions(client, "request", "") == [request.id]
        async with connected(app, person("worker")) as client:
            assert await completions(client, "request", "") == []
