"""Steps: a worker may die at every boundary, and each effect happens once."""

from limpet.engines.scenarios.agents import errand, thinker
from limpet.engines.scenarios.scenario import ScenarioWorld, scenario


@scenario()
async def steps(world: ScenarioWorld) -> None:
    """A run of four steps completes, wherever its workers die."""
    run = await world.start(errand)
    world.expect(run, "a", "b", "mail", "c")
    assert (await world.until_ended(run)).output == "done"


@scenario()
async def llm_agent(world: ScenarioWorld) -> None:
    """An agent that a model drives calls two tools, and answers."""
    run = await world.start(thinker, world.id())
    world.expect(run, "first", "second")
    assert (await world.until_ended(run)).output == "It is done."
