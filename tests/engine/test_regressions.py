"""What went wrong once, each in its smallest form."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.clock import SystemClock
from limpet.engine.approvals.approvals import ApprovalGate
from limpet.engine.replay.learned import Learned
from limpet.engine.worker.change_listener import ChangeListener, Subscription
from limpet.errors import ConnectionLost
from limpet.events import Event
from limpet.events import bodies as b
from limpet.state import Fold
from limpet.stores import Claimed, Extend, Renewal, Store, WorkerRow
from limpet.stores.store import LogPosition


async def kinds(app: limpet.App, run: str) -> list[str]:
    return [event.kind for event in await app.log(run)]


def learn(memory: Learned, events: Sequence[Event], fold: Fold) -> None:
    for event in events:
        fold.add(event, event.decode())
        memory.learn(event, event.decode(), fold)


def cut_at(events: Sequence[Event], cut: int) -> bytes | None:
    """What is remembered in the end by somebody who went on from a snapshot."""
    first, again, fold = Learned(), Learned(), Fold()
    learn(first, events[:cut], fold)
    kept = first.dump()
    if kept is None:
        return None
    assert again.restore(kept)
    learn(again, events[cut:], fold)
    return again.dump()


async def test_what_a_snapshot_keeps_is_what_the_log_teaches() -> None:
    """Cut anywhere: what is remembered, restored and learnt on, is the same."""

    @limpet.tool(effect="none")
    async def read(n: int) -> int:
        return n

    @limpet.agent()
    async def agent(run: limpet.Run) -> int:
        await run.ask("start?", expires="1h", escalate=["bob"])
        async for turn in run.turns(max=3):
            await run.patch(facts={"turn": turn.number})
            await asyncio.gather(run.step(read, turn.number), run.receive("go", int))
        return 1

    async with testing.app(agent) as app:
        await app.start(agent, id="r1")
        await app.advance("1h")
        await app.approve((await app.inbox())[0], by="bob")
        for n in range(5):
            await app.signal("r1", "go", n)
        await app.settle()
        events = [event async for event in app.store.log("r1")]
    whole = Learned()
    learn(whole, events, Fold())
    kept = [cut_at(events, cut) for cut in range(1, len(events))]
    assert {each for each in kept if each is not None} == {whole.dump()}
    assert sum(each is not None for each in kept) > 5


async def test_an_approval_is_bound_to_what_was_shown() -> None:
    """Other arguments need another answer; the old request leaves the inbox."""
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


async def test_an_approved_step_is_retried_and_an_escalated_approval_counts() -> None:
    """The approval is used once, for all attempts; its time is that of the person it went on to."""

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


async def test_what_the_code_cancelled_is_not_begun_again() -> None:
    """A time-out of the code around an effect: replayed, it waits to be cancelled again."""
    stuck = asyncio.Event()

    @limpet.tool(effect="idempotent")
    async def slow() -> None:
        stuck.set()
        await asyncio.get_running_loop().create_future()

    @limpet.tool(effect="once")
    async def other() -> str:
        return "other"

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        try:
            async with asyncio.timeout(0.05):
                await run.step(slow)
        except TimeoutError:
            done = await run.step(other)
            await run.ask("go on?")
            return done
        return "slow"

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        await app.crash()
        await app.approve((await app.inbox())[0], by="ann")
        assert await handle.result() == "other"
        assert (len(app.calls(slow)), len(app.calls(other))) == (1, 1)


async def test_a_resume_does_not_take_back_what_the_code_had_handled() -> None:
    """The other way was taken: only what ended the run is tried anew."""
    broken = {"yes": True}

    @limpet.tool(effect="once")
    async def pay(bank: str) -> str:
        if bank == "a":
            raise limpet.Permanent("closed")
        return bank

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        try:
            return await run.step(pay, "a")
        except limpet.StepFailed:
            paid = await run.step(pay, "b")
            if broken["yes"]:
                raise KeyError("a bug") from None
            return paid

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        with pytest.raises(limpet.RunFailed):
            await handle.result()
        broken["yes"] = False
        await app.resume(handle.id)
        assert await handle.result() == "b"
        assert [call["bank"] for call in app.calls(pay)] == ["a", "b"]


async def test_what_was_undone_is_not_completed() -> None:
    """A crash while a failed run is undone: its function is not entered again, and it fails as it did."""
    fails, undoing = {"yes": True}, asyncio.Event()

    @limpet.tool(effect="idempotent")
    async def pay() -> str:
        return "paid"

    @pay.compensate
    async def unpay(result: str | None) -> None:
        if fails["yes"]:
            undoing.set()
            await asyncio.get_running_loop().create_future()

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        done = await run.step(pay)
        if fails["yes"]:
            raise OSError("disk")
        return done

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await undoing.wait()
        fails["yes"] = False
        await app.crash()
        with pytest.raises(limpet.RunFailed, match="OSError: disk"):
            await handle.result()


async def test_a_budget_is_extended_by_numbers() -> None:
    """Anything else would be in the log for ever."""

    @limpet.tool(effect="none")
    async def read() -> None: ...

    @limpet.agent(budget=limpet.Budget(max_steps=1, exhausted="ask"))
    async def agent(run: limpet.Run) -> str:
        await run.step(read)
        await run.step(read)
        return "done"

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        [request] = await app.inbox()
        for wrong in ({"max_steps": "many"}, {"max_steps": -1}, {"max_steps": None}, {"more": 1}, {}):
            with pytest.raises(limpet.InvalidAnswer):
                await app.answer(request, wrong, by="ann")
        await app.answer(request, {"max_steps": 5}, by="ann")
        assert await handle.result() == "done"


async def test_one_signal_is_taken_by_one_wait() -> None:
    """Two wait for the same; the first gets it."""

    @limpet.agent()
    async def agent(run: limpet.Run) -> list[int]:
        return list(await asyncio.gather(run.receive("go", int), run.receive("go", int)))

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        await app.signal(handle.id, "go", 1)
        await app.settle()
        assert (await handle.info()).status == "waiting"
        await app.signal(handle.id, "go", 2)
        assert await handle.result() == [1, 2]


async def test_a_resumed_run_asks_again_what_its_failure_had_closed() -> None:
    """A request beside the step that failed is in the inbox again."""

    @limpet.tool(effect="none")
    async def flaky() -> int:
        raise NotImplementedError

    @limpet.agent()
    async def agent(run: limpet.Run) -> list[Any]:
        return list(await asyncio.gather(run.ask("sure?"), run.step(flaky)))

    async with testing.app(agent) as app:
        app.stub(flaky, ValueError("no"), 7)
        handle = await app.start(agent)
        with pytest.raises(limpet.RunFailed):
            await handle.result()
        assert await app.inbox() == []
        await app.resume(handle.id)
        await app.settle()
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        assert await handle.result() == [True, 7]


async def test_children_are_cancelled_before_anything_is_undone() -> None:
    """However long that takes."""

    @limpet.tool(effect="once")
    async def act() -> None: ...

    @limpet.tool(effect="idempotent", retry=limpet.Retry(1))
    async def pay() -> None: ...

    @pay.compensate
    async def unpay(result: None) -> None:
        raise ConnectionError("no")

    @limpet.agent()
    async def child(run: limpet.Run, n: int) -> None:
        await run.sleep("1h")
        await run.step(act)

    @limpet.agent()
    async def agent(run: limpet.Run) -> None:
        await run.step(pay)
        await run.call(child, 1)

    async with testing.app(agent, child) as app:
        await app.start(agent, id="r1")
        await app.settle()
        await app.cancel("r1", reason="enough")
        await app.advance("2h")
        assert app.calls(act) == []
        assert {run.id: run.status for run in await app.runs()} == {"r1": "waiting", "r1.child-1": "cancelled"}
        [request] = await app.inbox()
        await app.answer(request, "skip", by="ann")
        await app.settle()
        assert {run.status for run in await app.runs()} == {"cancelled"}


async def test_an_attempt_that_may_have_been_applied_is_undone() -> None:
    """It timed out, and the next attempt had not begun when the run was cancelled."""
    undone: list[str] = []

    @limpet.tool(effect="idempotent", retry=limpet.Retry(3, first="1h", jitter=False))
    async def pay(what: str) -> None:
        raise ConnectionError("lost") if what == "lost" else limpet.NotApplied("busy")

    @pay.compensate
    async def unpay(result: None, what: str) -> None:
        undone.append(what)

    @limpet.agent()
    async def agent(run: limpet.Run) -> None:
        await asyncio.gather(run.step(pay, "lost"), run.step(pay, "busy"))

    async with testing.app(agent) as app:
        app._test_settings.backoffs = True
        await app.crash()
        await app.start(agent, id="r1")
        await app.settle()
        await app.cancel("r1", reason="enough")
        await app.settle()
    assert undone == ["lost"]


async def test_code_that_raises_before_what_was_done_has_diverged() -> None:
    """A release with a bug undoes nothing."""
    undone: list[str] = []

    @limpet.tool(effect="idempotent")
    async def pay() -> str:
        return "paid"

    @pay.compensate
    async def unpay(result: str | None) -> None:
        undone.append("undone")

    async def good(run: limpet.Run) -> str:
        paid = await run.step(pay)
        await run.sleep("1h")
        return paid

    async def bad(run: limpet.Run) -> str:
        raise NameError("pay")

    before = limpet.agent(name="released")(good)
    async with testing.app(before) as app:
        handle = await app.start(before)
        await app.settle()
        app.deploy(limpet.agent(name="released")(bad))
        await app.crash()
        await app.advance("1h")
        assert (await handle.info()).waits_for == "operator:diverged"
        assert undone == []


async def test_children_in_parallel_share_a_budget() -> None:
    """The second gets what the first has left."""

    @limpet.tool(effect="none")
    async def read() -> None: ...

    @limpet.agent()
    async def child(run: limpet.Run, n: int) -> int:
        for done in range(n):
            try:
                await run.step(read)
            except limpet.BudgetExceeded:
                return done
        return n

    @limpet.agent(budget=limpet.Budget(max_steps=10))
    async def agent(run: limpet.Run) -> list[int]:
        small = limpet.Budget(max_steps=8)
        return list(await asyncio.gather(*(run.call(child, 8, budget=small) for _ in range(2))))

    async with testing.app(agent, child) as app:
        assert await app.run(agent) == [8, 2]


async def test_a_question_that_is_not_yes_or_no_is_not_rejected() -> None:
    """It is answered."""

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        return await run.ask("which?", options=["a", "b"])

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        [request] = await app.inbox()
        with pytest.raises(limpet.InvalidAnswer):
            await app.reject(request, by="ann", because="no")
        await app.answer(request, "b", by="ann")
        assert await handle.result() == "b"


async def test_newer_code_takes_over_the_versions_that_it_accepts() -> None:
    """Others wait for a worker, and say so."""

    async def code(run: limpet.Run) -> str:
        await run.sleep("1h")
        return "done"

    first = limpet.agent(name="moved")(code)
    async with testing.app(first) as app:
        handle = await app.start(first)
        await app.settle()
        app.deploy(limpet.agent(name="moved", version="2")(code))
        await app.crash()
        await app.advance("1h")
        with pytest.raises(limpet.NotDone):
            await handle.result()
        app.deploy(limpet.agent(name="moved", version="2", accepts=["1"])(code))
        await app.crash()
        assert await handle.result() == "done"


def lose_reply(app: testing.TestApp, kind: type[object], nth: int) -> None:
    """The n-th append of such an event is written, and its writer is not told, for a second."""
    commit, seen = app.store._writer._commit, [0]

    def deaf(batch: Any) -> Any:
        done = commit(batch)
        legs = [leg for op in batch for leg in getattr(op, "legs", ()) if isinstance(leg, Extend)]
        seen[0] += any(isinstance(sealed.body, kind) for leg in legs for sealed in leg.events)
        if seen[0] != nth:
            return done
        seen[0] = nth + 1
        app._test_settings.frozen.set(app._test_settings.frozen.now() + 1_000_000)
        return [ConnectionLost(reason="after it was written")] * len(done)

    app.store._writer._commit = deaf


async def test_a_step_that_waits_for_a_word_keeps_its_number() -> None:
    """Though another begins meanwhile, and the run is parked."""

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


async def test_a_refused_budget_stays_refused() -> None:
    """It was extended later, for another step; the code is told the same when it is resumed."""

    @limpet.tool(effect="once")
    async def mail(n: int) -> int:
        return n

    @limpet.agent(budget=limpet.Budget(max_steps=1, exhausted="ask"))
    async def agent(run: limpet.Run) -> list[Any]:
        told: list[Any] = []
        for n in range(3):
            try:
                told.append(await run.step(mail, n))
            except limpet.BudgetExceeded as error:
                told.append(f"{error.limit} {error.allowed:g} {error.wanted:g}")
        await run.ask("go on?")
        return told

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        await app.reject((await app.inbox())[0], by="ann", because="no")
        await app.settle()
        await app.answer((await app.inbox())[0], {"max_steps": 9}, by="ann")
        await app.settle()
        await app.crash()
        await app.approve((await app.inbox())[0], by="ann")
        assert await handle.result() == [0, "max_steps 1 2", 2]
        assert [call["n"] for call in app.calls(mail)] == [0, 2]


async def test_what_a_budget_refuses_is_no_divergence() -> None:
    """Nothing is asked, so nothing is recorded; what was done after it is found all the same."""

    @limpet.tool(effect="idempotent", max_tokens=60)
    async def think() -> None:
        limpet.current().spent(tokens=60)

    @limpet.tool(effect="once")
    async def mail() -> str:
        return "sent"

    @limpet.agent(budget=limpet.Budget(max_llm_tokens=100))
    async def agent(run: limpet.Run) -> str:
        await run.step(think)
        with pytest.raises(limpet.BudgetExceeded):
            await run.step(think)
        sent = await run.step(mail)
        await run.ask("go on?")
        return sent

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        await app.crash()
        await app.approve((await app.inbox())[0], by="ann")
        assert await handle.result() == "sent"
        assert (len(app.calls(think)), len(app.calls(mail))) == (1, 1)


@limpet.tool(effect="once", risk="pay", name="regressions_pay")
async def pay(cents: int) -> int:
    return cents


@limpet.tool(effect="once", name="regressions_mail")
async def mail(text: str) -> str:
    return text


@pytest.mark.parametrize("how", ["rejected", "expired"])
async def test_an_effect_after_a_refusal_is_found_again(how: str) -> None:
    """The refused step has no beginning in the log, but its request has an end."""

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


@pytest.mark.parametrize("nth", [1, 2])
async def test_a_request_whose_expiry_was_not_acknowledged_expires_once(nth: int) -> None:
    """It goes on once, to somebody who has as much time; and ends once."""

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        try:
            await run.ask("well?", to="ann", expires="1h", escalate=["bob"])
        except limpet.Expired:
            return "late"
        return "in time"

    async with testing.app(agent) as app:
        lose_reply(app, b.RequestExpired, nth)
        handle = await app.start(agent, id="r1")
        await app.advance("3h")
        assert await handle.result() == "late"
        log = await app.log("r1")
        expired = [event for event in log if event.kind == "request.expired"]
        assert [event.body["outcome"] for event in expired] == ["escalated", "raised"]
        assert expired[1].time - log[0].time >= 2 * 3600 * 1_000_000
        assert [event.kind for event in log].count("wait.ended") == 1


async def test_a_later_permission_does_not_turn_a_rejection_round() -> None:
    """Not even one for all calls of that tool."""

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
async def test_a_rejection_is_of_a_call_not_of_a_policy(to: str, cents: int, is_asked: bool) -> None:
    """Who would be asked today does not matter; another call needs another word."""

    def release(to: str, cents: int) -> limpet.Agent[None, str]:
        @limpet.agent(name="released", approvals=limpet.Approvals("pay", to=to))
        async def agent(run: limpet.Run) -> str:
            try:
                await run.step(pay, cents)
            except limpet.Rejected:
                await run.sleep("1h")
                return "no"
            return "paid"

        return agent

    first = release("ann", 5)
    async with testing.app(first) as app:
        handle = await app.start(first)
        await app.settle()
        await app.reject((await app.inbox())[0], by="ann", because="no")
        await app.settle()
        app.deploy(release(to, cents))
        await app.crash()
        await app.advance("1h")
        assert [request.args for request in await app.inbox()] == ([{"cents": 6}] if is_asked else [])
        if not is_asked:
            assert await handle.result() == "no"
        assert app.calls(pay) == []


async def test_a_standing_permission_leaves_the_call_as_it_was_approved() -> None:
    """The person's arguments are for this call; others come as the code makes them."""

    @limpet.agent(approvals=limpet.Approvals("pay"))
    async def agent(run: limpet.Run) -> list[int]:
        return [await run.step(pay, 500), await run.step(pay, 2)]

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        await app.approve((await app.inbox())[0], by="ann", args={"cents": 5}, standing=True)
        assert await handle.result() == [5, 2]


