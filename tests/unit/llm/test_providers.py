"""What the adapters of models share."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any, Self

import pytest

from limpet.llm.providers import PerLoop, join_surrogates


class Line(AbstractAsyncContextManager["Line"]):
    """Something that is open from its loop's first question to its end."""

    def __init__(self) -> None:
        self.state = "made"

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(lambda: None)  # others come in between
        self.state = "open"
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(lambda: None)
        self.state = "closed"


def test_each_loop_has_one_that_is_closed_with_it() -> None:
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


async def test_what_could_not_be_opened_is_tried_again_by_the_next_who_asks() -> None:
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


async def test_one_who_goes_away_while_it_is_opened_leaves_it_to_the_others() -> None:
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
def test_text_in_pieces_is_whole_again(text: str, found: str) -> None:
    assert join_surrogates(text) == found
