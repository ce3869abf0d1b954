"""Approvals: which call an approval or a rejection applies to, and for how long."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.engine.approvals.approvals import ApprovalGate


async def kinds(app: limpet.App, run: str) -> list[str]:
    return [event.kind for event in await app.log(run)]


@limpet.tool(effect="once", risk="pay", name="regressions_pay")
async def pay(cents: int) -> int:
    return cents


@limpet.tool(effect="once", name="regressions_mail")
async def mail(text: str) -> str:
    return text


async def test_an_approval_applies_only_to_the_arguments_shown() -> None:
    """Other arguments open another request."""
    amount = {"cents": 5}

    @limpet.tool(effect="once", risk="pay")
    async def pay(cents: int) -> int:
        return cents

    @limpet.agent(approvals=limpet.Approvals("pay"))
    async def agent(run: limpet.Run) -> int:
        return await run.step(pay, amount["cents"])

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        [request] = await app.inbox()
        amount["cents"] = 5_000_000
        await app.approve(request, by="ann")
        await app.settle()
        assert app.calls(pay) == []
        [other] = await app.inbox()
        assert other.args == {"cents": 5_000_000}
        with pytest.raises(limpet.InvalidAnswer):
            await app.approve(other, by="ann", args={"cents": "many"})
        await app.approve(other, by="ann", args={"cents": 7})
        assert await handle.result() == 7


async def test_an_escalated_approval_covers_all_attempts_of_its_step() -> None:
    """The approval is used once for all attempts. Its expiry is that of the escalation."""

    @limpet.tool(effect="idempotent", risk="pay", retry=limpet.Retry(3))
    async def pay() -> str:
        raise NotImplementedError

    @limpet.agent(approvals=limpet.Approvals("pay", to="ann", expires="1d", escalate=["boss"]))
    async def agent(run: limpet.Run) -> str:
        return await run.step(pay)

    async with testing.app(agent) as app:
        app.stub(pay, TimeoutError("?"), "paid")
        handle = await app.start(agent)
        await app.advance("30h")
        [request] = await app.inbox()
        assert request.to == ("boss",)
        await app.approve(request, by="boss")
        assert await handle.result() == "paid"
        assert (await kinds(app, handle.id)).count("run.released") == 0


async def test_a_step_waiting_for_approval_keeps_its_number() -> None:
    """Although another step starts meanwhile and the run is parked."""

    @limpet.tool(effect="once", risk="pay")
    async def pay() -> str:
        return limpet.idempotency_key()

    @limpet.tool(effect="none")
    async def read() -> str:
        return "read"

    @limpet.agent(approvals=limpet.Approvals("pay"), budget=limpet.Budget(max_steps=2))
    async def agent(run: limpet.Run) -> list[str]:
        return list(await asyncio.gather(run.step(pay), run.step(read)))

    async with testing.app(agent) as app:
        handle = await app.start(agent, id="r1")
        await app.settle()
        await app.crash()
        await app.approve((await app.inbox())[0], by="ann")
        key, _ = await handle.result()
        assert key.startswith("r1:step_1:pay:")


@pytest.mark.parametrize("how", ["rejected", "expired"])
async def test_an_effect_after_a_refused_step_is_not_repeated(how: str) -> None:
    """The refused step has no start event in the log, but its request has an end."""

    @limpet.agent(approvals=limpet.Approvals("pay", expires="1h"))
    async def agent(run: limpet.Run) -> str:
        try:
            await run.step(pay, 5)
        except (limpet.Rejected, limpet.Expired) as error:
            sent = await run.step(mail, type(error).__name__.lower())
            await run.sleep("1h")
            return sent
        return "paid"

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        if how == "rejected":
            await app.reject((await app.inbox())[0], by="ann", because="no")
        else:
            await app.advance("1h")
        await app.settle()
        await app.crash()
        await app.advance("1h")
        assert await handle.result() == how
        assert (len(app.calls(pay)), len(app.calls(mail))) == (0, 1)


async def test_a_later_standing_approval_does_not_reverse_a_rejection() -> None:

    @limpet.agent(approvals=limpet.Approvals("pay"))
    async def agent(run: limpet.Run) -> list[Any]:
        told: list[Any] = []
        for cents in (1, 2):
            try:
                told.append(await run.step(pay, cents))
            except limpet.Rejected:
                told.append("no")
        await run.ask("go on?")
        return told

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        await app.reject((await app.inbox())[0], by="ann", because="no")
        await app.settle()
        await app.approve((await app.inbox())[0], by="ann", standing=True)
        await app.settle()
        await app.crash()
        await app.approve((await app.inbox())[0], by="ann")
        assert await handle.result() == ["no", 2]
        assert [call["cents"] for call in app.calls(pay)] == [2]


@pytest.mark.parametrize(("to", "cents", "is_asked"), [("bob", 5, False), ("ann", 6, True)])
async def test_a_rejection_applies_to_its_call_even_if_the_policy_changes(to: str, cents: int, is_asked: bool) -> None:
    """A call with other arguments opens another request."""

    def deployment(to: str, cents: int) -> limpet.Agent[None, str]:
        @limpet.agent(name="released", approvals=limpet.Approvals("pay", to=to))
        async def agent(run: limpet.Run) -> str:
            try:
                await run.step(pay, cents)
            except limpet.Rejected:
                await run.sleep("1h")
                return "no"
            return "paid"

        return agent

    first = deployment("ann", 5)
    async with testing.app(first) as app:
        handle = await app.start(first)
        await app.settle()
        await app.reject((await app.inbox())[0], by="ann", because="no")
        await app.settle()
        app.deploy(deployment(to, cents))
        await app.crash()
        await app.advance("1h")
        assert [request.args for request in await app.inbox()] == ([{"cents": 6}] if is_asked else [])
        if not is_asked:
            assert await handle.result() == "no"
        assert app.calls(pay) == []


async def test_edited_arguments_of_a_standing_approval_apply_to_one_call() -> None:
    """Later calls use the arguments that the code passes."""

    @limpet.agent(approvals=limpet.Approvals("pay"))
    async def agent(run: limpet.Run) -> list[int]:
        return [await run.step(pay, 500), await run.step(pay, 2)]

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        await app.approve((await app.inbox())[0], by="ann", args={"cents": 5}, standing=True)
        assert await handle.result() == [5, 2]


async def test_a_standing_approval_revoked_before_the_start_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is revoked between the check and the append of the step's start."""

    @limpet.agent(approvals=limpet.Approvals("pay"))
    async def agent(run: limpet.Run) -> list[int]:
        return [await run.step(pay, 1), await run.step(pay, 2)]

    async with testing.app(agent) as app:
        permit = ApprovalGate.request_start

        async def late(self: ApprovalGate, *how: Any) -> Any:
            found = await permit(self, *how)
            for grant in await app.grants("r1") if app.calls(pay) else ():
                await app.revoke("r1", grant.grant, by="bob")
            return found

        monkeypatch.setattr(ApprovalGate, "request_start", late)
        handle = await app.start(agent, id="r1")
        await app.settle()
        await app.approve((await app.inbox())[0], by="ann", standing=True)
        await app.settle()
        assert [call["cents"] for call in app.calls(pay)] == [1]
        await app.crash()
        await app.approve((await app.inbox())[0], by="ann")
        assert await handle.result() == [1, 2]


