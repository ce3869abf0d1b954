"""Unknown commits: the write was made, the reply was lost. Repeating every operation is safe."""

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
async def every_append_may_be_sent_twice(world: World) -> None:
    """An owner that repeats each of its appends has a log without a double."""
    owner = await world.own()
    for number in range(1, 11):
        leg = owner.extend(started(number), completed(number))
        await world.store.append(leg)
        assert isinstance(await owner.send(leg), Appended)
    log = await world.log()
    verify(log)
    assert len(log) == 22


@behaviour()
async def an_append_sent_twice_at_once_lands_once(world: World) -> None:
    """Both get the same answer."""
    owner = await world.own()
    leg = owner.extend(started())
    one, two = await asyncio.gather(world.store.append(leg), world.store.append(leg))
    assert one == two == Appended((leg.events[-1].event.head,))
    assert len(await world.log()) == 3


@behaviour()
async def an_append_may_be_repeated_through_another_store(world: World) -> None:
    """After a reconnect, or from a process that took the buffer over."""
    owner = await world.own()
    leg = owner.extend(started())
    await world.store.append(leg)
    assert isinstance(await (await world.another()).append(leg), Appended)
    assert len(await world.log()) == 3


@behaviour()
async def a_repeat_that_was_sealed_anew_is_a_conflict(world: World) -> None:
    """The same body sealed at another time is another event: the writer is told what stands."""
    owner = await world.own()
    first = owner.extend(started())
    await world.store.append(first)
    world.advance("1s")
    done = await world.store.append(owner.extend(started()))
    assert isinstance(done, Missed)
    assert done.events == first.events


@behaviour()
async def a_longer_repeat_is_not_taken_for_the_shorter_one(world: World) -> None:
    """If only the beginning of an append is in the log, it did not land: appends are all or nothing."""
    owner = await world.own()
    await world.store.append(owner.extend(started(1)))
    done = await world.store.append(owner.extend(started(1), started(2)))
    assert isinstance(done, Missed)
    assert len(await world.log()) == 3


@behaviour()
async def a_creation_may_be_repeated(world: World) -> None:
    """As often as one likes."""
    for _ in range(5):
        await world.create(input="x")
    assert await world.kinds() == ["run.created"]


@behaviour()
async def a_call_and_its_child_may_be_repeated(world: World) -> None:
    """A lost reply to an append of two legs, one of which creates, is known as landed."""
    parent = await world.own("p1")
    call = b.AgentCalled(name="call#1", run="c1", agent="a", mode="call", asked="")
    child = Create(run="c1", bodies=(created(parent=Lineage(run="p1")),), actor="w1")
    leg = parent.extend(call)
    for legs in ((leg, child), (child, leg)):
        assert isinstance(await world.store.append(*legs), Appended)
    assert (await world.kinds("p1")).count("agent.called") == 1
    assert await world.kinds("c1") == ["run.created"]


@behaviour()
async def an_answer_may_be_repeated(world: World) -> None:
    """The person who got no reply and sends it again is told yes."""
    owner = await world.own()
    await owner.append(asked())
    first = await world.store.send_commands("r1", answered(), actor="ann")
    assert await world.store.send_commands("r1", answered(), actor="ann") == first


@behaviour()
async def a_claim_whose_reply_was_lost_is_found_by_renewing(world: World) -> None:
    """The worker learns of runs that it has without knowing."""
    await world.create()
    await world.worker()
    await world.claim()
    renewal = await world.store.renew("w1", lease=LEASE)
    assert renewal.held == {"r1": 1}
    await Owner(world, await world.store.get("r1")).append(started())


@behaviour()
async def an_end_may_be_repeated(world: World) -> None:
    """A worker that did not hear that the run's end landed can send it again."""
    owner = await world.own()
    leg = owner.extend(b.RunCompleted(output=inline(1)))
    await world.store.append(leg)
    assert isinstance(await world.store.append(leg), Appended)
    assert (await world.kinds()).count("run.completed") == 1


@behaviour()
async def whoever_has_lost_the_run_is_not_told_that_an_append_landed(world: World) -> None:
    """Its reply was lost, and somebody else has the run since: it must not act on what it wrote."""
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
async def what_landed_is_not_late(world: World) -> None:
    """A superseded worker keeps what it could not write: what is in the log already is not kept again."""
    old = await world.own()
    leg = old.extend(started(), completed())
    await old.send(leg)
    await world.take_over()
    late = old.seal(started(2))
    await world.store.keep_late((*leg.events, *late))
    assert [kept.event for kept in await world.store.late("r1")] == [late[0].event]


@behaviour()
async def what_was_acknowledged_is_there_for_everybody(world: World) -> None:
    """A second store has it, opened before or after: nothing is acknowledged before it is committed."""
    owner = await world.own()
    other = await world.new_store().open()
    for number in range(1, 6):
        head = await owner.append(started(number))
        assert (await other.get("r1")).head == head
        fresh = await world.new_store().open()
        assert (await fresh.get("r1")).head == head
        await fresh.close()
    await other.close()
