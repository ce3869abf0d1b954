"""From the thread of a blocking agent, and of a blocking tool, to the event loop."""

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


async def test_a_call_that_comes_as_the_run_is_parked_is_refused_once() -> None:
    """It raises in its thread, and nothing is said on the event loop."""
    loop, raised, odd = asyncio.get_running_loop(), list[BaseException](), list[Any]()
    bridge = Bridge("r1", loop)
    loop.set_exception_handler(lambda _, context: odd.append(context))

    def make() -> Coroutine[Any, Any, None]:
        raise AssertionError

    def call() -> None:
        try:
            bridge.call(make)
        except BaseException as error:  # noqa: BLE001 - what it raises is looked at
            raised.append(error)

    thread = Thread(target=call)
    thread.start()
    while not bridge._calls:
        pass  # the loop stands still meanwhile
    bridge.suspend()
    thread.join()
    await asyncio.sleep(0)  # noqa: TID251 - a turn
    await asyncio.sleep(0)  # noqa: TID251
    assert [type(each) for each in raised] == [Suspended]
    assert odd == []


async def test_what_a_verb_raises_keeps_its_cause() -> None:
    """Also where it looks like an event loop that was closed."""
    bridge = Bridge("r1", asyncio.get_running_loop())
    with pytest.raises(RuntimeError, match="of the verb itself") as caught:
        await asyncio.to_thread(bridge.call, fails)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_tool_whose_process_goes_on_without_its_loop_is_not_cut() -> None:
    """It was given up, and runs on its thread: saying how far it is must not end an effect half-way."""

    async def reports() -> ProgressReports:
        return ProgressReports(None, 1, 1)  # type: ignore[arg-type]

    asyncio.run(reports()).notify()
