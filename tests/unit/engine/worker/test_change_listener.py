"""The change listener recovers from errors of the store."""

import asyncio
from collections.abc import Sequence

import pytest

import limpet
from limpet.clock import SystemClock
from limpet.engine.worker.change_listener import ChangeListener, Subscription
from limpet.stores.store import LogPosition


async def test_an_ear_goes_on_after_whatever_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else tells those who wait."""

    @limpet.agent(name="heard")
    async def agent(run: limpet.Run) -> None: ...

    async with limpet.open("memory:", worker=False) as app:
        await app.start(agent, id="r1")
        places, wrong, told = app.store.positions, [OSError("too many open files")], asyncio.Event()

        async def poor(runs: Sequence[str]) -> dict[str, LogPosition]:
            if wrong:
                raise wrong.pop()
            return await places(runs)

        monkeypatch.setattr(app.store, "positions", poor)
        ear = ChangeListener(app.store, SystemClock(), 0)
        listening = asyncio.create_task(ear.run())
        ear.subscribe(Subscription("r1", lambda: 0, lambda _: told.set()))
        async with asyncio.timeout(20):
            await told.wait()
        listening.cancel()
