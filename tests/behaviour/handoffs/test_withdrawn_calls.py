"""Calls of other agents that the code cancels: the called run is cancelled, whenever that happens."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.clock import SECOND, SystemClock
from limpet.errors import ConnectionLost
from limpet.stores import Create, Extend

CLOCK = SystemClock()
charged: list[str] = []


@limpet.tool(effect="once", name="withdrawn_charge")
async def charge(customer: str) -> str:
    charged.append(customer)
    return "charged"


@limpet.agent(name="withdrawn_billing")
async def billing(run: limpet.Run, customer: str) -> str:
    await run.sleep("2s")
    return await run.step(charge, customer)


@limpet.agent(name="withdrawn_order")
async def order(run: limpet.Run, customer: str) -> str:
    async def bill() -> None:
        async with run.scope("bill"):
            await run.call(billing, customer)

    async def check() -> None:
        raise ValueError(customer)

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(bill())
            group.create_task(check())
    except* ValueError:
        await run.say("refused")
    if customer == "asks":
        await run.ask("go on?")
    return "refused"


async def ends(app: limpet.App, run: str) -> list[tuple[str, str]]:
    return [(event.body["name"], event.body["how"]) for event in await app.log(run) if event.kind == "wait.ended"]


class Store:
    """Calls a function before or after each append that creates a run."""

    def __init__(self, app: limpet.App, at: Callable[[], Awaitable[object]], *, after: bool = False) -> None:
        self._append, self._at, self._after = app.store.append, at, after
        app.store.append = self  # type: ignore[method-assign, assignment]

    async def __call__(self, leg: Extend, *legs: Any, **more: Any) -> Any:
        is_call = any(isinstance(each, Create) for each in legs)
        if is_call and not self._after:
            await self._at()
        done = await self._append(leg, *legs, **more)
        if is_call and self._after:
            await self._at()
        return done


async def test_a_call_that_is_cancelled_while_it_starts_is_withdrawn() -> None:
    """On replay it is open until the code cancels it again."""
    charged.clear()
    async with testing.app(order, billing) as app:
        handle = await app.start(order, "asks", id="o")
        await app.settle()
        assert await ends(app, "o") == [("bill/call:withdrawn_billing#1", "withdrawn")]
        await app.crash()
        await app.approve((await app.inbox())[0], by="ann")
        assert await handle.result() == "refused"
        await app.advance("1m")
        assert (await app.info("o.withdrawn_billing-1")).status == "cancelled"
        assert str(await app.replay("o")) == "o returns 'refused'"
    assert charged == []


async def test_a_call_that_is_cancelled_while_it_starts_is_withdrawn_before_the_run_ends(tmp_path: Path) -> None:
    charged.clear()
    async with limpet.open(f"sqlite:///{tmp_path}/a.db", agents=[order, billing]) as app, asyncio.timeout(60):
        assert await app.run(order, "blocked", id="o") == "refused"
        assert "cancel.requested" in [event.kind for event in await app.log("o.withdrawn_billing-1")]
        assert await ends(app, "o") == [("bill/call:withdrawn_billing#1", "withdrawn")]
        assert str(await app.replay("o")) == "o returns 'refused'"
        while (await app.info("o.withdrawn_billing-1")).status != "cancelled":
            await CLOCK.sleep(SECOND // 100)
    assert charged == []


@pytest.mark.parametrize("is_written", [False, True])
async def test_a_call_that_is_cancelled_when_its_reply_is_lost_is_withdrawn(tmp_path: Path, is_written: bool) -> None:
    """The append is repeated and applied once, whether the store had applied it or not."""
    lost: list[int] = []

    async def fail() -> None:
        if len(lost) < 2:
            lost.append(1)
            await CLOCK.sleep(SECOND // 100)
            raise ConnectionLost(reason="test")

    app = limpet.open(f"sqlite:///{tmp_path}/a.db", agents=[order, billing])
    async with app, asyncio.timeout(60):
        Store(app, fail, after=is_written)
        assert await app.run(order, "blocked", id="o") == "refused"
        assert [event.kind for event in await app.log("o")].count("agent.called") == 1
        assert await ends(app, "o") == [("bill/call:withdrawn_billing#1", "withdrawn")]
        assert [info.id for info in await app.runs(agent=billing.name)] == ["o.withdrawn_billing-1"]
        assert "cancel.requested" in [event.kind for event in await app.log("o.withdrawn_billing-1")]


async def test_a_run_that_is_lost_while_it_withdraws_a_call_leaves_nothing_behind(tmp_path: Path) -> None:
    """The store is away, and another worker takes over. No task of the run is left."""
    called = asyncio.Event()

    async def be_away() -> None:
        called.set()
        await asyncio.get_running_loop().create_future()

    app = limpet.open(f"sqlite:///{tmp_path}/a.db", agents=[order, billing])
    async with app, asyncio.timeout(60):
        Store(app, be_away)
        await app.start(order, "blocked", id="o")
        await called.wait()
        assert app._worker_loop is not None
        [driver] = app._worker_loop.host._drivers.values()
        while driver._x is None or not driver._x.gate.kept:
            await CLOCK.sleep(SECOND // 100)
        del app.store.append
        driver.lose_lease()
        while app._worker_loop.host._drivers.get("o") is driver:
            await CLOCK.sleep(SECOND // 100)
        assert driver._x.gate.kept == ()
        assert [task for task in asyncio.all_tasks() if task.get_name() == "limpet:o:kept"] == []


async def test_a_fork_withdraws_the_calls_that_its_code_cancels_while_they_start() -> None:
    """The called runs are cancelled, and the fork is replayed to its end."""

    @limpet.agent()
    async def kid(run: limpet.Run, name: str) -> str:
        if name != "fast":
            await run.sleep("2h")
        return name

    @limpet.agent()
    async def race(run: limpet.Run) -> str:
        async def call(name: str) -> str:
            async with run.scope(name):
                return await run.call(kid, name)

        tasks = [asyncio.create_task(call(name)) for name in ("fast", "slow", "slower")]
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        await asyncio.wait(rest)
        return done.pop().result()

    async with testing.app(race, kid) as app:
        assert await app.run(race, id="r") == "fast"
        fork = await app.fork("r", at=1, id="f")
        assert await fork.result() == "fast"
        assert str(await app.replay("f")) == "f returns 'fast'"
        await app.advance("3h")
        statuses = [info.status for info in await app.runs(agent=kid.name) if info.id.startswith("f.")]
        assert statuses
        assert set(statuses) == {"cancelled"}


async def test_a_called_run_is_cancelled_after_the_reason_is_durable() -> None:
    """Otherwise the cancelled run could win the race after a crash."""

    @limpet.agent()
    async def slow(run: limpet.Run) -> None:
        await run.sleep("1h")

    @limpet.agent()
    async def racer(run: limpet.Run) -> str:
        tasks = [asyncio.create_task(run.sleep("1m")), asyncio.create_task(run.call(slow, None))]
        _, [rest] = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        rest.cancel()
        await asyncio.wait([rest])
        return "gave up"

    async with testing.app(racer, slow) as app:
        found: list[list[tuple[str, str]]] = []
        send = app.store.send_commands

        async def look(run: str, *bodies: Any, **more: Any) -> Any:
            if run == "r.slow-1":
                found.append(await ends(app, "r"))
            return await send(run, *bodies, **more)

        app.store.send_commands = look  # type: ignore[method-assign]
        handle = await app.start(racer, id="r")
        await app.advance("2m")
        assert await handle.result() == "gave up"
        assert found == [[("sleep#1", "fired"), ("call:slow#1", "withdrawn")]]


async def test_a_fork_does_not_make_a_call_that_the_code_cancelled_much_later() -> None:
    """Many results return between the call and its cancellation; the fork waits for all of them before a new call."""

    @limpet.tool(effect="none")
    async def read(number: int) -> int:
        return number

    @limpet.agent()
    async def helper(run: limpet.Run, given: str) -> str:
        await run.sleep("1h")
        return given

    @limpet.agent()
    async def agent(run: limpet.Run) -> int:
        async def call() -> None:
            async with run.scope("call"):
                await run.call(helper, "x")

        calling, total = asyncio.ensure_future(call()), 0
        await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop
        for number in range(40):
            async with run.scope(f"part-{number}"):
                total += await run.step(read, number)
        await run.sleep("10s")
        calling.cancel()
        await asyncio.wait({calling})
        await run.step(read, 777)
        await run.ask("go on?")
        return total

    async with testing.app(agent, helper) as app:
        await app.start(agent, id="r")
        await app.settle()
        await app.advance("1m")
        await app.fork("r", at=41, id="f")
        await app.settle()
        assert sorted(each.id for each in await app.runs()) == ["f", "r", "r.helper-1"]
