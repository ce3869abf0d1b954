"""Clocks: only the store's clock decides; wrong clocks and jumps neither lose nor duplicate anything."""

from limpet.errors import LeaseLost
from limpet.events import Wait, verify
from limpet.events import bodies as b
from limpet.stores import Extend
from limpet.stores.conformance.suite import (
    World,
    answered,
    asked,
    behaviour,
    completed,
    expect,
    signalled,
    started,
)

HOUR = 3_600_000_000
YEAR = 365 * 24 * HOUR


@behaviour()
async def the_store_returns_its_time_in_microseconds(world: World) -> None:
    """The store returns its time in microseconds, the same for every store on the same data."""
    other = await world.another()
    assert await world.store.now() == await other.now() == world.clock.now()


@behaviour()
async def a_wrong_owner_clock_affects_only_event_times(world: World) -> None:
    """Events with times that are an hour or a year off are accepted, and the run continues."""
    owner = await world.own()
    now = world.clock.now()
    for number, skew in enumerate((-HOUR, HOUR, -YEAR, YEAR), 1):
        events = owner.seal(started(number), completed(number), time=now + skew)
        await owner.send(Extend(run="r1", after=owner.head, fence=owner.fence, events=events))
    log = await world.log()
    verify(log)
    assert (await owner.row()).step == 4


@behaviour()
async def an_event_from_the_future_does_not_delay_commands(world: World) -> None:
    """A command after an event from the future gets that event's time, and wakes the run immediately."""
    owner = await world.own()
    waits = (Wait(what="signal", key="go"),)
    events = owner.seal(b.RunWaiting(waits=waits), time=world.clock.now() + YEAR)
    await owner.send(Extend(run="r1", after=owner.head, fence=owner.fence, events=events))
    await world.store.send_commands("r1", signalled(), actor="ann")
    verify(await world.log())
    assert len(await world.claim()) == 1


@behaviour()
async def a_wrong_owner_clock_does_not_change_an_expiry(world: World) -> None:
    """The store's clock alone decides whether an answer is in time."""
    owner = await world.own()
    events = owner.seal(asked(expires=world.clock.now() + HOUR), time=world.clock.now() + YEAR)
    await owner.send(Extend(run="r1", after=owner.head, fence=owner.fence, events=events))
    await world.store.send_commands("r1", answered(), actor="ann")


@behaviour()
async def a_clock_jump_forward_only_expires_leases(world: World) -> None:
    """After a jump of a year the run is taken over, and its log is intact."""
    await world.own()
    world.clock.set(world.clock.now() + YEAR)
    await world.worker("w2")
    await (await world.take(worker="w2")).append(started())
    verify(await world.log())


@behaviour()
async def a_clock_jump_back_delays_timers_but_loses_nothing(world: World) -> None:
    """After a jump back, timers fire when the clock is right again, and times in the log never decrease."""
    owner = await world.own()
    now = world.clock.now()
    await owner.append(b.RunWaiting(waits=(Wait(what="time", key="t"),), wake=now + 1_000_000))
    world.clock.set(now - YEAR)
    await world.worker()
    assert await world.claim() == ()
    world.clock.set(now + 1_000_000)
    await world.worker()
    assert len(await world.claim()) == 1
    verify(await world.log())


@behaviour()
async def a_clock_jump_back_does_not_restore_a_lost_fence(world: World) -> None:
    """A lost fence stays lost, whatever the clock shows."""
    old = await world.own()
    start = world.clock.now()
    new = await world.take_over()
    world.clock.set(start)
    old.head = new.head
    await expect(LeaseLost, old.send(old.extend(started())))


@behaviour()
async def a_run_created_while_the_clock_was_ahead_becomes_ready(world: World) -> None:
    """A run created while the clock was ahead is ready at the latest at that time, and delays no other run."""
    now = world.clock.now()
    world.clock.set(now + HOUR)
    await world.create("early")
    world.clock.set(now)
    await world.create("now")
    await world.worker()
    assert [claimed.row.id for claimed in await world.claim()] == ["now"]
    world.clock.set(now + HOUR)
    await world.worker()
    assert [claimed.row.id for claimed in await world.claim()] == ["early"]
