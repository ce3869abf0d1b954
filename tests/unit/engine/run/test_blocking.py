"""Calls from the threads of blocking agents and tools to the event loop."""

import asyncio
from collections.abc import Coroutine
from threading import Thread
from typing import Any

import pytest

from limpet.engine.run.blocking import Bridge
from limpet.engine.steps.attempts import ProgressReports
from limpet.errors import Suspended


async def fails() -> None:
    raise RuntimeError("of the verb itself") from ValueError("the cause")


async def test_a_call_during_parking_is_refused_once() -> None:
    """The call raises in its thread, and the event loop reports no error."""
    loop, raised, odd = asyncio.get_running_loop(), list[BaseException](), list[Any]()
    bridge = Bridge("r1", loop)
    loop.set_exception_handler(lambda _, context: odd.append(context))

    def make() -> Coroutine[Any, Any, None]:
        raise AssertionError

    def call() -> None:
        try:
            bridge.call(make)
        except BaseException as error:  # noqa: BLE001 - asserted below
            raised.append(error)

    thread = Thread(target=call)
    thread.start()
    while not bridge._calls:
        pass  # the event loop is blocked meanwhile
    bridge.suspend()
    thread.join()
    await asyncio.sleep(0)  # noqa: TID251 - a turn
    await asyncio.sleep(0)  # noqa: TID251
    assert [type(each) for each in raised] == [Suspended]
    assert odd == []


async def test_an_error_of_a_blocking_call_keeps_its_cause() -> None:
    """This holds for a RuntimeError too, which a closed event loop would also raise."""
    bridge = Bridge("r1", asyncio.get_running_loop())
    with pytest.raises(RuntimeError, match="of the verb itself") as caught:
        await asyncio.to_thread(bridge.call, fails)
    assert isinstance(caught.value.__cause__, ValueError)


def test_reporting_progress_without_an_event_loop_does_not_raise() -> None:
    """The tool's thread outlives the event loop; reporting progress must not interrupt its effect."""

    async def reports() -> ProgressReports:
        return ProgressReports(None, 1, 1)  # type: ignore[arg-type]

    asyncio.run(reports()).notify()
