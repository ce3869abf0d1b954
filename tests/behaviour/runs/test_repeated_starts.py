"""A start or fork that is repeated with the same id is the same run only if its options are the same."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.service.app import StartOptions


@limpet.agent(name="repeated_agent")
async def agent(run: limpet.Run, n: int) -> None:
    await run.receive("go", str)


OPTIONS: dict[str, tuple[Any, Any]] = {
    "user": ("ann", "ben"),
    "session": ("s1", "s2"),
    "conversation": ("c1", "c2"),
    "labels": ({"a": "1"}, {"a": "2"}),
    "goal": ("one", "two"),
    "facts": ({"a": 1}, {"a": 2}),
    "plan": (["a"], ["b"]),
    "constraints": ({"a": 1}, {"a": 2}),
    "state": ({"goal": "one"}, {"goal": "two"}),
    "budget": (limpet.Budget(max_steps=4), limpet.Budget(max_steps=5)),
    "deadline": ("2h", "3h"),
    "at": ("1h", "2h"),
}


def test_every_option_is_compared() -> None:
    assert OPTIONS.keys() == StartOptions.__annotations__.keys() - {"id", "by"}


@pytest.mark.parametrize("option", OPTIONS)
async def test_the_same_options_are_one_run_and_others_a_conflict(option: str) -> None:
    """Also later, after a restart of the caller, and by another sender."""
    first, other = OPTIONS[option]
    async with testing.app(agent) as app:
        given = {option: first}
        await app.start(agent, 1, id="r", by="ann", **given)
        seq = (await app.info("r")).position.seq
        await app.advance("1m")
        await app.start(agent, 1, id="r", by="ben", **given)
        assert (await app.info("r")).position.seq >= seq
        assert len([event for event in await app.log("r") if event.kind == "run.created"]) == 1
        for wrong in ({option: other}, {}):
            with pytest.raises(limpet.IdConflict, match="with other options"):
                await app.start(agent, 1, id="r", **wrong)


async def test_equal_options_in_other_forms_are_the_same() -> None:
    """A budget as an object or a mapping; labels in another order; None as not given; another time."""
    when = datetime(2100, 1, 1, tzinfo=UTC)
    async with testing.app(agent) as app:
        budget = limpet.Budget(max_steps=4)
        await app.start(agent, 1, id="r", labels={"a": "1", "b": "2"}, deadline=when, budget=budget)
        again = {"max_steps": 4}
        await app.start(agent, 1, id="r", labels={"b": "2", "a": "1"}, deadline=when, budget=again, user=None)
        later = when + timedelta(hours=1)  # computed anew by a program that repeats the start
        await app.start(agent, 1, id="r", labels={"b": "2", "a": "1"}, deadline=later, budget=budget)


async def test_a_fork_compares_its_deadline_too() -> None:
    """Its other options are in its first event."""
    async with testing.app(agent) as app:
        await app.start(agent, 1, id="r")
        await app.settle()
        await app.fork("r", seq=1, id="f", deadline="2h")
        await app.advance("1m")
        await app.fork("r", seq=1, id="f", deadline="2h", by="ben")
        for wrong in ({"deadline": "3h"}, {}, {"deadline": "2h", "effects": "live"}):
            with pytest.raises(limpet.IdConflict):
                await app.fork("r", seq=1, id="f", **wrong)  # type: ignore[arg-type]