async def test_a_permission_that_is_revoked_meanwhile_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between looking at it and writing down that the step begins."""

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


async def test_what_is_asked_again_is_told_again() -> None:
    """A resumed run opens its request anew; there are channels that told it before."""
    told: list[str] = []

    @limpet.tool(effect="none")
    async def flaky() -> int:
        raise NotImplementedError

    @limpet.agent()
    async def agent(run: limpet.Run) -> list[Any]:
        return list(await asyncio.gather(run.ask("sure?"), run.step(flaky)))

    async def own(request: limpet.Request) -> None:
        told.append(request.id)

    async with testing.app(agent) as app:
        app._settings.channels = {"own": own}
        await app.crash()
        app.stub(flaky, ValueError("no"), 7)
        handle = await app.start(agent)
        with pytest.raises(limpet.RunFailed):
            await handle.result()
        await app.resume(handle.id)
        await app.settle()
        [request] = await app.inbox()
        assert told[-1] == request.id
        await app.approve(request, by="ann")
        assert await handle.result() == [True, 7]


async def test_a_fork_of_a_run_that_is_cancelled_asks_what_nobody_took_back() -> None:
    """The request was withdrawn with the run, not by its code: in the fork it is asked anew."""

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


async def test_a_lease_is_renewed_again_after_whatever_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a free file or thread for a moment: nobody else would renew it."""

    @limpet.agent(name="leased")
    async def agent(run: limpet.Run) -> None: ...

    app = limpet.open("memory:", agents=[agent], worker=limpet.Worker(lease="20ms"))
    renew, loop, renewed = app.store.renew, asyncio.get_running_loop(), asyncio.Event()
    wrong: list[Exception] = [OSError("too many open files"), RuntimeError("can't start new thread")]

    async def poor(worker: str, *, lease: int) -> Renewal:
        if wrong:
            raise wrong.pop()
        loop.call_soon_threadsafe(renewed.set)
        return await renew(worker, lease=lease)

    monkeypatch.setattr(app.store, "renew", poor)
    async with app, asyncio.timeout(20):
        await renewed.wait()


