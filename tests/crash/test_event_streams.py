"""Viewers of streams go on when their server is killed and started again: nothing is missing or comes twice."""

import asyncio
from pathlib import Path

import pytest

import limpet
from limpet.clock import SystemClock
from tests.crash.processes import Child
from tests.crash.stream_server import serve_until_killed, view
from tests.servers.postgres import free_port


@limpet.agent(name="stream_crash_busy")
async def busy(run: limpet.Run, word: str) -> int:
    """Count signals until one says stop."""
    count = 0
    while await run.receive("go", str) != "stop":
        count += 1
    return count


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_viewers_go_on_after_their_server_is_killed(
    store: str, tmp_path: Path, request: pytest.FixtureRequest, full: bool
) -> None:
    """With --full, 1,000 connections are cut on each store. Each viewer has the whole log, in order and once."""
    url = f"sqlite:///{tmp_path}/x.db" if store == "sqlite" else request.getfixturevalue("postgres_schema")
    viewers, kills, port, clock = (50, 20, free_port(), SystemClock()) if full else (10, 3, free_port(), SystemClock())
    async with asyncio.timeout(400), limpet.open(url, agents=[busy]) as app:
        begin = await app.store.feed_end()
        handle = await app.start(busy, "hake", id="r1")
        server = await asyncio.to_thread(started, url, port)
        paths = ["runs/r1"] * (viewers - 2) + [f"runs?after={begin}"] * 2
        ends = [b'"kind":"run.completed"'] * (viewers - 2) + [b'"status":"completed"'] * 2
        seen = [
            asyncio.ensure_future(view(port, path, lambda text, end=end: end in text))  # type: ignore[misc]
            for path, end in zip(paths, ends, strict=True)
        ]
        for kill in range(kills):
            for number in range(10):
                await app.signal("r1", "go", f"{kill} {number}")
                await clock.sleep(10_000)
            await asyncio.to_thread(server.kill)
            await app.signal("r1", "go", f"{kill} while there is no server")
            server = await asyncio.to_thread(started, url, port)
        await app.signal("r1", "go", "stop")
        assert await handle.result() == 11 * kills
        found = await asyncio.gather(*seen)
        log = [str(event.seq) for event in await app.log("r1", limit=1000)]
        assert all(each.ids == log for each in found[:-2])
        for each in found[-2:]:  # changes that were found together are one message
            assert len(set(each.ids)) == len(each.ids)
        assert sum(each.cuts for each in found) >= viewers * kills // 2
        print(f"{sum(each.cuts for each in found)} connections were cut")
        await asyncio.to_thread(server.kill)


def started(url: str, port: int) -> Child:
    """Start a server, and return when it is ready."""
    server = Child(serve_until_killed, url, port)
    assert server.receive() == "ready"
    return server
