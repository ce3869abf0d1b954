"""The suite fails if an effect is doubled or lost, if a run ends otherwise, and if nothing drives a run."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

import limpet
from limpet.engines.scenarios import EngineHarness, Scenario, ScenarioWorld, scenarios
from limpet.engines.scenarios.agents import agents, errand

EFFECTS = ("a", "b", "mail", "c")


async def play_well(world: ScenarioWorld) -> str:
    """Play a scenario that passes, and return its run."""
    run = await world.start(errand)
    world.expect(run, *EFFECTS)
    await world.until_ended(run)
    return run


async def double_an_effect(world: ScenarioWorld) -> None:
    world.ledger.record(await play_well(world), "a", "another key")


async def repeat_a_mail(world: ScenarioWorld) -> None:
    world.ledger.record(await play_well(world), "mail", "")


async def lose_an_effect(world: ScenarioWorld) -> None:
    world.expect(await play_well(world), "d")


async def end_otherwise(world: ScenarioWorld) -> None:
    world.expect(await play_well(world), status="failed")


async def make_another_run(world: ScenarioWorld) -> None:
    await play_well(world)
    await world.start(errand, name="other")


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[EngineHarness]:
    """The built-in worker, in this process."""
    store = f"sqlite:///{tmp_path / 'limpet.db'}"
    async with limpet.open(store, agents=agents) as app:
        with EngineHarness(store=store, app=app, ledger=tmp_path) as made:
            yield made


@pytest.mark.parametrize(
    "play",
    [double_an_effect, repeat_a_mail, lose_an_effect, end_otherwise, make_another_run],
    ids=lambda each: each.__name__,
)
async def test_a_scenario_notices_what_happened(
    play: Callable[[ScenarioWorld], Awaitable[None]], harness: EngineHarness
) -> None:
    """Whatever the store says: the ledger, the statuses and the runs must be those that were expected."""
    with pytest.raises(AssertionError):
        await Scenario("wrong", "", play, False).run(harness)


async def test_a_scenario_whose_run_is_not_driven_fails(tmp_path: Path) -> None:
    """There is no worker."""
    store = f"sqlite:///{tmp_path / 'limpet.db'}"
    async with limpet.open(store, agents=agents, worker=False) as app:
        with EngineHarness(store=store, app=app, ledger=tmp_path, patience=0.2) as made, pytest.raises(TimeoutError):
            await scenarios()[0].run(made)


def test_each_scenario_has_a_name_and_a_sentence() -> None:
    """Its docstring says what must be true."""
    found = scenarios()
    assert len({each.name for each in found}) == len(found) == 21
    assert all(each.summary.endswith(".") for each in found)
