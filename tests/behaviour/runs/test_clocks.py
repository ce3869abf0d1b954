"""Clocks that jump: on PostgreSQL they change nothing, on SQLite they change when, never what."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.clock import SystemClock, microseconds
from limpet.ids import RandomIds
from limpet.service.app import App
from limpet.service.settings import Settings
from tests.servers.postgres import drop_schema

JUMPS = [sign * microseconds(by) for by in ("1h", "366d") for sign in (1, -1)]


class Jumping(SystemClock):
    """The machine's clock, as somebody sets it; what has passed can be measured all the same."""

    def __init__(self) -> None:
        self.off = 0

    def now(self) -> int:
        return super().now() + self.off


@limpet.tool(effect="once", name="clock_act")
async def clock_act(n: int) -> int:
    return n


@limpet.agent(name="clocked", deadline="1000d")
async def clocked(run: limpet.Run) -> list[Any]:
    found: list[Any] = [await run.step(clock_act, 1)]
    await run.sleep("300ms")
    found.append(await run.step(clock_act, 2))
    found.append(await run.ask("sure?", expires="300ms", default=True))
    try:
        await run.receive("go", int, timeout="300ms")
    except limpet.Expired:
        found.append("nobody")
    return [*found, await run.step(clock_act, 3)]


OUTCOME: list[Any] = [1, 2, True, "nobody", 3]


@asynccontextmanager
async def opened(url: str, clock: Jumping) -> AsyncIterator[App]:
    settings = Settings(limpet.open_store(url, clock=clock), clock, RandomIds(SystemClock()))
    settings.linger = 50_000
    async with App(settings, [clocked]) as app:
        yield app


async def outcome(url: str, jump: Callable[[Jumping], object]) -> list[Any]:
    """A run while the clock of its worker is set every 60 ms, and at last right again."""
    clock = Jumping()

    async def set_it() -> None:
        for _ in range(8):
            await SystemClock().sleep(60_000)
            jump(clock)
        clock.off = 0

    async with opened(url, clock) as app:
        handle = await app.start(clocked, id="r1")
        setting = asyncio.ensure_future(set_it())
        found = await handle.result(timeout="60s")
        await setting
        assert [event.kind for event in await app.log("r1")].count("run.completed") == 1
        started = [event.body["number"] for event in await app.log("r1") if event.kind == "step.started"]
        assert started == [1, 2, 3]
    return found


@pytest.fixture(params=["sqlite", "postgres"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    """A store for each jump."""
    if request.param == "sqlite":
        yield [f"sqlite:///{tmp_path}/{number}.db" for number in range(len(JUMPS))]
        return
    server = request.getfixturevalue("postgres")
    schemas = [f"limpet_{os.urandom(6).hex()}" for _ in JUMPS]
    yield [f"{server}?schema={schema}" for schema in schemas]
    for schema in schemas:
        drop_schema(server, schema)


async def test_jumps_change_no_outcome(urls: list[str]) -> None:
    """Set forward or back again and again, by an hour or a year; each in a store of its own, and all at once."""

    def jumps(by: int) -> Callable[[Jumping], None]:
        def jump(clock: Jumping) -> None:
            clock.off = 0 if clock.off else by

        return jump

    found = await asyncio.gather(*(outcome(url, jumps(by)) for url, by in zip(urls, JUMPS, strict=True)))
    assert found == [OUTCOME] * len(JUMPS)


class Leaping(SystemClock):
    """A clock that nobody can set, but that goes on while a process stands still or its store is away."""

    passed = 0

    def ticks(self) -> int:
        return super().ticks() + self.passed


async def test_a_lease_is_renewed_again_after_a_long_time_without(tmp_path: Path) -> None:
    """The event loop or the store stood still for longer than an event loop may: the worker goes on all the same."""
    clock = Leaping()
    settings = Settings(limpet.open_store(f"sqlite:///{tmp_path}/limpet.db"), clock, RandomIds(SystemClock()))
    settings.worker = limpet.Worker(lease="30ms")
    async with App(settings, [clocked]) as app:
        clock.passed = microseconds("61s")
        [before] = await app.store.workers()
        while (await app.store.workers())[0].lease_until == before.lease_until:
            pass