async def test_a_worker_claims_again_after_whatever_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that holds its lease and takes no work would keep it from nobody, and do nothing."""

    @limpet.agent(name="claimed_late")
    async def agent(run: limpet.Run) -> int:
        return 1

    async with limpet.open("memory:", agents=[agent]) as app:
        claim, wrong = app.store.claim, [OSError("too many open files")]

        async def poor(worker: str, **how: Any) -> Sequence[Claimed]:
            if wrong:
                raise wrong.pop()
            return await claim(worker, **how)

        monkeypatch.setattr(app.store, "claim", poor)
        assert await (await app.start(agent)).result(timeout="20s") == 1
        assert not wrong


async def test_a_worker_that_is_taken_for_dead_while_it_starts_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row may be swept between its registration and its first claim, after a stop or a jump of the clock."""

    @limpet.agent(name="swept_early")
    async def agent(run: limpet.Run) -> int:
        return 1

    register, swept = Store.register, list[str]()

    async def unlucky(store: Store, worker: WorkerRow, *, lease: int) -> Renewal:
        renewal = await register(store, worker, lease=lease)
        if not swept:
            swept.append(worker.id)
            await store.retire(worker.id)
        return renewal

    monkeypatch.setattr(Store, "register", unlucky)
    async with limpet.open("memory:", agents=[agent]) as app:
        assert await (await app.start(agent)).result(timeout="20s") == 1
        assert [each.id for each in await app.store.workers()] == swept


