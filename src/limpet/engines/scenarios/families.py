"""Runs that other runs make: called, handed off to, started, and forked."""

from limpet.engines.scenarios.agents import caller, giver, starter, walker
from limpet.engines.scenarios.scenario import ScenarioWorld, scenario


@scenario()
async def call(world: ScenarioWorld) -> None:
    """A run waits for the runs that it calls, and gets their results."""
    run = await world.start(caller)
    made = (await world.until_ended(run)).output
    assert len(set(made)) == 2
    world.expect(run, "before", *(f"{each} {which}" for each in made for which in ("first", "second")), "after")


@scenario()
async def handoff(world: ScenarioWorld) -> None:
    """The result of a run that hands off is that of the other run."""
    run = await world.start(giver)
    other = (await world.until_ended(run)).output
    assert other.startswith(f"{run}.")
    world.expect(run, "before", f"{other} first", f"{other} second")


@scenario()
async def start(world: ScenarioWorld) -> None:
    """A run that starts another one ends without it; the other run completes, too."""
    run = await world.start(starter)
    later = f"{run}.later"
    assert (await world.until_ended(run)).output == later
    world.expect(run, "before", f"{later} first", f"{later} second")
    assert (await world.until_ended(later)).output == later


@scenario()
async def fork(world: ScenarioWorld) -> None:
    """A fork of a completed run executes the steps after the place where it was forked, and no others."""
    run = await world.start(walker, world.id())
    await world.until_ended(run)
    world.expect(run, "a", "b", "b", "c", "c")
    made = await world.app.fork(run, at=2, effects="live", id=world.id("fork"))
    assert (await world.until_ended(made.id)).output == made.id
