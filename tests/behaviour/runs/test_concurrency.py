"""`agent(concurrency=)`: how many runs of an agent are driven at the same time."""

import asyncio

import pytest

import limpet
from limpet import testing


async def test_only_so_many_runs_of_an_agent_are_driven_at_the_same_time() -> None:
    """A run that waits frees its slot; the others go on without a push."""
    live: list[int] = []

    @limpet.tool(effect="none", name="concurrency_work")
    async def work(number: int) -> int:
        live.append(number)
        await asyncio.sleep(0)  # noqa: TID251 - let the others start
        found = len(live)
        live.remove(number)
        return found

    @limpet.agent(name="concurrency_two", concurrency=2)
    async def two(run: limpet.Run, number: int) -> int:
        first = await run.step(work, number)
        await run.sleep("1h")
        return max(first, await run.step(work, number))

    async with testing.app(two) as app:
        handles = [await app.start(two, number) for number in range(7)]
        await app.advance("1h")
        await app.advance("1h")
        assert max([await handle.result() for handle in handles]) <= 2


async def test_a_killed_worker_frees_its_slots() -> None:
    @limpet.tool(effect="none", name="concurrency_die")
    async def die(number: int) -> int:
        return number

    @limpet.agent(name="concurrency_one", concurrency=1)
    async def one(run: limpet.Run, number: int) -> int:
        return await run.step(die, number)

    async with testing.app(one) as app:
        app.crash_at("after", "step.started")
        handles = [await app.start(one, number) for number in range(3)]
        assert [await handle.result() for handle in handles] == [0, 1, 2]
        assert app.crashes == 1


def test_a_concurrency_below_one_is_refused() -> None:
    with pytest.raises(limpet.DefinitionError, match="concurrency must be at least 1"):
        limpet.agent(concurrency=0)
