"""The lock of a journal has one holder at a time, in order, also if coroutines are cancelled."""

import asyncio

from limpet.journal.fair_lock import FairLock


async def turns(count: int) -> None:
    """Let other tasks run."""
    for _ in range(count):
        await asyncio.sleep(0)  # noqa: TID251 - iterations of the event loop


async def hold(lock: FairLock, name: str, held: list[str]) -> None:
    """Hold the lock for some iterations of the event loop."""
    async with lock:
        held.append(name)
        await turns(3)
        held.append(f"{name} ends")


async def test_a_free_lock_is_taken_without_waiting() -> None:
    lock = FairLock()
    assert lock.take_now()
    assert not lock.take_now()
    assert lock.is_held
    lock.release()
    assert not lock.is_held


async def test_coroutines_hold_the_lock_one_after_the_other_in_order() -> None:
    lock, held = FairLock(), list[str]()
    await asyncio.gather(*(hold(lock, name, held) for name in "abc"))
    assert held == ["a", "a ends", "b", "b ends", "c", "c ends"]
    assert not lock.is_held


async def test_a_lock_that_is_passed_on_cannot_be_taken_by_another() -> None:
    """Between the release and the next turn of the waiting coroutine, the lock stays held."""
    lock = FairLock()
    assert lock.take_now()
    waiting = asyncio.create_task(lock.take())
    await turns(1)
    lock.release()
    assert not lock.take_now()
    await waiting
    lock.release()
    assert lock.take_now()


async def test_a_cancelled_coroutine_no_longer_waits() -> None:
    lock, held = FairLock(), list[str]()
    first, second, third = (asyncio.create_task(hold(lock, name, held)) for name in "abc")
    await turns(1)
    second.cancel()
    await asyncio.wait({first, second, third})
    assert held == ["a", "a ends", "c", "c ends"]
    assert not lock.is_held


async def test_a_coroutine_that_is_cancelled_with_the_lock_in_hand_passes_it_on() -> None:
    lock, held = FairLock(), list[str]()
    assert lock.take_now()
    second, third = (asyncio.create_task(hold(lock, name, held)) for name in "bc")
    await turns(1)
    lock.release()  # The second coroutine has it, and does not know that yet.
    second.cancel()
    await asyncio.wait({second, third})
    assert held == ["c", "c ends"]
    assert not lock.is_held


async def test_a_coroutine_that_is_cancelled_just_before_the_release_ends_as_cancelled() -> None:
    """Another error would hide the cancellation, and the code would go on."""
    lock, held = FairLock(), list[str]()
    assert lock.take_now()
    second, third = (asyncio.create_task(hold(lock, name, held)) for name in "bc")
    await turns(1)
    second.cancel()
    lock.release()
    await asyncio.wait({second, third})
    assert second.cancelled()
    assert held == ["c", "c ends"]
    assert not lock.is_held
