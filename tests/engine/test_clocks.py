"""Clocks that jump: on PostgreSQL they change nothing, on SQLite they change when, never what."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.clock import SystemClock, microseconds
from limpet.ids import RandomIds
from limpet.service.app import App
from limpet.service.settings import Settings

JUMPS = ("1h", "366d")


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


@pytest.mark.parametrize("by", JUMPS)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_jumps_change_no_outcome(
    by: str, sign: int, store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Set forward or back again and again, by an hour or a year."""
    url = f"sqlite:///{tmp_path}/c.db" if store == "sqlite" else request.getfixturevalue("postgres_schema")

    def jump(clock: Jumping) -> None:
        clock.off = 0 if clock.off else sign * microseconds(by)

    assert await outcome(url, jump) == OUTCOME