async def test_what_a_transaction_said_before_it_failed_is_redacted(tmp_path: Path) -> None:
    """Like everything else that is recorded."""

    @limpet.tool(effect="transaction", name="tx_partial")
    def partial() -> None:
        limpet.current().partial({"password": "hunter2hunter2"})
        raise ValueError("no")

    @limpet.agent(name="tx_partial_agent")
    async def agent(run: limpet.Run) -> None:
        with pytest.raises(limpet.StepFailed):
            await run.step(partial)

    async with limpet.open(f"sqlite:///{tmp_path}/t.db", agents=[agent], redact=True) as app:
        await (await app.start(agent, id="r1")).result(timeout="30s")
        assert "step.progressed" in await kinds(app, "r1")
        assert "hunter2" not in str(await app.log("r1"))


async def test_code_that_is_cut_chooses_no_side_of_a_change(tmp_path: Path) -> None:
    """It is told so, and nothing of it is in the log: whoever goes on chooses when the code comes to it."""
    waits, told = asyncio.Event(), list[BaseException]()

    @limpet.agent(name="cut_while_it_waits")
    async def agent(run: limpet.Run) -> None:
        waits.set()
        try:
            await run.receive("go", int)
        finally:
            try:
                run.version("late")
            except limpet.LimpetError as error:
                told.append(error)

    url = f"sqlite:///{tmp_path}/t.db"
    async with limpet.open(url, agents=[agent]) as app:
        await app.start(agent, id="r1")
        await waits.wait()
    async with limpet.open(url) as app:
        assert "version.chosen" not in await kinds(app, "r1")
    assert [type(each) for each in told] == [limpet.Suspended]


async def test_an_ear_goes_on_after_whatever_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else tells those who wait."""

    @limpet.agent(name="heard")
    async def agent(run: limpet.Run) -> None: ...

    async with limpet.open("memory:", worker=False) as app:
        await app.start(agent, id="r1")
        places, wrong, told = app.store.places, [OSError("too many open files")], asyncio.Event()

        async def poor(runs: Sequence[str]) -> dict[str, LogPosition]:
            if wrong:
                raise wrong.pop()
            return await places(runs)

        monkeypatch.setattr(app.store, "places", poor)
        ear = ChangeListener(app.store, SystemClock(), 0)
        listening = asyncio.create_task(ear.run())
        ear.subscribe(Subscription("r1", lambda: 0, lambda _: told.set()))
        async with asyncio.timeout(20):
            await told.wait()
        listening.cancel()
