"""State, step numbers and versions of a fork continue from the fork point, with the caller's overrides."""

import asyncio
from typing import Any

import pytest

import limpet
from limpet import testing


async def test_a_patch_with_wrong_types_is_refused() -> None:
    """By `run.patch` and by `app.fork`."""

    @limpet.agent(name="regress_patches")
    async def patches(run: limpet.Run, what: int) -> str:
        wrong: list[dict[str, Any]] = [{"questions": [1]}, {"plan": "look"}, {"flags": 5}, {"facts": {1: 2}}]
        try:
            await run.patch(**wrong[what])
        except limpet.InvalidValue as error:
            return error.path
        return "taken"

    async with testing.app(patches) as app:
        names = ["questions", "plan", "flags", "facts"]
        assert [await app.run(patches, n, id=f"r{n}") for n in range(4)] == names
        for patch in ({"questions": [1]}, {"plan": [1]}, {"flags": [1]}, {"facts": {1: 2}}, {"plan": "look"}):
            with pytest.raises(limpet.InvalidValue):
                await app.fork("r0", at=1, patch=patch)
        with pytest.raises(limpet.InvalidArgument):
            await app.fork("r0", at="1")  # type: ignore[arg-type]
        assert len(await app.runs()) == 4


async def test_the_patch_of_a_fork_overrides_shared_state() -> None:
    """Whichever branch reaches the fork point first, the code sees the state of the log, live and resumed."""
    seen: list[int] = []

    @limpet.tool(effect="none", name="regress_look")
    async def look(n: int) -> int:
        return n

    @limpet.agent(name="regress_branches")
    async def branches(run: limpet.Run) -> int:
        async def one() -> None:
            async with run.scope("one"):
                await run.step(look, 1)
                await run.step(look, 2)

        async def two() -> None:
            async with run.scope("two"):
                await run.step(look, 3)
                await run.patch(facts={"total": 900})

        await asyncio.gather(two(), one())
        seen.append(run.state.facts["total"])
        await run.step(look, 9)
        await run.ask("go on?")
        return int(run.state.facts["total"])

    async with testing.app(branches) as app:
        await app.start(branches, id="r")
        await app.settle()
        last = max(each.body["number"] for each in await app.log("r") if each.kind == "step.started")
        seen.clear()
        for at in range(1, last + 1):
            fork = await app.fork("r", at=at, patch={"facts": {"total": 1200}})
            await app.settle()
            await app.crash()
            await app.settle()
            wanted = (await app.state(fork.id)).facts["total"]
            assert seen[-1] == wanted
            assert wanted == 1200 or at < last


async def test_a_fork_continues_step_numbers_and_keeps_version_and_exclusivity() -> None:
    """Step numbers continue after a rejected step. The input is checked against the fork's version, and the exclusive
    key is kept even without the code.
    """

    @limpet.tool(effect="once", risk="money", name="regress_risky")
    async def risky() -> None: ...

    @limpet.tool(effect="none", name="regress_read")
    async def read(n: int) -> int:
        return n

    @limpet.agent(name="regress_numbers", approvals=limpet.Approvals("money"), exclusive="session")
    async def numbers(run: limpet.Run, n: int) -> int:
        await run.step(read, 1)
        try:
            await run.step(risky)
        except limpet.Rejected:
            await run.step(read, 3)
        return n

    @limpet.agent(name="regress_numbers", version="2")
    async def words(run: limpet.Run, n: str) -> str:
        return n

    async with testing.app(numbers, words) as app:
        await app.start(numbers, 5, id="r", session="s")
        await app.settle()
        [request] = await app.inbox()
        await app.reject(request, by="ann", because="no")
        await app.settle()
        fork = await app.fork("r", at=3, input=6)
        assert await fork.result() == 6
        assert [each.body["number"] for each in await app.log(fork.id) if each.kind == "step.started"] == [1, 3]
        with pytest.raises(limpet.ContractError):
            await app.fork("r", at=3, input="many")
        assert await (await app.fork("r", at=1, version="2", input="many")).result() == "many"
        app.deploy()
        bare = await app.fork("r", at=3)
        assert (await app.store.get(bare.id)).exclusive == "session:s"
        same = await app.fork("r", at=3, id="again")
        await app.advance("1h")
        assert (await app.fork("r", at=3, id="again")).id == same.id


async def test_a_fork_inside_turns_continues_step_numbers() -> None:
    """Although the code does not repeat the steps of earlier turns."""

    @limpet.tool(effect="none", name="regress_count")
    async def count(n: int) -> int:
        return n

    @limpet.agent(name="regress_turns")
    async def counts(run: limpet.Run) -> int:
        async for turn in run.turns(max=4):
            await run.step(count, turn.number)
        return 4

    async with testing.app(counts) as app:
        await app.run(counts, id="r")
        fork = await app.fork("r", at=3)
        await app.settle()
        assert await fork.result() == 4
        log = await app.log(fork.id)
        assert [each.body["number"] for each in log if each.kind == "step.started"] == [1, 2, 3, 4]
        assert [each.body["step"] for each in log if each.kind == "run.forked"] == [2]
        assert (await app.state(fork.id, before=2)).step == 1
