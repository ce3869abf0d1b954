"""Effects and requests of a fork: its own keys, its own approvals, and no change to other runs."""

from typing import Any

import pytest

import limpet
from limpet import testing


async def kinds(app: limpet.App, run: str) -> list[str]:
    return [event.kind for event in await app.log(run)]


async def test_a_fork_of_a_cancelled_run_reopens_its_request() -> None:
    """The cancellation withdrew the request, not the code."""

    @limpet.tool(effect="none")
    async def read() -> int:
        return 1

    @limpet.agent(name="cut_off")
    async def agent(run: limpet.Run) -> int:
        first = await run.step(read)
        return first + int(await run.ask("go on?"))

    async with testing.app(agent) as app:
        await app.start(agent, id="r1")
        await app.settle()
        await app.cancel("r1", reason="enough")
        await app.settle()
        assert (await kinds(app, "r1"))[-2:] == ["wait.ended", "run.cancelled"]
        fork = await app.fork("r1", at=2)
        await app.settle()
        await app.approve((await app.inbox(run=fork.id))[0], by="ann")
        assert await fork.result() == 2


done: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    done.clear()


async def test_a_resumed_fork_repeats_shared_steps_under_its_own_keys() -> None:  # noqa: C901 - some agents
    """It asks for approval, and starts its own child instead of resuming the original's."""
    broken = True

    @limpet.tool(effect="once", name="regress_refund")
    async def refund(n: int) -> int:
        if broken:
            raise limpet.Permanent("down")
        done.append(limpet.idempotency_key())
        return n

    @limpet.agent(name="regress_kid")
    async def kid(run: limpet.Run, n: int) -> int:
        return await run.step(refund, n)

    @limpet.agent(name="regress_mum")
    async def mum(run: limpet.Run, n: int) -> int:
        return await run.call(kid, n)

    @limpet.agent(name="regress_solo")
    async def solo(run: limpet.Run, n: int) -> int:
        return await run.step(refund, n)

    async with testing.app(kid, mum, solo) as app:
        for agent in (mum, solo):
            await app.start(agent, 1, id=agent.name)
        await app.settle()
        forks = [await app.fork(agent.name, at=2, id=f"{agent.name}-fork") for agent in (solo,)]
        seq = (await app.store.get(mum.name)).seq - 1
        forks.append(await app.fork(mum.name, seq=seq, id="mum-fork"))
        await app.settle()
        broken = False
        for fork in forks:
            await app.resume(fork.id)
        await app.settle()
        assert done == []
        assert len(await app.inbox()) == 2
        for request in await app.inbox():
            await app.approve(request, by="ann")
        await app.settle()
        assert len(done) == 2
        assert not any(key.startswith(("regress_solo:", "regress_mum.regress_kid-1")) for key in done)
        assert (await app.info("regress_mum.regress_kid-1")).status == "failed"
        await app.resume("regress_solo")
        await app.settle()
        assert len(set(done)) == 3


async def test_a_stubbed_fork_does_not_affect_other_runs() -> None:
    """It neither takes the id of a run that it starts nor cancels a shared run, and channels are not notified of its
    requests.
    """
    told: list[str] = []

    @limpet.tool(effect="once", name="regress_ship")
    async def ship(n: int) -> int:
        done.append(n)
        return n

    @limpet.agent(name="regress_shipper")
    async def shipper(run: limpet.Run, n: int) -> int:
        await run.ask("ship?")
        return await run.step(ship, n)

    @limpet.agent(name="regress_starter")
    async def starter(run: limpet.Run) -> str:
        await run.step(ship, 0)
        first = await run.start(shipper, 1, id="first")
        await run.ask("go on?")
        await run.start(shipper, 2, id="second")
        await first.cancel("enough")
        return "done"

    async with testing.app(starter, shipper) as app:
        app._settings.channels = {"me": lambda request: told.append(request.run)}
        await app.crash()
        await app.start(starter, id="r")
        await app.settle()
        assert set(told) == {"r", "first"}
        fork = await app.fork("r", at=2, effects="stub")
        await app.settle()
        [request] = await app.inbox(run=fork.id)
        await app.approve(request, by="ann")
        await app.settle()
        assert (await app.info(fork.id)).status == "failed"  # it may not cancel a run that it did not start
        assert {each.id for each in await app.runs()} >= {f"{fork.id}.second"}
        assert set(told) == {"r", "first"}
        with pytest.raises(limpet.NotFound):
            await app.info("second")
        assert (await app.info("first")).status == "waiting"
        [request] = await app.inbox(run="r")
        await app.approve(request, by="ann")
        await app.settle()
        assert (await app.info("second")).status == "waiting"
        assert (await app.info("first")).status == "cancelled"
        again = await app.replay("r")
        assert again.how in ("raised", "returned")
        assert (await app.info("second")).status == "waiting"


async def test_a_fork_keeps_the_old_side_of_a_version_check_for_past_steps() -> None:
    """A step from before the version check is not repeated on the new side."""

    @limpet.tool(effect="once", name="regress_old")
    async def old() -> None:
        done.append("old")

    @limpet.tool(effect="once", name="regress_new")
    async def new() -> None:
        done.append("new")

    @limpet.tool(effect="none", name="regress_after")
    async def after() -> None: ...

    async def before(run: limpet.Run) -> None:
        await run.step(old)
        await run.step(after)

    async def guarded(run: limpet.Run) -> None:
        await run.step(new if run.version("mail") else old)
        await run.step(after)

    async with testing.app(limpet.agent(name="regress_guard")(before)) as app:
        await app.run(app.serves[0], id="r")
        app.deploy(limpet.agent(name="regress_guard")(guarded))
        await app.crash()
        fork = await app.fork("r", at=2, effects="live")
        await fork.result()
        assert done == ["old"]


async def test_a_rejection_still_applies_in_a_fork() -> None:
    """A rejection before the fork point is replayed without a new request."""

    @limpet.tool(effect="once", risk="external_action", name="regress_pay")
    async def pay(n: int) -> int:
        done.append(n)
        return n

    @limpet.tool(effect="once", name="regress_tell")
    async def tell(text: str) -> str:
        done.append(text)
        return text

    @limpet.agent(name="regress_teller", approvals=limpet.Approvals("external_action"))
    async def teller(run: limpet.Run) -> str:
        try:
            await run.step(pay, 1)
        except limpet.Rejected as no:
            return await run.step(tell, f"no: {no.because}")
        return "paid"

    async with testing.app(teller) as app:
        await app.start(teller, id="r")
        await app.settle()
        [request] = await app.inbox()
        await app.reject(request, by="ann", because="too much")
        await app.settle()
        for effects in ("stub", "live"):
            fork = await app.fork("r", at=2, effects=effects)
            await app.settle()
            assert await fork.result() == "no: too much"
    assert done == ["no: too much"] * 2
