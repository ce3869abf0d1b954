"""Waits: for a person, for time, and for signals."""

from limpet.engines.scenarios.agents import asker, chatter, listener, sender, sleeper
from limpet.engines.scenarios.scenario import ScenarioWorld, scenario


@scenario()
async def ask(world: ScenarioWorld) -> None:
    """A run that asks is parked, and continues when another process answers."""
    run = await world.start(asker)
    world.expect(run, "before", "after")
    request = await world.until_request(run)
    await world.until_waiting(run, "person")
    assert not world.has_happened(run, "after")
    await world.app.answer(request, True, by="ann")
    assert (await world.until_ended(run)).output is True


@scenario()
async def sleep(world: ScenarioWorld) -> None:
    """A run that sleeps continues by itself, also if it was parked meanwhile."""
    short, long = await world.start(sleeper, "20ms", name="short"), await world.start(sleeper, "1.5s", name="long")
    for run in (short, long):
        world.expect(run, "before", "after")
    for run in (short, long):
        assert (await world.until_ended(run)).output == "awake"


@scenario()
async def signal(world: ScenarioWorld) -> None:
    """A run receives signals that come before it waits, while it is driven, and while it is parked."""
    run = await world.start(listener, 3)
    world.expect(run, "heard 0", "heard 1", "heard 2")
    await world.app.signal(run, "news", 1)
    await world.app.signal(run, "news", 2)
    await world.until_waiting(run, "signal")
    await world.app.signal(run, "news", 3)
    assert (await world.until_ended(run)).output == [1, 2, 3]


@scenario()
async def signal_from_a_run(world: ScenarioWorld) -> None:
    """A parked run receives a signal of another run."""
    run = await world.start(listener, 1, name="listener")
    await world.until_waiting(run, "signal")
    other = await world.start(sender, run, name="sender")
    world.expect(run, "heard 0")
    world.expect(other, "prepare")
    assert (await world.until_ended(run)).output == [7]
    assert (await world.until_ended(other)).output == "sent"


@scenario()
async def turns(world: ScenarioWorld) -> None:
    """A run of several turns continues at its current turn."""
    run = await world.start(chatter, 3)
    for number, said in enumerate(("one", "two", "three"), start=1):
        await world.app.signal(run, "user", said)
        world.expect(run, f"turn {number} {said}")
    assert (await world.until_ended(run)).output == "3 turns"
