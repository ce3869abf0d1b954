"""Duties: one worker at a time does the work of the store, under a lease, and not before it is due."""

import asyncio

from limpet.stores import DutyRow
from limpet.stores.conformance.suite import World, behaviour
from limpet.stores.writes import DutyTurn

SECOND = 1_000_000
HOUR = 3_600 * SECOND


async def _take(world: World, worker: str = "w1", duty: str = "tidy", lease: int = 10 * SECOND) -> DutyTurn:
    return await world.store.take_duty(duty, worker, lease=lease, every=HOUR)


async def _row(world: World) -> DutyRow:
    [found] = await world.store.duties()
    return found


@behaviour()
async def a_duty_that_was_never_done_is_taken_immediately(world: World) -> None:
    """The first worker takes it, and its row says who holds it and until when."""
    assert await world.store.duties() == []
    assert (await _take(world)).taken
    lease = world.clock.now() + 10 * SECOND
    assert await _row(world) == DutyRow(name="tidy", every=HOUR, worker="w1", lease_until=lease)


@behaviour()
async def a_duty_that_another_worker_holds_is_not_taken(world: World) -> None:
    """The reply says when its lease expires; the holder itself may take it again."""
    assert (await _take(world)).taken
    world.advance("4s")
    assert await _take(world, "w2") == DutyTurn(taken=False, wait=6 * SECOND)
    assert (await _take(world)).taken


@behaviour()
async def a_duty_whose_lease_has_expired_is_taken_by_another_worker(world: World) -> None:
    """The first worker no longer holds it: it can neither renew nor end it."""
    assert (await _take(world)).taken
    world.advance("10s")
    assert (await _take(world, "w2")).taken
    assert not await world.store.keep_duty("tidy", "w1", lease=10 * SECOND)
    assert not await world.store.end_duty("tidy", "w1", is_done=True)
    row = await _row(world)
    assert (row.worker, row.done) == ("w2", None)


@behaviour()
async def a_renewed_lease_keeps_other_workers_away(world: World) -> None:
    """A duty that takes longer than its lease is not taken by another worker while it is renewed."""
    assert (await _take(world)).taken
    for _ in range(3):
        world.advance("9s")
        assert await world.store.keep_duty("tidy", "w1", lease=10 * SECOND)
        assert not (await _take(world, "w2")).taken


@behaviour()
async def a_done_duty_is_due_again_after_its_interval(world: World) -> None:
    """The row says when and by which worker it was done; no worker takes it before it is due."""
    assert (await _take(world)).taken
    world.advance("5s")
    assert await world.store.end_duty("tidy", "w1", is_done=True)
    done = world.clock.now()
    assert await _row(world) == DutyRow(name="tidy", every=HOUR, done=done, done_by="w1")
    world.advance("59m")
    assert await _take(world, "w2") == DutyTurn(taken=False, wait=60 * SECOND)
    world.advance("1m")
    assert (await _take(world, "w2")).taken
    row = await _row(world)
    assert (row.worker, row.done, row.done_by) == ("w2", done, "w1")


@behaviour()
async def a_released_duty_stays_due(world: World) -> None:
    """A worker that stops releases it; another worker takes it at once, and the last time it was done is unchanged."""
    assert (await _take(world)).taken
    assert await world.store.end_duty("tidy", "w1", is_done=False)
    assert await _row(world) == DutyRow(name="tidy", every=HOUR)
    assert (await _take(world, "w2")).taken


@behaviour()
async def the_error_of_a_duty_is_kept_until_it_succeeds(world: World) -> None:
    """A failed round leaves its reason, which a worker that only stops does not remove."""
    assert (await _take(world)).taken
    assert await world.store.end_duty("tidy", "w1", is_done=False, error="no space\0left 😀")
    assert (await _take(world)).taken
    assert await world.store.end_duty("tidy", "w1", is_done=False)
    assert (await _row(world)).error == "no space\0left 😀"
    assert (await _take(world)).taken
    assert await world.store.end_duty("tidy", "w1", is_done=True)
    assert (await _row(world)).error == ""


@behaviour()
async def duties_are_independent(world: World) -> None:
    """Two duties have two holders, and are listed by name."""
    assert (await _take(world, "w1", "tidy")).taken
    assert (await _take(world, "w2", "plan")).taken
    assert [(row.name, row.worker) for row in await world.store.duties()] == [("plan", "w2"), ("tidy", "w1")]


@behaviour()
async def one_of_many_workers_takes_a_duty(world: World) -> None:
    """However many stores try at the same time, exactly one gets it."""
    stores = [world.store, *[await world.another() for _ in range(4)]]
    for number in range(5):
        duty = f"d{number}"
        tries = [store.take_duty(duty, f"w{place}", lease=SECOND, every=HOUR) for place, store in enumerate(stores * 2)]
        assert sum(turn.taken for turn in await asyncio.gather(*tries)) == 1


@behaviour()
async def a_duty_done_in_the_future_is_due(world: World) -> None:
    """A clock that was set back does not stop a duty for longer than its interval."""
    assert (await _take(world)).taken
    assert await world.store.end_duty("tidy", "w1", is_done=True)
    world.clock.set(world.clock.now() - 100 * HOUR)
    assert (await _take(world)).taken
