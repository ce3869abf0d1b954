"""Wall-clock jumps: on PostgreSQL they have no effect; on SQLite they shift times but never outcomes."""

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


class AdjustableClock(SystemClock):
    """A system clock whose wall time a test can shift. Its monotonic ticks are unaffected."""

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
async def opened(url: str, clock: AdjustableClock) -> AsyncIterator[App]:
    settings = Settings(limpet.open_store(url, clock=clock), clock, RandomIds(SystemClock()))
    settings.linger = 50_000
    async with App(settings, [clocked]) as app:
        yield app


async def run_with_jumps(url: str, jump: Callable[[AdjustableClock], object]) -> list[Any]:
    """Return the output of a run whose worker's clock jumps every 60 ms and is correct again at the end."""
    clock = AdjustableClock()

    async def keep_jumping() -> None:
        for _ in range(8):
            await SystemClock().sleep(60_000)
            jump(clock)
        clock.off = 0

    async with opened(url, clock) as app:
        handle = await app.start(clocked, id="r1")
        setting = asyncio.ensure_future(keep_jumping())
        found = await handle.result(timeout="60s")
        await setting
        assert [event.kind for event in await app.log("r1")].count("run.completed") == 1
        started = [event.body["number"] for event in await app.log("r1") if event.kind == "step.started"]
        assert started == [1, 2, 3]
    return found


@pytest.fixture(params=["sqlite", "postgres"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    """One store URL per jump."""
    if request.param == "sqlite":
        yield [f"sqlite:///{tmp_path}/{number}.db" for number in range(len(JUMPS))]
        return
    server = request.getfixturevalue("postgres")
    schemas = [f"limpet_{os.urandom(6).hex()}" for _ in JUMPS]
    yield [f"{server}?schema={schema}" for schema in schemas]
    for schema in schemas:
        drop_schema(server, schema)


async def test_clock_jumps_do_not_change_the_outcome_of_a_run(urls: list[str]) -> None:
    """The clock jumps back and forth by an hour or a year. The runs are concurrent, each in its own store."""

    def jumps(by: int) -> Callable[[AdjustableClock], None]:
        def jump(clock: AdjustableClock) -> None:
            clock.off = 0 if clock.off else by

        return jump

    found = await asyncio.gather(*(run_with_jumps(url, jumps(by)) for url, by in zip(urls, JUMPS, strict=True)))
    assert found == [OUTCOME] * len(JUMPS)


class LeapingTicks(SystemClock):
    """A clock whose monotonic ticks can leap ahead, as after a suspended process or a store outage."""

    passed = 0

    def ticks(self) -> int:
        return super().ticks() + self.passed


async def test_a_worker_renews_its_lease_after_a_stall_of_61_seconds(tmp_path: Path) -> None:
    """The worker pauses renewals while its event loop is stuck, and renews again as soon as the loop responds."""
    clock = LeapingTicks()
    settings = Settings(limpet.open_store(f"sqlite:///{tmp_path}/limpet.db"), clock, RandomIds(SystemClock()))
    settings.worker = limpet.Worker(lease="30ms")
    async with App(settings, [clocked]) as app:
        clock.passed = microseconds("61s")
        [before] = await app.store.workers()
        while (await app.store.workers())[0].lease_until == before.lease_until:
            pass
