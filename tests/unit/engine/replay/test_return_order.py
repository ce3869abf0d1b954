"""The order in which calls return during replay."""

import asyncio

from limpet.engine.replay.history import Record
from limpet.engine.replay.return_order import LONGEST, ReturnOrder
from limpet.events import bodies as b


def recorded(*ends: int) -> list[Record]:
    """Return records of calls in one scope, with these ends."""
    return [
        Record(name=f"x#{end}", opened=b.WaitOpened(name=f"x#{end}", signal="x"), seq=end - 1, end=end) for end in ends
    ]


async def entering(turnstile: ReturnOrder, ticket: int, seen: list[int]) -> None:
    strand = asyncio.current_task()
    turnstile.note_call(strand)
    await turnstile.wait_turn(ticket, strand)
    seen.append(ticket)


async def test_sequential_code_never_waits() -> None:
    """The event loop runs nothing else in between."""
    turned: list[bool] = []
    turnstile = ReturnOrder(recorded(3, 5, 9))
    asyncio.get_running_loop().call_soon(turned.append, True)
    for end in (3, 5, 9):
        turnstile.note_call("code")
        await turnstile.wait_turn(end, "code")
    assert turned == []
    assert not turnstile.has_before(10)


async def test_calls_return_in_the_order_of_the_log() -> None:
    """This holds for any order of calls, also if some are never repeated."""
    seen: list[int] = []
    turnstile = ReturnOrder(recorded(2, 4, 6, 8))
    await asyncio.gather(*(entering(turnstile, end, seen) for end in (8, 6, 2)))
    assert seen == [2, 6, 8]


async def test_the_winner_of_a_race_returns_alone() -> None:
    """The other call returns only after the code has become idle."""
    seen: list[int] = []
    turnstile = ReturnOrder(recorded(4, 6))
    tasks = [asyncio.create_task(entering(turnstile, end, seen)) for end in (6, 4)]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert done == {tasks[1]}
    await asyncio.wait(tasks)
    assert seen == [4, 6]


async def test_live_calls_return_in_the_order_of_the_log() -> None:
    """This holds even if the later one is ready first; they return one at a time."""
    seen: list[int] = []
    turnstile = ReturnOrder(())
    first, second = turnstile.issue_ticket(), turnstile.issue_ticket()
    later = asyncio.create_task(entering(turnstile, second, seen))
    for _ in range(50):
        await asyncio.sleep(0)  # noqa: TID251 - turns of the loop
    assert seen == []
    await entering(turnstile, first, seen)
    assert seen == [first]
    await later
    assert seen == [first, second]


async def test_a_cancelled_call_does_not_block_later_ones() -> None:
    seen: list[int] = []
    turnstile = ReturnOrder(())
    first, second = turnstile.issue_ticket(), turnstile.issue_ticket()
    later = asyncio.create_task(entering(turnstile, second, seen))
    await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop
    turnstile.cancel_ticket(first)
    await later
    assert seen == [second]


async def test_a_result_that_is_being_loaded_returns_before_the_next() -> None:
    """This holds although other code makes calls meanwhile."""
    seen: list[int] = []
    turnstile = ReturnOrder(recorded(3, 5))

    async def load(end: int) -> None:
        turnstile.note_call("one")
        await turnstile.wait_turn(end, "one")
        with turnstile.loading():
            for _ in range(50):
                await asyncio.sleep(0)  # noqa: TID251 - turns of the loop
        seen.append(end)

    loading = asyncio.create_task(load(3))
    await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop
    turnstile.note_call("one")
    assert not turnstile.take_turn(5, "other")
    assert turnstile.is_busy
    await asyncio.gather(loading, entering(turnstile, 5, seen))
    assert seen == [3, 5]


async def test_a_call_that_is_cancelled_when_its_turn_has_come_does_not_block_later_ones() -> None:
    seen: list[int] = []
    turnstile = ReturnOrder(recorded(3, 5, 7))
    tasks = {end: asyncio.create_task(entering(turnstile, end, seen)) for end in (7, 5, 3)}
    while len(turnstile._waiting) != 1 or not seen:
        await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop
    assert seen == [3]  # The next one has its turn, and its task has not gone on yet.
    tasks[5].cancel()
    await asyncio.wait(tasks.values(), timeout=5)
    assert seen == [3, 7]
    assert not turnstile.is_busy


async def test_a_deferred_ticket_has_the_place_at_which_it_was_issued_last() -> None:
    seen: list[int] = []
    turnstile = ReturnOrder(())
    deferred = turnstile.defer_ticket()
    deferred.issue()
    first = turnstile.issue_ticket()
    deferred.issue()
    last = turnstile.issue_ticket()
    ends = (last, deferred.take(), first)
    await asyncio.gather(*(entering(turnstile, end, seen) for end in ends))
    assert seen == [first, deferred.take(), last]


async def test_a_deferred_ticket_that_was_cancelled_does_not_block_others() -> None:
    """Not even if the end is sent again."""
    turnstile = ReturnOrder(())
    deferred = turnstile.defer_ticket()
    deferred.issue()
    following = turnstile.issue_ticket()
    assert not turnstile.take_turn(following, "code")
    deferred.cancel()
    deferred.issue()
    assert turnstile.take_turn(following, "code")
    turnstile.note_call("code")
    assert turnstile.take_turn(deferred.take(), "code")


async def test_a_call_of_another_strand_does_not_let_the_next_result_return() -> None:
    """Code that waits for both strands may not have gone on yet."""
    turnstile = ReturnOrder(recorded(3, 5))
    assert turnstile.take_turn(3, "one")
    turnstile.note_call("other")
    assert not turnstile.take_turn(5, "other")
    turnstile.note_call("one")
    assert turnstile.take_turn(5, "other")


async def test_code_that_polls_does_not_hold_up_the_next_result_for_ever() -> None:
    """Neither code that makes calls in another strand, nor the code to which the last result returned."""
    for polling in ("one", "other"):
        turnstile = ReturnOrder(recorded(3, 5))
        assert turnstile.take_turn(3, "one")
        waiting = asyncio.create_task(turnstile.wait_turn(5, "next"))
        polls = 0
        while not waiting.done():
            turnstile.note_call(polling)
            await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop
            polls += 1
            assert polls <= 2 * LONGEST
