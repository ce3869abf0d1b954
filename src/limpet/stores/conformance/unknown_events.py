"""Unknown commits: the write took place, and its reply was lost. Every operation is safe to repeat."""

import asyncio

from limpet.errors import LeaseLost
from limpet.events import Lineage, inline, verify
from limpet.events import bodies as b
from limpet.stores import Appended, Create, Missed
from limpet.stores.conformance.suite import (
    LEASE,
    Owner,
    World,
    answered,
    asked,
    behaviour,
    completed,
    created,
    expect,
    started,
)


@behaviour()
async def every_append_can_be_repeated(world: World) -> None:
    """An owner that repeats each of its appends has a log without duplicates."""
    owner = await world.own()
    for number in range(1, 11):
        leg = owner.extend(started(number), completed(number))
        await world.store.append(leg)
        assert isinstance(await owner.send(leg), Appended)
    log = await world.log()
    verify(log)
    assert len(log) == 22


@behaviour()
async def an_append_sent_twice_concurrently_is_written_once(world: World) -> None:
    """An append sent twice concurrently returns the same result to both calls, and is written once."""
    owner = await world.own()
    leg = owner.extend(started())
    one, two = await asyncio.gather(world.store.append(leg), world.store.append(leg))
    assert one == two == Appended((leg.events[-1].event.head,))
    assert len(await world.log()) == 3


@behaviour()
async def an_append_can_be_repeated_through_another_store(world: World) -> None:
    """An append can be repeated through another store on the same data."""
    owner = await world.own()
    leg = owner.extend(started())
    await world.store.append(leg)
    assert isinstance(await (await world.another()).append(leg), Appended)
    assert len(await world.log()) == 3


@behaviour()
async def the_same_body_sealed_again_is_another_event(world: World) -> None:
    """The same body sealed at another time is another event: the writer gets the events that it missed."""
    owner = await world.own()
    first = owner.extend(started())
    await world.store.append(first)
    world.advance("1s")
    done = await world.store.append(owner.extend(started()))
    assert isinstance(done, Missed)
    assert done.events == first.events


@behaviour()
async def a_repeat_with_more_events_is_not_reported_as_written(world: World) -> None:
    """A repeat with more events than are in the log is not reported as written, since appends are atomic."""
    owner = await world.own()
    await world.store.append(owner.extend(started(1)))
    done = await world.store.append(owner.extend(started(1), started(2)))
    assert isinstance(done, Missed)
    assert len(await world.log()) == 3


@behaviour()
async def a_creation_can_be_repeated(world: World) -> None:
    """A creation can be repeated any number of times."""
    for _ in range(5):
        await world.create(input="x")
    assert await world.kinds() == ["run.created"]


@behaviour()
async def the_append_of_a_call_and_its_child_can_be_repeated(world: World) -> None:
    """An append of two legs, one of which creates a run, can be repeated."""
    parent = await world.own("p1")
    call = b.AgentCalled(name="call#1", run="c1", agent="a", mode="call", asked="")
    child = Create(run="c1", bodies=(created(parent=Lineage(run="p1")),), actor="w1")
    leg = parent.extend(call)
    for legs in ((leg, child), (child, leg)):
        assert isinstance(await world.store.append(*legs), Appended)
    assert (await world.kinds("p1")).count("agent.called") == 1
    assert await world.kinds("c1") == ["run.created"]


@behaviour()
async def an_answer_can_be_repeated(world: World) -> None:
    """A repeated answer succeeds."""
    owner = await world.own()
    await owner.append(asked())
    first = await world.store.send_commands("r1", answered(), actor="ann")
    assert await world.store.send_commands("r1", answered(), actor="ann") == first


@behaviour()
async def a_renewal_returns_runs_of_a_claim_whose_reply_was_lost(world: World) -> None:
    """A renewal returns runs that the worker holds without knowing, after the reply to a claim was lost."""
    await world.create()
    await world.worker()
    await world.claim()
    renewal = await world.store.renew("w1", lease=LEASE)
    assert renewal.held == {"r1": 1}
    await Owner(world, await world.store.get("r1")).append(started())


@behaviour()
async def the_append_that_ends_a_run_can_be_repeated(world: World) -> None:
    """The append that ends a run can be repeated."""
    owner = await world.own()
    leg = owner.extend(b.RunCompleted(output=inline(1)))
    await world.store.append(leg)
    assert isinstance(await world.store.append(leg), Appended)
    assert (await world.kinds()).count("run.completed") == 1


@behaviour()
async def a_repeated_append_after_losing_the_run_raises_lease_lost(world: World) -> None:
    """A worker that has lost the run gets LeaseLost for a repeated append, although it was written."""
    old = await world.own()
    leg = old.extend(started())
    await world.store.append(leg)
    new = await world.take_over()
    for legs in ((leg,), (leg, Create(run="c1", bodies=(created(),), actor="w1"))):
        error = await expect(LeaseLost, world.store.append(*legs))
        assert (error.fence, error.current) == (1, 2)
    assert (await world.log())[-1].head == new.head
    await new.append(completed())


@behaviour()
async def events_in_the_log_are_not_stored_as_late_results(world: World) -> None:
    """Events that are already in the log are not stored as late results."""
    old = await world.own()
    leg = old.extend(started(), completed())
    await old.send(leg)
    await world.take_over()
    late = old.seal(started(2))
    await world.store.keep_late((*leg.events, *late))
    assert [kept.event for kept in await world.store.late("r1")] == [late[0].event]


@behaviour()
async def acknowledged_writes_are_visible_in_every_store(world: World) -> None:
    """Acknowledged writes are visible in another store, whether opened before or after."""
    owner = await world.own()
    other = await world.new_store().open()
    for number in range(1, 6):
        head = await owner.append(started(number))
        assert (await other.get("r1")).head == head
        fresh = await world.new_store().open()
        assert (await fresh.get("r1")).head == head
        await fresh.close()
    await other.close()
