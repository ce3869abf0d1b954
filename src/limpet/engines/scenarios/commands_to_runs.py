"""Commands to runs: cancel, pause and resume, also of failed runs; budgets and deadlines that are extended."""

from limpet.engines.scenarios.agents import booker, broken, holder, late, listener, thrifty
from limpet.engines.scenarios.scenario import ScenarioWorld, scenario


@scenario()
async def cancel(world: ScenarioWorld) -> None:
    """A cancelled run ends, whether it is driven or parked; a running effect finishes, and no other follows."""
    driven, parked = await world.start(holder, name="driven"), await world.start(listener, 1, name="parked")
    world.expect(driven, "held", status="cancelled")
    world.expect(parked, status="cancelled")
    await world.until_marked(f"{driven} holds")
    await world.until_waiting(parked, "signal")
    await world.app.cancel(driven, reason="as the scenario asked")
    await world.app.cancel(parked, reason="as the scenario asked")
    world.ledger.mark(f"{driven} released")
    await world.until_ended(parked, "cancelled")
    await world.until_ended(driven, "cancelled")


@scenario()
async def compensation(world: ScenarioWorld) -> None:
    """The effects of a run that fails or is cancelled are undone, in reverse order, once each."""
    # One after the other: workers die in both, and a run is quarantined if it is the only suspect too often.
    await _undone(world, await world.start(booker, "fail", name="failed"), "failed")
    cancelled = await world.start(booker, "wait", name="cancelled")
    await world.until_waiting(cancelled, "signal")
    await world.app.cancel(cancelled, reason="as the scenario asked")
    await _undone(world, cancelled, "cancelled")


async def _undone(world: ScenarioWorld, run: str, status: str) -> None:
    """Expect that a run ends with this status, and that its effects are undone in reverse order."""
    world.expect(run, "a", "b", "undo b", "undo a", status=status)
    await world.until_ended(run, status)
    undone = [each.label for each in world.ledger.entries(run) if each.label.startswith("undo")]
    assert undone == sorted(undone, reverse=True)


@scenario()
async def pause(world: ScenarioWorld) -> None:
    """A paused run does nothing until it is resumed, whether it was driven or parked."""
    driven, parked = await world.start(holder, name="driven"), await world.start(late, name="parked")
    world.expect(driven, "held", "after")
    world.expect(parked, "after")
    await world.until_marked(f"{driven} holds")
    await world.until_waiting(parked, "signal")
    for run in (driven, parked):
        await world.app.pause(run)
    world.ledger.mark(f"{driven} released")
    await world.app.signal(parked, "news", 1)
    for run in (driven, parked):
        await world.until_waiting(run, "operator:paused")
        assert not world.has_happened(run, "after")
        await world.app.resume(run)
        await world.until_ended(run)


@scenario()
async def resume_a_failed_run(world: ScenarioWorld) -> None:
    """A failed run is resumed from its failed step."""
    run = await world.start(broken)
    world.expect(run, "before", "mended")
    await world.until_ended(run, "failed")
    world.ledger.mark(f"{run} mended")
    await world.app.resume(run)
    await _until_live(world, run)
    assert (await world.until_ended(run)).output == "done"


@scenario()
async def budget(world: ScenarioWorld) -> None:
    """A run that fails on its budget completes when the budget is extended, and the run resumed."""
    run = await world.start(thrifty)
    world.expect(run, "a", "b", "c")
    await world.until_ended(run, "failed")
    await world.app.extend(run, budget={"max_steps": 9})
    await world.app.resume(run)
    await _until_live(world, run)
    assert (await world.until_ended(run)).output == "done"


@scenario()
async def deadline(world: ScenarioWorld) -> None:
    """A run that waits past its deadline fails, and completes when the deadline is extended, and the run resumed."""
    run = await world.start(late, deadline="1s")
    world.expect(run, "after")
    await world.until_ended(run, "failed")
    await world.app.extend(run, deadline="1h")
    await world.app.resume(run)
    await world.app.signal(run, "news", 3)
    await _until_live(world, run)
    assert (await world.until_ended(run)).output == 3


async def _until_live(world: ScenarioWorld, run: str) -> None:
    """Wait until a run that failed is not failed any more."""

    async def look() -> bool:
        return (await world.app.info(run)).status != "failed"

    await world.until(look)
