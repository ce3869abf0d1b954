"""The change listener recovers from errors of the store."""

import asyncio
from collections.abc import Sequence

import pytest

import limpet
from limpet.clock import SystemClock
from limpet.engine.worker.change_listener import ChangeListener, Subscription
from limpet.stores.api.logs import LogPosition


async def test_the_change_listener_continues_after_an_error_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:

    @limpet.agent(name="listened")
    async def agent(run: limpet.Run) -> None: ...

    async with limpet.open("memory:", worker=False) as app:
        await app.start(agent, id="r1")
        positions, errors, notified = app.store.positions, [OSError("too many open files")], asyncio.Event()

        async def failing(runs: Sequence[str]) -> dict[str, LogPosition]:
            if errors:
                raise errors.pop()
            return await positions(runs)

        monkeypatch.setattr(app.store, "positions", failing)
        listener = ChangeListener(app.store, SystemClock(), 0)
        listening = asyncio.create_task(listener.run())
        listener.subscribe(Subscription("r1", lambda: 0, lambda _: notified.set()))
        async with asyncio.timeout(20):
            await notified.wait()
        listening.cancel()
