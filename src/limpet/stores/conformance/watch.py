"""Watching: every change is reported to all watches, and none is missed."""

import asyncio
from contextlib import ExitStack

from limpet.stores.conformance.suite import LEASE, World, behaviour, created, signalled, started


@behaviour()
async def a_watch_is_notified_of_every_write(world: World) -> None:
    """A watch is notified of an append, a creation and a command."""
    owner = await world.own()
    with world.store.watch() as watch:
        await owner.append(started())
        await watch.changed()
        await world.create("r2")
        await watch.changed()
        await world.store.send_commands("r2", signalled(), actor="ann")
        await watch.changed()


@behaviour()
async def a_change_between_two_calls_is_not_missed(world: World) -> None:
    """A change between two calls of `changed` is reported at the next call."""
    with world.store.watch() as watch:
        await world.create("r1")
        await watch.changed()
        await world.create("r2")
        await world.create("r3")
        await watch.changed()
        assert await world.store.count() == 3


@behaviour()
async def every_watch_is_notified(world: World) -> None:
    """All of ten watches are notified."""
    with ExitStack() as watching:
        watches = [watching.enter_context(world.store.watch()) for _ in range(10)]
        waiting = [asyncio.create_task(watch.changed()) for watch in watches]
        await world.create()
        await asyncio.gather(*waiting)


@behaviour()
async def watches_can_be_added_and_removed_during_writes(world: World) -> None:
    """Watches can be added and removed during writes."""
    for place in range(20):
        with world.store.watch():
            await world.create(f"r{place}")
    assert await world.store.count() == 20


@behaviour()
async def closing_the_store_wakes_all_watches(world: World) -> None:
    """Closing the store wakes all watches."""
    store = await world.new_store().open()
    with store.watch() as watch:
        waiting = asyncio.create_task(watch.changed())
        await store.close()
        await waiting


@behaviour()
async def renewals_and_empty_claims_do_not_notify_watches(world: World) -> None:
    """A renewal and an empty claim do not notify watches."""
    await world.worker()
    with world.store.watch() as watch:
        await world.create("r1", agent="unserved")
        await world.store.renew("w1", lease=LEASE)  # Earlier notifications have been delivered by now.
        await watch.changed()
        waiting = asyncio.create_task(watch.changed())
        for _ in range(10):
            assert await world.claim() == ()
            await world.store.renew("w1", lease=LEASE)
        notified = waiting.done()
        await world.create("r2")
        await waiting
    assert not notified or world.capabilities.processes


@behaviour("processes")
async def a_watch_is_notified_of_writes_through_another_store(world: World) -> None:
    """A watch is notified of writes through another store on the same data."""
    other = await world.another()
    with world.store.watch() as watch:
        for place in range(5):
            await other.create(f"r{place}", created(), actor="test")
            while await world.store.count() <= place:
                await watch.changed()


@behaviour("processes")
async def a_watch_is_notified_of_writes_of_another_process(world: World) -> None:
    """A watch is notified of writes of another process."""
    with world.store.watch() as watch:
        writing = asyncio.create_task(world.processes("create", 1, "5"))
        while await world.store.count() < 5:
            await watch.changed()
        await writing