done: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    done.clear()


async def test_a_used_approval_is_not_used_again() -> None:
    """A step that failed and is resumed opens another request."""
    broken = True

    @limpet.tool(effect="once", risk="money", name="regress_pay")
    async def pay() -> str:
        if broken:
            raise limpet.Permanent("down")
        done.append("paid")
        return "paid"

    @limpet.agent(name="regress_payer", approvals=limpet.Approvals("money", expires="1h"))
    async def payer(run: limpet.Run) -> str:
        return await run.step(pay)

    async with testing.app(payer) as app:
        handle = await app.start(payer, id="r")
        await app.settle()
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        await app.settle()
        broken = False
        await app.advance("30d")
        await app.resume("r")
        await app.settle()
        assert done == []
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        assert await handle.result() == "paid"


RISKY = limpet.Approvals("external_action", to="finance")


async def test_an_approved_transaction_that_is_retried_uses_its_approval_once(tmp_path: Path) -> None:
    tries: list[int] = []

    @limpet.tool(effect="transaction", risk="external_action", retry=limpet.Retry(2, first=0))
    def write() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("not yet")
        return "written"

    @limpet.agent(approvals=RISKY)
    async def agent(run: limpet.Run) -> str:
        return await run.step(write)

    async with limpet.open(f"sqlite:///{tmp_path}/x.db", agents=[agent]) as app:
        handle = await app.start(agent)
        while not (inbox := await app.inbox()):
            await asyncio.sleep(0.01)  # noqa: TID251 - a real clock
        await app.approve(inbox[0], by="ann")
        assert await handle.result(timeout="10s") == "written"
        assert [event.kind for event in await app.log(handle.id)].count("run.claimed") <= 2
    assert len(tries) == 2


async def test_a_restored_policy_opens_a_new_request() -> None:
    """Requests that another policy opened meanwhile do not stop the run."""

    @limpet.tool(effect="idempotent", risk="external_action")
    async def pay() -> str:
        return "paid"

    def defined(to: str) -> limpet.Agent[None, str]:
        @limpet.agent(name="agent", approvals=limpet.Approvals("external_action", to=to))
        async def agent(run: limpet.Run) -> str:
            return await run.step(pay)

        return agent

    async with testing.app(defined("a")) as app:
        handle = await app.start("agent")
        for to in ("b", "a"):
            await app.settle()
            app.deploy(defined(to))
            await app.crash()
            await app.pause(handle.id)
            await app.resume(handle.id)
            await app.settle()
            [request] = await app.inbox()
            assert request.to == (to,)
        await app.approve(request, by="ann")
        assert await handle.result() == "paid"


async def test_a_step_with_a_standing_approval_can_be_cancelled_at_any_moment() -> None:
    """A start that was written has an outcome, whichever iteration of the event loop cancels the step."""

    @limpet.tool(effect="idempotent", risk="external_action", name="approvals_cancelled_wire")
    async def wire(number: int) -> int:
        await asyncio.sleep(0)  # noqa: TID251 - an iteration of the event loop
        return number

    @limpet.agent(name="approvals_canceller", approvals=limpet.Approvals("external_action"))
    async def canceller(run: limpet.Run, most: int) -> None:
        await run.step(wire, 0)
        for number in range(1, most):
            async with run.scope(f"try-{number}"):
                task = asyncio.ensure_future(run.step(wire, number))
                for _ in range(number):
                    await asyncio.sleep(0)  # noqa: TID251 - an iteration of the event loop
                task.cancel()
                await asyncio.wait({task})

    async with testing.app(canceller) as app:
        handle = await app.start(canceller, 30, id="r")
        await app.settle()
        await app.approve((await app.inbox())[0], by="ann", standing=True)
        await handle.result()
        latest: dict[str, str] = {}
        async for event in handle.events():
            if event.kind.startswith("step."):
                latest[event.body["name"]] = event.kind
        assert "step.started" not in latest.values()
        assert {"step.unknown", "step.completed"} <= set(latest.values())
