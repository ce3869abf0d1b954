"""The order in which calls return during replay."""

import asyncio

from limpet.engine.replay.return_order import ReturnOrder


async def entering(turnstile: ReturnOrder, ticket: int, seen: list[int]) -> None:
    turnstile.note_call()
    await turnstile.wait_turn(ticket)
    seen.append(ticket)


async def test_sequential_code_never_waits() -> None:
    """The event loop runs nothing else in between."""
    turned: list[bool] = []
    turnstile = ReturnOrder([3, 5, 9])
    asyncio.get_running_loop().call_soon(turned.append, True)
    for end in (3, 5, 9):
        turnstile.note_call()
        await turnstile.wait_turn(end)
    assert turned == []
    assert not turnstile.has_before(10)


async def test_calls_return_in_the_order_of_the_log() -> None:
    """This holds for any order of calls, also if some are never repeated."""
    seen: list[int] = []
    turnstile = ReturnOrder([2, 4, 6, 8])
    await asyncio.gather(*(entering(turnstile, end, seen) for end in (8, 6, 2)))
    assert seen == [2, 6, 8]


async def test_the_winner_of_a_race_returns_alone() -> None:
    """The other call returns only after the code has become idle."""
    seen: list[int] = []
    turnstile = ReturnOrder([4, 6])
    tasks = [asyncio.create_task(entering(turnstile, end, seen)) for end in (6, 4)]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert done == {tasks[1]}
    await asyncio.wait(tasks)
    assert seen == [4, 6]


async def test_live_calls_return_in_the_order_of_the_log() -> None:
    """This holds even if the later one is ready first; they return one at a time."""
    seen: list[int] = []
    turnstile = ReturnOrder([])
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
    turnstile = ReturnOrder([])
    first, second = turnstile.issue_ticket(), turnstile.issue_ticket()
    later = asyncio.create_task(entering(turnstile, second, seen))
    await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop
    turnstile.cancel_ticket(first)
    await later
    assert seen == [second]
