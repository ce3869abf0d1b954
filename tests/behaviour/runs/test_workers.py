"""Workers recover from errors of the store and of the machine, and park runs that they cannot read."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.clock import FrozenClock
from limpet.engine.worker.worker_settings import Timing
from limpet.events import bodies as b
from limpet.stores import Claimed, Renewal, Store, WorkerRow
from limpet.stores.memory import MemoryTables
from limpet.testing.app import TestApp, TestSettings


async def test_a_worker_renews_its_lease_after_unexpected_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, the machine has no free file handle or thread for a moment."""

    @limpet.agent(name="leased")
    async def agent(run: limpet.Run) -> None: ...

    app = limpet.open("memory:", agents=[agent], worker=limpet.Worker(lease="20ms"))
    renew, loop, renewed = app.store.renew, asyncio.get_running_loop(), asyncio.Event()
    wrong: list[Exception] = [OSError("too many open files"), RuntimeError("can't start new thread")]

    async def poor(worker: str, *, lease: int) -> Renewal:
        if wrong:
            raise wrong.pop()
        loop.call_soon_threadsafe(renewed.set)
        return await renew(worker, lease=lease)

    monkeypatch.setattr(app.store, "renew", poor)
    async with app, asyncio.timeout(20):
        await renewed.wait()


async def test_a_worker_claims_again_after_an_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the worker would keep its lease and do no work."""

    @limpet.agent(name="claimed_late")
    async def agent(run: limpet.Run) -> int:
        return 1

    async with limpet.open("memory:", agents=[agent]) as app:
        claim, wrong = app.store.claim, [OSError("too many open files")]

        async def poor(worker: str, **how: Any) -> Sequence[Claimed]:
            if wrong:
                raise wrong.pop()
            return await claim(worker, **how)

        monkeypatch.setattr(app.store, "claim", poor)
        assert await (await app.start(agent, at="1ms")).result(timeout="20s") == 1
        assert not wrong


async def pass_time(clock: FrozenClock, milliseconds: int) -> None:
    """Let time pass in pieces of 10 ms, in each of which the event loop runs."""
    for _ in range(milliseconds // 10):
        clock.set(clock.now() + 10_000)
        for _ in range(20):
            await asyncio.sleep(0)  # noqa: TID251 - an iteration of the event loop


async def test_a_suspect_costs_no_claims_while_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker looks at it every 50 ms, and at the store once a second. A settled step lets it claim the next one."""
    entered, may_settle = list[str](), asyncio.Event()

    @limpet.tool(effect="none", name="suspects_first")
    async def first() -> None:
        await may_settle.wait()

    @limpet.tool(effect="none", name="suspects_second")
    async def second() -> None:
        await asyncio.get_running_loop().create_future()

    @limpet.agent(name="suspects")
    async def agent(run: limpet.Run) -> None:
        entered.append(run.id)
        await run.step(first)
        await run.step(second)

    settings = TestSettings()
    settings.timing = Timing(lease_thread=False)

    async with TestApp(settings, [agent]) as app:
        runs = {(await app.start(agent, id=each)).id for each in ("a", "b")}
        for _ in range(2):
            await pass_time(settings.frozen, 1_000)
            await app.crash()
        entered.clear()
        await pass_time(settings.frozen, 1_000)
        assert len(entered) == 1, "a worker holds one suspect"
        claim, claims = app.store.claim, Counter[str]()

        async def counted(worker: str, **how: Any) -> Sequence[Claimed]:
            claims[worker] += 1
            return await claim(worker, **how)

        monkeypatch.setattr(app.store, "claim", counted)
        await pass_time(settings.frozen, 10_000)
        assert 9 <= claims.total() <= 12, "once a second"
        may_settle.set()
        await pass_time(settings.frozen, 200)
        assert set(entered) == runs


async def test_a_worker_retired_during_its_start_registers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker may delete its row between registration and first claim, after a pause or a clock jump."""

    @limpet.agent(name="swept_early")
    async def agent(run: limpet.Run) -> int:
        return 1

    register, swept = Store.register, list[str]()

    async def unlucky(store: Store, worker: WorkerRow, *, lease: int) -> Renewal:
        renewal = await register(store, worker, lease=lease)
        if not swept:
            swept.append(worker.id)
            await store.retire(worker.id)
        return renewal

    monkeypatch.setattr(Store, "register", unlucky)
    async with limpet.open("memory:", agents=[agent]) as app:
        assert await (await app.start(agent)).result(timeout="20s") == 1
        assert [each.id for each in await app.store.workers()] == swept


async def test_a_run_with_an_unreadable_log_is_parked() -> None:
    """Workers do not claim it over and over, and other runs continue."""

    @limpet.agent(name="regress_unreadable")
    async def unreadable(run: limpet.Run) -> str:
        await run.ask("go on?")
        return "done"

    async with testing.app(unreadable) as app:
        for run in ("bad", "good"):
            await app.start(unreadable, id=run)
        await app.settle()
        tables = app.store._backend._tables  # type: ignore[attr-defined]
        assert isinstance(tables, MemoryTables)
        log = tables.log[tables.streams["bad"].number]
        event = log[1]
        log[1] = type(event)(**{**{f: getattr(event, f) for f in event.__struct_fields__}, "kind": "run.invented"})
        for request in await app.inbox(run="good"):
            await app.approve(request, by="ann")
        await app.store.send_commands("bad", b.CancelRequested(command="c", reason="enough"), actor="ann")
        await app.crash()
        await app.settle()
        assert (await app.store.get("bad")).waits == ("operator:unreadable",)
        assert (await app.info("good")).status == "completed"
        with pytest.raises(limpet.Tampered):
            await app.verify()
