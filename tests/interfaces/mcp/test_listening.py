"""Subscriptions: a stream fires on changes, one reader serves all, and closing one ends nothing else."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from mcp.shared.subscriptions import ResourcesListChanged, ResourceUpdated

from limpet.service import feed_reader
from tests.interfaces.mcp.harbour import asker, connected, opened, person, waiting, worker

RUN = "limpet://runs/r"
URIS = [RUN, f"{RUN}/log", f"{RUN}/context", "state://agents/harbour_asker/tasks/r", "limpet://inbox"]


async def until(stream: Any, wanted: set[Any]) -> None:
    """Take events from a stream until all of these have come."""
    async with asyncio.timeout(20):
        async for event in stream:
            wanted.discard(event)
            if not wanted:
                return


async def test_a_stream_fires_when_a_run_the_inbox_or_the_list_changes() -> None:
    async with opened() as app, connected(app) as client:
        async with client.listen(resources_list_changed=True, resource_subscriptions=URIS) as stream:
            assert stream.honored.resource_subscriptions == URIS
            request = await waiting(app, asker, "boats", "r")
            await until(stream, {ResourcesListChanged(), *map(ResourceUpdated, URIS)})
            await app.answer(request.id, "red", by="ann")
            await until(stream, {ResourceUpdated("limpet://inbox"), ResourceUpdated(RUN)})
        assert await (await app.get("r")).result() == "red"


async def test_a_stream_hears_of_what_its_caller_may_read_and_wants() -> None:
    """Nothing of other runs, of unknown URIs, or of content that never changes."""
    async with opened() as app:
        wanted = [
            RUN,
            f"{RUN}/steps/1/before",
            "limpet://nothing",
            "limpet://agents",
            "limpet://sessions",
            "limpet://inbox",
        ]
        for who, honored in (
            (person(), [RUN, "limpet://sessions", "limpet://inbox"]),
            (person("viewer"), ["limpet://sessions"]),
            (person("approver"), ["limpet://inbox"]),
        ):
            async with connected(app, who) as client, client.listen(resource_subscriptions=wanted) as stream:
                assert stream.honored.resource_subscriptions == honored
        async with connected(app) as client, client.listen(resource_subscriptions=[RUN]) as stream:
            await app.run(worker, "x", id="other")
            await app.run(worker, "x", id="r")
            await until(stream, {ResourceUpdated(RUN)})


async def test_many_streams_have_one_reader_of_the_feed() -> None:
    """It ends with the last of them."""
    async with opened() as app, connected(app) as client, AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(client.listen(resource_subscriptions=[RUN, f"limpet://runs/r{number}"]))
            for number in range(40)
        ]
        viewers = app._feed._viewers[None]
        assert len(viewers) == 1
        await app.run(worker, "x", id="r")
        for stream in streams:
            await until(stream, {ResourceUpdated(RUN)})
        await stack.aclose()
        for _ in range(50):
            if not app._feed._viewers:
                break
            await client.list_tools()
        assert not app._feed._viewers


async def test_a_reader_that_falls_behind_announces_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as app, connected(app) as client:
        monkeypatch.setattr(feed_reader, "MOST_WAITING", 1)
        async with client.listen(resource_subscriptions=["limpet://inbox", RUN]) as stream:
            for number in range(5):
                await app.run(worker, "x", id=f"other-{number}")
            await until(stream, {ResourceUpdated("limpet://inbox"), ResourceUpdated(RUN)})
