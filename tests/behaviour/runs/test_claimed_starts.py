"""Runs that the app's own worker drives from the start: created and claimed in one write, and told to waiting calls."""

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.clock import SystemClock
from limpet.events import Codec
from limpet.ids import RandomIds
from limpet.service.settings import Settings
from limpet.stores import Store
from limpet.stores.backend import Outcome
from limpet.stores.memory import MemoryBackend
from limpet.stores.writer import Writer
from limpet.stores.writes import Append, Claim, Create, Op


@limpet.agent(name="claimed_start")
async def agent(run: limpet.Run, value: int) -> int:
    return value


def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the operations of all stores, and the reads, except those of the listener, which polls for all runs."""
    found: Counter[str] = Counter()
    submit, ask = Writer.submit, Store._ask

    async def submitted(self: Writer, op: Op[Any]) -> Any:
        found[type(op).__name__] += 1
        return await submit(self, op)

    async def asked(self: Store, work: Callable[[], Any]) -> Any:
        task = asyncio.current_task()
        found["read"] += task is None or task.get_name() != "limpet:change-listener"
        return await ask(self, work)

    monkeypatch.setattr(Writer, "submit", submitted)
    monkeypatch.setattr(Store, "_ask", asked)
    return found


@pytest.mark.parametrize("url", ["memory:", "sqlite"])
async def test_a_run_takes_two_writes_and_no_read(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One creates and claims it, one ends it; the result is not read back."""
    url = f"sqlite:///{tmp_path}/s.db" if url == "sqlite" else url
    async with limpet.open(url, agents=[agent]) as app:
        await app.run(agent, 1)
        found = counted(monkeypatch)
        for number in range(5):
            assert await app.run(agent, number, id=f"r{number}") == number
        assert (found["Append"], found["read"]) == (10, 0)
        assert [event.kind async for event in app.store.log("r1")] == ["run.created", "run.claimed", "run.completed"]


async def test_a_run_starts_with_what_its_log_says() -> None:
    """Not with the caller's own objects, which may change, or differ from what a resume reads."""

    class Priority(StrEnum):
        HIGH = "high"

    seen, may_go = list[Any](), asyncio.Event()

    @limpet.agent(name="claimed_state")
    async def one(run: limpet.Run) -> None:
        await may_go.wait()
        state = run.state
        seen.append((repr(state.goal), repr(state.plan[0]), state.constraints["regions"]))

    rules: dict[str, Any] = {"regions": ["eu"]}
    async with limpet.open("memory:", agents=[one]) as app:
        handle = await app.start(one, goal=Priority.HIGH, plan=[Priority.HIGH], constraints=rules)
        rules["regions"].append("us")
        may_go.set()
        await handle.result()
    assert seen == [("'high'", "'high'", ["eu"])]


async def test_a_new_run_does_not_overtake_one_that_waits_for_room() -> None:
    """The worker has room for one run; the second queues, and the third behind it."""
    started, may_end = list[str](), asyncio.Event()

    @limpet.agent(name="claimed_in_order")
    async def one(run: limpet.Run) -> None:
        started.append(run.id)
        await may_end.wait()

    async with limpet.open("memory:", agents=[one], worker=limpet.Worker(concurrency=1)) as app:
        handles = [await app.start(one, id=run) for run in ("a", "b")]
        assert [(await handle.info()).status for handle in handles] == ["running", "pending"]
        may_end.set()
        await handles[0].result()
        handles.append(await app.start(one, id="c"))
        for handle in handles:
            await handle.result()
        assert started == ["a", "b", "c"]


@pytest.mark.parametrize("options", [{"exclusive": "session"}, {"concurrency": 2}])
async def test_a_run_that_needs_a_slot_queues(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may have waited longer for the slot, so a claim decides."""

    @limpet.agent(name=f"claimed_{'_'.join(options)}", **options)
    async def one(run: limpet.Run) -> int:
        return 1

    async with limpet.open("memory:", agents=[one]) as app:
        found = counted(monkeypatch)
        assert await app.run(one, session="s") == 1
        assert found["Claim"] >= 1


class LosesCreations(MemoryBackend):
    """A store that loses the reply to a creation, after or before it was written."""

    losing: Sequence[bool] = ()

    def commit(self, ops: Sequence[Op[Any]], codec: Codec) -> list[Outcome]:
        is_creation = any(isinstance(leg, Create) for op in ops if isinstance(op, Append) for leg in op.legs)
        if not is_creation or not self.losing:
            return super().commit(ops, codec)
        is_written, *self.losing = self.losing
        if is_written:
            super().commit(ops, codec)
        raise limpet.ConnectionLost(reason="the reply was lost")


async def test_a_run_whose_creation_was_not_acknowledged_is_driven() -> None:
    """The worker finds it without waiting for its lease. A run that was not written is gone."""
    backend, clock = LosesCreations(), SystemClock()
    settings = Settings(Store(backend), clock, RandomIds(clock))
    settings.worker = limpet.Worker(lease="1h")
    async with limpet.App(settings, [agent]) as app:
        backend.losing = [True, False]
        for run in ("written", "lost"):
            with pytest.raises(limpet.ConnectionLost):
                await app.start(agent, 1, id=run)
        async with asyncio.timeout(20):
            assert await (await app.get("written")).result() == 1
        with pytest.raises(limpet.NotFound):
            await app.get("lost")
        assert await app.run(agent, 1, id="lost") == 1


async def test_a_cancelled_start_leaves_no_run_behind() -> None:
    """Its run is driven, whether or not the caller waits for the reply."""
    async with limpet.open("memory:", agents=[agent], worker=limpet.Worker(lease="1h")) as app:
        for number in range(5):
            start = asyncio.create_task(app.start(agent, number, id=f"r{number}"))
            for _ in range(number):
                await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop
            start.cancel()
            await asyncio.wait([start])
        async with asyncio.timeout(20):
            for info in await app.runs():
                await (await app.get(info.id)).result()


async def test_the_collector_is_relaxed_while_the_worker_runs() -> None:
    """Only if it is asked for. Afterwards the settings are those from before."""
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    async with limpet.open("memory:", agents=[agent]) as app:
        assert gc.get_threshold() == before
        await app.run(agent, 1)
    async with limpet.open("memory:", agents=[agent], worker=limpet.Worker(relaxed_gc=True)) as app:
        assert gc.get_threshold() > before
        assert gc.get_freeze_count() > frozen
        assert await app.run(agent, 1) == 1
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, frozen)


async def test_a_claim_takes_what_others_have_created(monkeypatch: pytest.MonkeyPatch) -> None:
    """An app without a worker creates runs that queue."""
    backend, clock = MemoryBackend(), SystemClock()
    async with limpet.App(Settings(Store(backend), clock, RandomIds(clock)), [agent]) as app:
        found = counted(monkeypatch)
        row, is_new = await app.store.create("elsewhere", (await _first(app)), actor="other")
        assert (row.status, is_new) == ("pending", True)
        app._worker_loop.wake()  # type: ignore[union-attr]
        assert await (await app.get("elsewhere")).result() == 1
        assert found[Claim.__name__] >= 1


async def _first(app: limpet.App) -> Any:
    """Return the first event of a run of the agent."""
    handle = await app.start(agent, 1)
    await handle.result()
    [event] = await app.store.read(handle.id, limit=1)
    return app.store.decode(event)
