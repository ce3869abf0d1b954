"""Runs that share workers: limits of concurrency, exclusive sessions, versions, and a run that kills its workers."""

from limpet.engines.scenarios.agents import errand, exclusive, letter_1, letter_2, letter_3, limited, poisonous
from limpet.engines.scenarios.scenario import ScenarioWorld, scenario


@scenario()
async def concurrency(world: ScenarioWorld) -> None:
    """No two runs of an agent with `concurrency=1` are driven at the same time."""
    runs = [await world.start(limited, world.tag, name=f"run-{number}") for number in range(3)]
    for run in runs:
        world.expect(run, "before", "after")
    for run in runs:
        await world.until_ended(run)
    found = world.sections()
    for begins, ends in zip(found[::2], found[1::2], strict=True):
        assert (begins.label, begins.key, ends.key) == (ends.label, "begins", "ends"), found


@scenario()
async def exclusive_session(world: ScenarioWorld) -> None:
    """A run of an exclusive session begins when the run before it has ended."""
    runs = [await world.start(exclusive, world.tag, name=f"run-{n}", session=world.tag) for n in range(3)]
    for run in runs:
        world.expect(run, "between")
    for run in runs:
        await world.until_ended(run)
    order = [each.label for each in world.sections()]
    assert order == sorted(order, key=order.index), order


@scenario()
async def versions(world: ScenarioWorld) -> None:
    """Runs of an old version finish with the old code, or with newer code that accepts them."""
    for agent, code in ((letter_1, "1"), (letter_2, "3"), (letter_3, "3")):
        run = await world.start(agent, name=f"version-{agent.version}")
        world.expect(run, "before", "after")
        await world.app.signal(run, "news", 1)
        info = await world.until_ended(run)
        assert (info.version, info.output) == (agent.version, code)


@scenario(needs_processes=True)
async def quarantine(world: ScenarioWorld) -> None:
    """A run that kills its workers is quarantined, others complete, and it completes when its cause is removed."""
    bad, good = await world.start(poisonous, name="bad"), await world.start(errand, name="good")
    world.expect(bad, "after")
    world.expect(good, "a", "b", "mail", "c")
    await world.until_ended(good)
    await world.until_waiting(bad, "operator:quarantined")
    world.ledger.mark(f"{bad} mended")
    await world.app.resume(bad)
    assert (await world.until_ended(bad)).output == "done"
