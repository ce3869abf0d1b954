"""Fencing: a superseded worker cannot add events."""

import asyncio

from limpet.errors import InvalidAppend, LeaseLost
from limpet.events import bodies as b
from limpet.events import inline
from limpet.stores import Extend
from limpet.stores.conformance.suite import World, behaviour, completed, expect, signalled, started


@behaviour()
async def every_claim_gives_a_higher_fence(world: World) -> None:
    """Every claim gives a higher fence, and fences never decrease along a log."""
    await world.create()
    await world.worker()
    fences = []
    for _ in range(3):
        [claimed] = await world.claim()
        fences.append(claimed.row.fence)
        await world.store.release("r1", fence=claimed.row.fence, worker="w1", reason="test")
    assert fences == [1, 2, 3]
    along = [event.fence for event in await world.log()]
    assert along == sorted(along)


@behaviour()
async def a_superseded_workers_append_is_refused(world: World) -> None:
    """After another worker has claimed the run, the previous owner's append is refused and changes nothing."""
    old = await world.own()
    new = await world.take_over()
    error = await expect(LeaseLost, old.send(old.extend(completed())))
    assert (error.fence, error.current) == (1, 2)
    assert (await new.row()).head == new.head


@behaviour()
async def a_superseded_worker_with_the_newest_head_is_refused(world: World) -> None:
    """A superseded worker that knows the newest head is refused as well."""
    old = await world.own()
    new = await world.take_over()
    old.head = new.head
    await expect(LeaseLost, old.send(old.extend(completed())))
    await new.append(started())


@behaviour()
async def a_superseded_worker_cannot_end_a_run(world: World) -> None:
    """A superseded worker cannot end, park or release a run."""
    old = await world.own()
    new = await world.take_over()
    for body in (b.RunCompleted(output=inline(1)), b.RunWaiting(waits=())):
        old.head = new.head
        await expect(LeaseLost, old.send(old.extend(body)))
    await expect(LeaseLost, world.store.release("r1", fence=old.fence, worker="w1", reason="test"))
    assert (await new.row()).worker == "w2"


@behaviour()
async def a_fence_that_was_never_issued_is_refused(world: World) -> None:
    """A fence that was never issued is refused, also a higher one."""
    owner = await world.own()
    owner.fence = 99
    await expect(LeaseLost, owner.send(owner.extend(started())))


@behaviour()
async def an_owner_event_without_a_fence_is_refused(world: World) -> None:
    """An owner's event without a fence, or with fence 0, is refused."""
    owner = await world.own()
    leg = owner.extend(started())
    await expect(InvalidAppend, world.store.append(Extend(run="r1", after=owner.head, fence=None, events=leg.events)))
    owner.fence = 0
    await expect(InvalidAppend, owner.send(owner.extend(started())))
    assert len(await world.log()) == 2


@behaviour()
async def an_unclaimed_run_refuses_every_fence(world: World) -> None:
    """Before the first claim, no fence is valid."""
    owner = await world.own("r1")
    row = await world.create("r2")
    owner.run, owner.head = "r2", row.head
    await expect(LeaseLost, owner.send(owner.extend(started())))


@behaviour()
async def a_released_run_refuses_the_previous_fence(world: World) -> None:
    """After a release, the previous owner's fence is invalid, even before another claim."""
    owner = await world.own()
    await world.store.release("r1", fence=owner.fence, worker="w1", reason="test")
    owner.head = (await owner.row()).head
    await expect(LeaseLost, owner.send(owner.extend(started())))


@behaviour()
async def a_parked_run_refuses_the_previous_fence(world: World) -> None:
    """After parking, the previous owner's fence is invalid."""
    owner = await world.own()
    await owner.append(b.RunWaiting(waits=()))
    await expect(LeaseLost, owner.send(owner.extend(started())))


@behaviour()
async def a_worker_may_write_after_its_lease_until_a_take_over(world: World) -> None:
    """After its lease has expired, a worker may write until another worker has claimed the run."""
    owner = await world.own()
    world.advance("1h")
    await owner.append(completed())
    assert (await owner.row()).worker == "w1"


@behaviour()
async def of_two_appends_under_one_fence_one_is_written(world: World) -> None:
    """Of two appends after the same head under the same fence, one is written; the other misses it."""
    owner = await world.own()
    legs = (owner.extend(started(1)), owner.extend(started(2)))
    done = await asyncio.gather(*(world.store.append(leg) for leg in legs))
    assert sorted(type(each).__name__ for each in done) == ["Appended", "Missed"]
    assert len(await world.log()) == 3


@behaviour()
async def commands_are_sealed_under_the_runs_current_fence(world: World) -> None:
    """A command needs no fence, and is sealed under the run's current one."""
    await world.own()
    await world.store.send_commands("r1", signalled(), actor="ann")
    assert (await world.log())[-1].fence == 1


@behaviour()
async def late_results_are_stored_but_not_in_the_log(world: World) -> None:
    """Late results of a superseded worker are stored and shown, but are not part of the log."""
    old = await world.own()
    late = old.seal(completed(output="paid"))
    new = await world.take_over()
    await world.store.keep_late(late)
    [kept] = await world.store.late("r1")
    assert (kept.event, kept.time) == (late[0].event, world.clock.now())
    assert (await new.row()).head == new.head


@behaviour()
async def late_results_belong_to_one_run(world: World) -> None:
    """Late results belong to one run."""
    old = await world.own("r1")
    await world.create("r2")
    await world.store.keep_late(old.seal(completed()))
    assert await world.store.late("r2") == []
