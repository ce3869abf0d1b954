"""Batches: a command to every run that matches a filter, as a run of its own."""

import pytest

import limpet
from limpet.service import batch_agent


class Shop:
    """Fails until it is open."""

    is_open = False


@limpet.tool(effect="idempotent", name="batches_sell", retry=limpet.Retry(1))
async def sell(number: int) -> int:
    """Sells, if the shop is open."""
    if not Shop.is_open:
        raise limpet.Permanent("the shop is closed")
    return number


@limpet.agent(name="batches_seller")
async def seller(run: limpet.Run, number: int) -> int:
    return await run.step(sell, number)


@limpet.agent(name="batches_waiter")
async def waiter(run: limpet.Run, number: int) -> int:
    return await run.receive("go", int)


@pytest.fixture(autouse=True)
def closed() -> None:
    Shop.is_open = False


async def failed(app: limpet.App, count: int) -> None:
    """Let some runs fail, each with a label."""
    for number in range(count):
        handle = await app.start(seller, number, id=f"s-{number}", labels={"half": str(number % 2)}, user="ann")
        with pytest.raises(limpet.RunFailed):
            await handle.result()


async def test_failed_runs_are_resumed_by_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender is recorded in each run, and a repeated batch sends nothing."""
    monkeypatch.setattr(batch_agent, "BITE", 3)
    async with limpet.open("memory:", agents=[seller]) as app:
        await failed(app, 10)
        Shop.is_open = True
        batch = await app.batch("resume", status="failed", labels={"half": "1"}, id="b", by="ann")
        assert await batch.result() == {"matched": 5, "sent": 5, "refused": {}, "is_complete": True}
        for number in range(10):
            if number % 2:
                assert await (await app.get(f"s-{number}", seller)).result() == number
                [resumed] = [each for each in await app.log(f"s-{number}") if each.kind == "resume.requested"]
                assert (resumed.body["by"], resumed.body["command"]) == ("ann", f"b:s-{number}")
            else:
                assert (await app.info(f"s-{number}")).status == "failed"
        again = await app.batch("resume", status="failed", labels={"half": "1"}, id="b", by="ann")
        assert await again.result() == await batch.result()
        with pytest.raises(limpet.IdConflict):
            await app.batch("resume", status="failed", id="b", by="ann")
        assert [each.id for each in await app.runs(agent="limpet.batch")] == ["b"]
        assert "b" not in {each.id for each in await app.runs()}


async def test_waiting_runs_are_paused_and_cancelled() -> None:
    """Only those on which the command has an effect are selected. Runs of built-in agents never are."""
    async with limpet.open("memory:", agents=[seller, waiter]) as app:
        await failed(app, 2)
        for number in range(3):
            await app.start(waiter, number, id=f"w-{number}")
        paused = await app.batch("pause", agent="batches_waiter", reason="audit")
        assert (await paused.result())["sent"] == 3
        while len(await app.runs(agent="batches_waiter", waits_for="operator")) < 3:
            pass
        resumed = await app.batch("resume", agent="batches_waiter")
        assert (await resumed.result())["sent"] == 3
        await app.signal("w-0", "go", 1)
        assert await (await app.get("w-0", waiter)).result() == 1
        ended = await app.batch("cancel", since="1d", reason="closing", id="all")
        assert (await ended.result())["matched"] == 2
        for run in ("w-1", "w-2"):
            with pytest.raises(limpet.RunCancelled, match="closing"):
                await (await app.get(run)).result()
        assert (await app.info("all")).status == "completed"


async def test_runs_that_have_ended_meanwhile_are_counted() -> None:
    async with limpet.open("memory:", agents=[waiter]) as app:
        await app.start(waiter, 1, id="w")
        await app.signal("w", "go", 1)
        assert await (await app.get("w", waiter)).result() == 1
        done = await app.batch("cancel", status=["completed", "waiting"], reason="late")
        assert await done.result() == {"matched": 1, "sent": 0, "refused": {"wrong_state": 1}, "is_complete": True}


async def test_a_large_batch_says_that_more_runs_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_agent, "MOST", 3)
    async with limpet.open("memory:", agents=[seller]) as app:
        await failed(app, 5)
        Shop.is_open = True
        first = await (await app.batch("resume", status="failed")).result()
        assert (first["matched"], first["is_complete"]) == (3, False)
        for number in (2, 3, 4):
            await (await app.get(f"s-{number}")).result()
        assert (await (await app.batch("resume", status="failed")).result())["matched"] == 2


async def test_a_bad_batch_is_refused_before_anything_happens() -> None:
    async with limpet.open("memory:", agents=[seller]) as app:
        for reason, given in (
            ("no filter", {}),
            ("cancel needs one", {"status": "failed"}),
            ("unknown status", {"status": "lost", "reason": "x"}),
            ("NAME=VALUE", {"labels": ["team"], "reason": "x"}),
        ):
            with pytest.raises(limpet.InvalidArgument, match=reason):
                await app.batch("cancel", **given)
        with pytest.raises(limpet.InvalidArgument):
            await app.batch("delete", status="failed")  # type: ignore[arg-type]
        assert [*await app.runs(agent="limpet.batch")] == []


async def test_a_grant_approves_further_calls() -> None:
    """The same command twice is one grant. It can be revoked."""

    @limpet.agent(name="batches_payer", approvals=limpet.Approvals("pay"))
    async def payer(run: limpet.Run, count: int) -> int:
        for _ in range(count):
            await run.receive("go", int)
            await run.step(pay, 1)
        return count

    async with limpet.open("memory:", agents=[payer]) as app:
        handle = await app.start(payer, 2, id="p")
        for _ in range(2):
            given = await app.grant("p", risk="pay", by="ann", command_id="g")
        assert [*await app.grants("p")] == [given]
        for number in range(2):
            await app.signal("p", "go", number)
        assert await handle.result() == 2
        with pytest.raises(limpet.InvalidArgument, match="either"):
            await app.grant("p", by="ann")
        with pytest.raises(limpet.InvalidArgument, match="either"):
            await app.grant("p", by="ann", tool="a", risk="b")


@limpet.tool(effect="once", name="batches_pay", risk="pay")
async def pay(cents: int) -> int:
    """Pays."""
    return cents


async def test_a_batch_can_name_its_runs() -> None:
    """Those that do not exist, or do not match the filter, are left out."""
    async with limpet.open("memory:", agents=[seller]) as app:
        await failed(app, 4)
        Shop.is_open = True
        done = await app.batch("resume", runs=["s-0", "s-2", "s-2", "gone"], by="ann")
        assert await done.result() == {"matched": 2, "sent": 2, "refused": {}, "is_complete": True}
        assert await (await app.get("s-2", seller)).result() == 2
        assert (await app.info("s-1")).status == "failed"
        with pytest.raises(limpet.InvalidArgument, match="at most 1,000"):
            await app.batch("resume", runs=[f"s-{number}" for number in range(1001)])
