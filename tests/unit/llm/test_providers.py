"""Helpers that the model adapters share."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any, Self

import pytest

from limpet.llm.providers import PerLoop, join_surrogates


class Line(AbstractAsyncContextManager["Line"]):
    """A connection that is opened at the first use in an event loop and closed with the loop."""

    def __init__(self) -> None:
        self.state = "made"

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(lambda: None)  # let other tasks run
        self.state = "open"
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(lambda: None)
        self.state = "closed"


def test_each_event_loop_has_one_connection_that_is_closed_with_it() -> None:
    made: list[Line] = []

    def make() -> Line:
        made.append(Line())
        return made[-1]

    lines: PerLoop[Line] = PerLoop(make)

    async def ask() -> list[str]:
        first, second = await asyncio.gather(lines.get(), lines.get())
        assert first is second is await lines.get()
        return [each.state for each in made]

    assert asyncio.run(ask()) == ["open"]
    assert asyncio.run(ask()) == ["closed", "open"]
    assert [each.state for each in made] == ["closed", "closed"]


async def test_a_failed_opening_is_retried_by_the_next_caller() -> None:
    tries: list[Any] = [OSError("not yet"), Line()]

    def make() -> Line:
        found = tries.pop(0)
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, Line)
        return found

    lines: PerLoop[Line] = PerLoop(make)
    results = await asyncio.gather(lines.get(), lines.get(), return_exceptions=True)
    assert [type(each) for each in results] == [OSError, Line]


async def test_a_cancelled_caller_does_not_cancel_the_opening() -> None:
    lines: PerLoop[Line] = PerLoop(Line)
    gone = asyncio.create_task(lines.get())
    waits = asyncio.create_task(lines.get())
    await asyncio.to_thread(lambda: None)
    gone.cancel()
    assert (await waits).state == "open"
    assert await waits is await lines.get()


@pytest.mark.parametrize(
    ("text", "found"),
    [("plain", "plain"), ("grüße 😀", "grüße 😀"), ("\ud83d\ude00", "😀"), ("\ude00 so \ud83d", "� so �")],
    ids=["ascii", "unicode", "halves", "half of one"],
)
def test_surrogate_halves_are_joined(text: str, found: str) -> None:
    assert join_surrogates(text) == found
