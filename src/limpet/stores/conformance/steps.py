"""Reading the events of some steps, by number."""

from limpet.events import Failure, StatePatch
from limpet.events import bodies as b
from limpet.stores.conformance.suite import World, behaviour, completed, forked, started
from limpet.stores.fork_reads import StepRange


@behaviour()
async def a_page_of_steps_has_all_their_events(world: World) -> None:
    """A page has every event of its steps, in order, and no event of other steps or of none."""
    owner = await world.own()
    for number in range(1, 9):
        await owner.append(started(number), b.StatePatched(name=f"p#{number}", patch=StatePatch(goal=str(number))))
        await owner.append(completed(number))
    assert await _read(world, StepRange(after=2, limit=3)) == _pairs(3, 4, 5)
    assert await _read(world, StepRange(limit=2, backwards=True)) == _pairs(7, 8)
    assert await _read(world, StepRange(after=2, before=5)) == _pairs(3, 4)
    assert await _read(world, StepRange(after=8)) == []


@behaviour()
async def parallel_and_late_events_belong_to_their_step(world: World) -> None:
    """A step's retry, its late end and its compensation are found with it, wherever they are in the log."""
    owner = await world.own()
    failure = Failure(type="builtins.OSError", message="busy")
    await owner.append(started(2), started(1))
    await owner.append(b.StepFailed(name="t#2", number=2, attempt=1, failure=failure, retry_at=5))
    await owner.append(started(3), completed(3), started(2, attempt=2), completed(1))
    await owner.append(completed(2), b.CompensationStarted(number=1, attempt=1, key="k"))
    await owner.append(b.CompensationCompleted(number=1, attempt=1))
    found = ["step.started", "step.completed", "compensation.started", "compensation.completed"]
    assert await _kinds(world, StepRange(limit=1)) == found
    found = ["step.started", "step.failed", "step.started", "step.completed"]
    assert await _kinds(world, StepRange(after=1, limit=1)) == found


@behaviour()
async def steps_are_read_as_they_were_after_an_event(world: World) -> None:
    """Events after `upto` are not read, nor are steps that started later."""
    owner = await world.own()
    await owner.append(started(1), completed(1), started(2), completed(2), started(3))
    assert await _read(world, StepRange(upto=5)) == [*_pairs(1), ("step.started", 2)]
    assert await _read(world, StepRange(limit=1, backwards=True, upto=5)) == [("step.started", 2)]


@behaviour()
async def a_fork_has_the_steps_that_it_shares(world: World) -> None:
    """A fork's steps are the shared ones up to the fork point and its own, with the fork's first event."""
    owner = await world.own()
    await owner.append(started(1), completed(1), started(2), completed(2))
    await world.store.create("r1.1", forked(4, step=1), actor="app")
    fork = await world.take("r1.1")
    await fork.append(started(2), completed(2, "other"), b.CompensationStarted(number=1, attempt=1, key="k"))
    await world.store.create("r1.2", forked(7, of="r1.1", step=2), actor="app")
    await owner.append(started(3), completed(3))
    events = await world.store.read_steps("r1.2", StepRange())
    assert [(event.run, event.seq) for event in events] == [
        ("r1", 3),
        ("r1", 4),
        ("r1.1", 5),
        ("r1.1", 7),
        ("r1.2", 8),
    ]
    assert [event.seq for event in await world.store.read_steps("r1.1", StepRange(limit=1))] == [3, 4, 5, 9]
    assert [event.seq for event in await world.store.read_steps("r1", StepRange(after=1))] == [5, 6, 7, 8]


@behaviour()
async def steps_are_found_after_a_rebuild(world: World) -> None:
    """A rebuild indexes all events of a run by step; the rows match the log before and after."""
    owner = await world.own()
    await owner.append(started(1), completed(1), started(2))
    await world.create("r2")
    before = await world.store.read_steps("r1", StepRange())
    assert await world.store.check_rows("r1") == []
    await world.store.rebuild("r1")
    assert await world.store.check_rows("r1") == []
    assert await world.store.read_steps("r1", StepRange()) == before
    assert await world.store.read_steps("r2", StepRange()) == []


async def _read(world: World, steps: StepRange) -> list[tuple[str, int]]:
    found = []
    for event in await world.store.read_steps("r1", steps):
        body = world.store.decode(event)
        assert isinstance(body, b.StepStarted | b.StepCompleted), body
        found.append((event.kind, body.number))
    return found


async def _kinds(world: World, steps: StepRange) -> list[str]:
    return [event.kind for event in await world.store.read_steps("r1", steps)]


def _pairs(*numbers: int) -> list[tuple[str, int]]:
    return [(kind, number) for number in numbers for kind in ("step.started", "step.completed")]
