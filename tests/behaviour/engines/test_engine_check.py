"""`doctor` compares the runs of a store with those that another engine has driven."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from limpet.clock import FrozenClock
from limpet.errors import EngineUnavailable
from limpet.events import bodies as b
from limpet.events import inline
from limpet.service.doctor import CheckOptions, check_store
from limpet.stores import ReadyRun, Store
from limpet.stores.memory import MemoryBackend

NAME = "listed"


class Listed:
    """An engine that has the listed runs driven, or is away."""

    name = NAME

    def __init__(self, *runs: str, reason: str = "") -> None:
        self._runs, self._reason = runs, reason

    async def open(self, store: str) -> None:
        """Check that the store has an identity."""
        assert store

    async def wake(self, run: ReadyRun, *, is_missed: bool = False) -> None:
        """Nothing is woken."""

    async def serve(self, host: Any) -> None:
        """Nothing is served."""

    async def unfinished(self) -> AsyncIterator[str]:
        """Yield the runs."""
        if self._reason:
            raise EngineUnavailable(engine=NAME, address="host:1", reason=self._reason)
        for run in self._runs:
            yield run

    async def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
async def world() -> AsyncIterator[tuple[Store, FrozenClock]]:
    """A store with a run of the engine, one of the workers of Limpet, and one that has moved away, all an hour old."""
    clock = FrozenClock()
    async with Store(MemoryBackend(clock)) as store:
        for run, engine in (("there", NAME), ("here", ""), ("left", NAME)):
            body = b.RunCreated(agent="a", agent_version="1", input=inline(None), engine=engine)
            await store.create(run, body, actor="test")
        await store.send_commands("left", b.RunMoved(command="m", engine="builtin"), actor="test")
        clock.advance("1h")
        yield store, clock


async def findings(world: tuple[Store, FrozenClock], engine: Listed | None) -> list[tuple[str, str]]:
    """Return the level and text of what is found about the engine."""
    found = await check_store(*world, CheckOptions(engine=engine))
    return [(each.level, str(each)) for each in found if each.what == "engine"]


async def test_both_sides_agree(world: tuple[Store, FrozenClock]) -> None:
    assert await findings(world, Listed("there")) == [("ok", "listed has 1 unfinished run")]


async def test_a_run_without_a_counterpart_is_named(world: tuple[Store, FrozenClock]) -> None:
    """The hint says who wakes it."""
    _, lost = await findings(world, Listed())
    assert lost[0] == "warn"
    assert lost[1].startswith("1 run unknown to listed: there. A worker wakes them when they are due: `limpet worker")


async def test_a_new_run_is_not_missed(world: tuple[Store, FrozenClock]) -> None:
    """The engine may not list it yet."""
    store, _ = world
    await store.create("new", b.RunCreated(agent="a", agent_version="1", input=inline(1), engine=NAME), actor="test")
    assert await findings(world, Listed("there")) == [("ok", "listed has 1 unfinished run")]


async def test_a_counterpart_without_a_run_is_named(world: tuple[Store, FrozenClock]) -> None:
    """It was deleted, or it has moved."""
    _, over = await findings(world, Listed("there", "left", "deleted"))
    assert over[0] == "warn"
    assert over[1].startswith("listed still has 2 runs driven that are over: deleted, left. A worker ends that within")


async def test_an_engine_that_is_away_is_a_fault(world: tuple[Store, FrozenClock]) -> None:
    """The other checks are made all the same."""
    [(level, text)] = await findings(world, Listed(reason="refused"))
    assert (level, text.split(". ")[0]) == ("bad", "listed at host:1 cannot be reached: refused [engine_unavailable]")


async def test_an_unknown_engine_is_said_to_be_unchecked(world: tuple[Store, FrozenClock]) -> None:
    assert await findings(world, None) == [
        ("warn", "1 unfinished run of listed, which was not checked. Set LIMPET_ENGINE to its address.")
    ]


async def test_a_store_without_other_engines_has_no_finding() -> None:
    clock = FrozenClock()
    async with Store(MemoryBackend(clock)) as store:
        await store.create("r", b.RunCreated(agent="a", agent_version="1", input=inline(1)), actor="test")
        assert await findings((store, clock), None) == []
