"""Runs that Temporal was not told of: the sweep of the workers finds them."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

import limpet
from limpet.engine.worker.run_host import RunHost
from limpet.errors import EngineUnavailable
from limpet.stores import ReadyRun
from tests.temporal.agents import asker, booker, failing, hearer, parent, sleeper
from tests.temporal.temporal_world import TemporalWorld


class Mute:
    """Temporal's engine, of a process that dies before each call: nothing is told."""

    name = "temporal"

    def __init__(self, inner: Any = None) -> None:
        self._inner = inner
        self.calls = 0

    async def open(self, store: str) -> None:
        if self._inner is not None:
            await self._inner.open(store)

    async def wake(self, run: ReadyRun, *, is_missed: bool = False) -> None:  # noqa: ARG002
        self.calls += 1
        raise EngineUnavailable(engine="Temporal", address="nowhere", reason="this test says so")

    async def serve(self, host: RunHost) -> None:
        await self._inner.serve(host)

    def unfinished(self) -> AsyncIterator[str]:
        found: AsyncIterator[str] = self._inner.unfinished()
        return found

    async def close(self) -> None:
        if self._inner is not None:
            await self._inner.close()


async def test_commands_of_a_process_without_the_engine_are_taken_up(world: TemporalWorld) -> None:
    """It only knows the store."""
    async with world.app(linger=0) as app, world.outsider() as outsider:
        asked = await app.start(asker, "Go on?", id="sweep-asked")
        heard = await app.start(hearer, 1, id="sweep-heard")
        failed = await app.start(failing, "gate", id="sweep-failed")
        stopped = await app.start(asker, "Go on?", id="sweep-stopped")
        slept = await app.start(sleeper, "1h", id="sweep-slept")
        with pytest.raises(limpet.RunFailed):
            await failed.result(timeout="20s")
        for run in ("sweep-asked", "sweep-heard", "sweep-stopped", "sweep-slept"):
            await world.until_parked(app, run)
        world.ledger.open_gate("gate")
        await outsider.answer((await outsider.inbox(run="sweep-asked"))[0].id, True, by="ann")
        await outsider.signal("sweep-heard", "word", "hello")
        await outsider.resume("sweep-failed")
        await outsider.cancel("sweep-stopped", reason="test")
        await outsider.cancel("sweep-slept", reason="test")
        assert await asked.result(timeout="20s") == "True"
        assert await heard.result(timeout="20s") == ["hello"]
        assert await failed.result(timeout="20s") == "done"
        for handle in (stopped, slept):
            with pytest.raises(limpet.RunCancelled):
                await handle.result(timeout="20s")
            await world.until_closed(handle.id)
    assert {*world.ledger.count().values()} == {1}


async def test_a_run_whose_creator_died_is_started(world: TemporalWorld) -> None:
    mute = Mute()
    async with limpet.open(world.store, engine=mute, agents=[booker], worker=False) as app:
        await app.start(booker, "gate", id="sweep-new")
        await world.until(lambda: mute.calls)
    world.ledger.open_gate("gate")
    async with world.app() as app:
        assert await (await app.get("sweep-new")).result(timeout="20s") == "gate"
        await world.until_closed("sweep-new")


@pytest.mark.long
async def test_a_child_whose_parent_could_not_start_it_is_started(world: TemporalWorld) -> None:
    """The calls of the parent's worker fail; the sweep of another worker starts parent and child."""
    world.ledger.open_gate("gate")
    async with world.app() as app:
        app.store.on_ready = lambda _: None
        handle = await app.start(parent, "gate", id="sweep-parent")
        assert await handle.result(timeout="20s") == "gate"
        for run in await app.runs():
            await world.until_closed(run.id)
    assert {*world.ledger.count().values()} == {1}
