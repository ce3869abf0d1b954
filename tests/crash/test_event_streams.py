"""Viewers of streams go on when their server is killed and started again: nothing is missing or comes twice."""

import asyncio
from pathlib import Path

import pytest

import limpet
from limpet.clock import SystemClock
from tests.crash.processes import Child
from tests.crash.stream_server import TOKEN, serve_until_killed, view
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


@limpet.agent(name="stream_crash_loud")
async def loud(run: limpet.Run, size: int) -> int:
    """Record a large fact for each signal, until one says stop."""
    count = 0
    while await run.receive("go", str) != "stop":
        count += 1
        await run.patch(facts={"noise": f"{count} " + "x" * size})
    return count


async def test_viewers_that_stop_reading_cost_little_memory(tmp_path: Path, full: bool) -> None:
    """Much more is written than the server keeps for them, and the one that reads gets all of it."""
    stalled, events, size = (200, 1_000, 7_000) if full else (40, 300, 7_000)
    url, port = f"sqlite:///{tmp_path}/x.db", free_port()
    async with asyncio.timeout(400), limpet.open(url, agents=[loud]) as app:
        handle = await app.start(loud, size, id="r1")
        server = await asyncio.to_thread(started, url, port)
        silent = [await silent_viewer(port) for _ in range(stalled)]
        reading = asyncio.ensure_future(view(port, "runs/r1", lambda text: b'"kind":"run.completed"' in text))
        before = resident(server.pid)
        for number in range(events):
            await app.signal("r1", "go", str(number))
        await app.signal("r1", "go", "stop")
        assert await handle.result() == events
        seen = await reading
        grown = resident(server.pid) - before
        assert len(seen.ids) == (await handle.info()).position.seq
        assert grown < stalled * events * size // 4, f"the server grew by {grown:,} bytes"
        print(f"{stalled} silent viewers, {stalled * events * size // 10**6} MB unsent: {grown / 10**6:.1f} MB more")
        for writer in silent:
            writer.close()
        await asyncio.to_thread(server.kill)


async def silent_viewer(port: int) -> asyncio.StreamWriter:
    """Ask for a stream, and read only the beginning of its reply."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1_000)
    ask = f"GET /v1/streams/runs/r1 HTTP/1.0\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\r\n"
    writer.write(ask.encode())
    await reader.readline()
    return writer


def resident(pid: int) -> int:
    """Return the memory of a process, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def started(url: str, port: int) -> Child:
    """Start a server, and return when it is ready."""
    server = Child(serve_until_killed, url, port)
    assert server.receive() == "ready"
    return server
