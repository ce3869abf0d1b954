"""Cancel, pause, resume, quarantine, children and exclusive runs."""

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.clock import SECOND, SystemClock, microseconds
from limpet.engine.worker.run_driver import RunDriver
from limpet.events import VOCABULARY
from limpet.testing.app import TestApp, TestSettings

# The last event of a run that waits in memory: before the first crash, and after it.
LINGERS = ("request.opened", "run.claimed")


async def kinds(app: limpet.App, run: str) -> list[str]:
    return [event.kind for event in await app.log(run)]


async def test_a_resumed_run_repeats_only_its_failed_step() -> None:
    """Completed steps are not repeated, and a failure that the code caught stays caught."""

    @limpet.tool(effect="once")
    async def act(what: str) -> str:
        return what

    @limpet.tool(effect="none", retry=1)
    async def flaky(n: int) -> int:
        raise NotImplementedError

    @limpet.agent()
    async def agent(run: limpet.Run) -> list[Any]:
        first = await run.step(act, "a")
        try:
            await run.step(flaky, 1)
        except limpet.StepFailed:
            first += " caught"
        try:
            return [first, await run.step(flaky, 2)]
        except limpet.StepFailed as error:
            raise ValueError("wrapped") from error

    async with testing.app(agent) as app:
        app.stub(flaky, ValueError("1"), ValueError("2"), 7)
        handle = await app.start(agent)
        with pytest.raises(limpet.RunFailed, match="ValueError: wrapped"):
            await handle.result()
        await app.resume(handle.id)
        assert await handle.result() == ["a caught", 7]
        assert len(app.calls(act)) == 1
        assert [call["n"] for call in app.calls(flaky)] == [1, 2, 2]
        await app.resume(handle.id)
        assert (await handle.info()).status == "completed"
        numbers = [event.body["number"] for event in await app.log(handle.id) if event.kind == "step.started"]
        assert numbers == [1, 2, 3, 3]


async def test_a_resume_reopens_an_expired_request_and_resumes_a_failed_child() -> None:
    """The child run is resumed, not started a second time."""

    @limpet.tool(effect="none", retry=1)
    async def flaky(n: int) -> int:
        return n

    @limpet.agent()
    async def child(run: limpet.Run, n: int) -> int:
        await run.ask("child?")
        return await run.step(flaky, n)

    @limpet.agent()
    async def agent(run: limpet.Run) -> list[Any]:
        return [await run.ask("sure?", expires="1h"), await run.call(child, 3)]

    async with testing.app(agent, child) as app:
        app.stub(flaky, ValueError("1"), ValueError("2"), 3)
        handle = await app.start(agent)
        await app.advance("1h")
        assert (await handle.info()).status == "failed"
        await app.resume(handle.id)
        for question in ("sure?", "child?"):
            await app.settle()
            [request] = await app.inbox()
            assert request.question == question
            await app.approve(request, by="ann")
        for _ in range(2):
            with pytest.raises(limpet.RunFailed, match="AgentFailed"):
                await handle.result()
            await app.resume(handle.id)
        assert await handle.result() == [True, 3]
        assert len(await app.runs(agent="child")) == 1


async def test_a_paused_run_finishes_its_step_and_starts_none_until_resumed() -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    @limpet.tool(effect="once")
    async def act(what: str) -> str:
        entered.set()
        await go.wait()
        return what

    @limpet.agent()
    async def agent(run: limpet.Run) -> list[str]:
        return [await run.step(act, "a"), await run.step(act, "b")]

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await entered.wait()
        await app.pause(handle.id)
        go.set()
        await app.settle()
        assert (await handle.info()).waits_text == "operator:paused"
        assert len(app.calls(act)) == 1
        await app.advance("10d")
        assert len(app.calls(act)) == 1
        await app.resume(handle.id)
        assert await handle.result() == ["a", "b"]
        assert len(app.calls(act)) == 2


async def test_cancel_cancels_children_finishes_running_effects_and_compensates() -> None:
    """Compensation runs in reverse order, requests leave the inbox, and the agent function is not called again."""
    undone: list[Any] = []
    keys: dict[str, str] = {}
    entered, go = asyncio.Event(), asyncio.Event()

    @limpet.tool(effect="idempotent")
    async def act(what: str) -> str:
        with pytest.raises(limpet.WrongCall, match="to undo"):
            limpet.current().original_key  # noqa: B018
        keys[what] = limpet.idempotency_key()
        if what == "slow":
            entered.set()
            await go.wait()
        return f"did {what}"

    @act.compensate
    async def undo(result: str | None, what: str) -> None:
        original = limpet.current().original_key
        assert limpet.idempotency_key() == limpet.current().key == f"{original}:undo"
        undone.append((result, what, original))

    @limpet.agent()
    async def child(run: limpet.Run, n: int) -> int:
        await run.ask("wait for ever?")
        return n

    @limpet.agent()
    async def agent(run: limpet.Run) -> None:
        await run.step(act, "first")
        await asyncio.gather(run.call(child, 1), run.ask("me?"), run.step(act, "slow"))
        await run.step(act, "never")

    async with testing.app(agent, child) as app:
        handle = await app.start(agent, id="r1")
        await entered.wait()
        await app.cancel("r1", reason="enough")
        go.set()
        with pytest.raises(limpet.RunCancelled, match="enough"):
            await handle.result()
        assert undone == [("did slow", "slow", keys["slow"]), ("did first", "first", keys["first"])]
        assert await app.inbox() == []
        assert [run.status for run in await app.runs()] == ["cancelled", "cancelled"]
        with pytest.raises(limpet.WrongState):
            await app.cancel("r1", reason="again")
        assert (await kinds(app, "r1"))[-1] == "run.cancelled"


@pytest.mark.parametrize("does", ["nothing", "scopes", "versions"])
async def test_a_cancel_reaches_code_that_writes_nothing(does: str) -> None:
    """Also if it makes calls that record nothing: no append shows it the command."""
    cancelled = asyncio.Event()

    @limpet.agent()
    async def agent(run: limpet.Run) -> None:
        try:
            while True:
                if does == "versions":
                    run.version("new")
                async with run.scope("item") if does == "scopes" else nullcontext():
                    await SystemClock().sleep(SECOND // 100)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with limpet.open("memory:", agents=[agent]) as app:
        handle = await app.start(agent)
        await SystemClock().sleep(SECOND // 5)
        await handle.cancel("enough")
        async with asyncio.timeout(60):
            await cancelled.wait()


@pytest.mark.parametrize("decides", ["resume", "cancel"])
async def test_a_run_that_kills_its_workers_is_quarantined(decides: str) -> None:
    """Two deaths make the run a suspect; three more, alone, quarantine it. A cancel does not call its code."""
    entered = asyncio.Event()

    @limpet.tool(effect="none", retry=1)
    async def poison() -> None:
        entered.set()
        await asyncio.get_running_loop().create_future()

    @limpet.agent()
    async def agent(run: limpet.Run) -> None:
        await run.step(poison)

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        for _ in range(5):
            await entered.wait()
            entered.clear()
            await app.crash()
        await app.settle()
        assert (await handle.info()).waits_text == "operator:quarantined"
        assert len(app.calls(poison)) == 5
        if decides == "resume":
            await app.resume(handle.id)
            await entered.wait()
        else:
            await app.cancel(handle.id, reason="enough")
            await app.settle()
            assert (await handle.info()).status == "cancelled"
            assert len(app.calls(poison)) == 5


async def test_a_quarantined_run_is_retried_after_1_minute_10_minutes_and_1_hour() -> None:
    """Each retry happens once. After the third, only an operator can resume the run."""
    entered = asyncio.Event()
    mended = False

    @limpet.tool(effect="none", retry=1)
    async def poison() -> int:
        entered.set()
        return 7 if mended else await asyncio.get_running_loop().create_future()

    @limpet.agent()
    async def agent(run: limpet.Run) -> int:
        return await run.step(poison)

    async def die() -> None:
        await entered.wait()
        entered.clear()
        await app.crash()

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        for _ in range(5):
            await die()
        await app.settle()
        for pause in ("1m", "10m", "1h"):
            info = await handle.info()
            assert (info.waits_text, info.status) == ("operator:quarantined", "waiting")
            await app.advance(microseconds(pause) / SECOND - 10)
            assert not entered.is_set()
            advancing = asyncio.create_task(app.advance("10s"))
            await die()
            await advancing
            await app.settle()
        await app.advance("30d")
        assert not entered.is_set()
        assert len(app.calls(poison)) == 8
        mended = True
        await app.resume(handle.id)
        assert await handle.result() == 7


async def test_a_quarantined_run_that_makes_progress_is_released() -> None:
    """Once the cause is fixed, the next automatic retry completes the run without an operator."""
    entered, mended = asyncio.Event(), asyncio.Event()

    @limpet.tool(effect="none", retry=1)
    async def poison() -> int:
        entered.set()
        await mended.wait()
        return 7

    @limpet.agent()
    async def agent(run: limpet.Run) -> int:
        return await run.step(poison)

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        for _ in range(5):
            await entered.wait()
            entered.clear()
            await app.crash()
        await app.settle()
        assert (await handle.info()).waits_text == "operator:quarantined"
        mended.set()
        await app.advance("1m")
        assert await handle.result() == 7


async def test_a_run_that_fails_in_the_engine_is_retried_with_backoff_and_then_parked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bug in the engine does not make a worker spin: it waits 1 s, 2 s, 4 s, … and parks the run after eight
    attempts.
    """
    entered = 0

    async def broken(*_: object) -> None:
        nonlocal entered
        entered += 1
        raise RuntimeError("a bug in the engine")

    @limpet.agent()
    async def agent(run: limpet.Run) -> int:
        return 7

    async with testing.app(agent) as app:
        with monkeypatch.context() as patch:
            patch.setattr(RunDriver, "_run_agent", broken)
            handle = await app.start(agent)
            await app.settle()
            for times in range(1, 8):
                assert entered == times
                await app.advance((1 << (times - 1)) - 0.5)
                assert entered == times, "retried too early"
                await app.advance(0.5)
            assert entered == 8
            info = await handle.info()
            assert info.waits_text == "operator:stuck"
            [flag] = (await app.state(handle.id)).working.risk_flags
            assert flag == "stuck"
            await app.advance("1d")
            assert entered == 8
        await app.resume(handle.id)
        assert await handle.result() == 7


async def test_a_worker_leaves_a_log_of_a_newer_version_to_newer_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker releases the run without counting an attempt, and claims no run of that agent for a while. No run is
    parked.
    """

    @limpet.agent()
    async def agent(run: limpet.Run) -> Any:
        return await run.receive("go", int)

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        known = VOCABULARY.kinds["signal.received"]
        newest = known._replace(version=known.version + 1)
        with monkeypatch.context() as newer:
            newer.setitem(VOCABULARY.kinds, "signal.received", newest)
            newer.setitem(VOCABULARY._by_body, known.body, newest)
            await app.signal(handle.id, "go", 7)
        for _ in range(20):
            await app.advance("5m")
        assert (await handle.info()).status == "pending"
        claims = [event async for event in app.store.log(handle.id) if event.kind == "run.claimed"]
        assert 1 < len(claims) < 30
        monkeypatch.setitem(VOCABULARY.kinds, "signal.received", newest)
        monkeypatch.setitem(VOCABULARY._upcasts, ("signal.received", known.version), dict)
        await app.advance("5m")
        assert await handle.result() == 7


async def test_a_new_run_of_a_newer_version_does_not_keep_others_from_being_claimed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A claim hands short logs over. One that this version cannot decode is left to the worker that reads it."""

    @limpet.agent()
    async def agent(run: limpet.Run) -> int:
        return 7

    url = f"sqlite:///{tmp_path}/store.db"
    async with limpet.open(url, agents=[agent], worker=False) as app:
        known = VOCABULARY.kinds["run.created"]
        newest = known._replace(version=known.version + 1)
        with monkeypatch.context() as newer:
            newer.setitem(VOCABULARY.kinds, "run.created", newest)
            newer.setitem(VOCABULARY._by_body, known.body, newest)
            await app.start(agent, id="newer")
        await app.start(agent, id="known")
    async with limpet.open(url, agents=[agent]) as app:
        assert await (await app.get("known")).result(timeout="10s") == 7
        [event, *_] = await app.store.read("newer")
        assert event.version == known.version + 1
        assert (await app.store.get("newer")).status != "completed"


async def test_a_run_that_only_waits_is_not_quarantined() -> None:
    """From the second worker death on, the run is released instead of kept in memory."""

    @limpet.agent()
    async def agent(run: limpet.Run) -> bool:
        return await run.ask("sure?")

    settings = TestSettings()
    settings.linger = microseconds("1d")  # the clock does not advance
    async with TestApp(settings, [agent]) as app:
        handle = await app.start(agent)
        for deaths in range(6):
            async with asyncio.timeout(20):
                while (await kinds(app, handle.id))[-1] != ("run.waiting" if deaths >= 2 else LINGERS[deaths]):
                    await asyncio.sleep(0)  # noqa: TID251 - a turn
            await app.crash()
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        assert await handle.result() is True


async def test_child_runs_have_derived_ids_and_run_concurrently() -> None:
    """`run.call` starts a child and waits for it; `run.start` starts a run with its own id and does not wait."""

    @limpet.agent()
    async def double(run: limpet.Run, n: int) -> int:
        await run.sleep("1m")
        return 2 * n

    @limpet.agent()
    async def agent(run: limpet.Run) -> list[Any]:
        found = await asyncio.gather(*(run.call(double, n) for n in range(3)))
        started = await run.start(double, 9, id=f"audit-{run.id}")
        return [*found, started.id]

    async with testing.app(agent, double) as app:
        handle = await app.start(agent, id="r1")
        await app.settle()
        await app.crash()
        await app.advance("2m")
        assert await handle.result() == [0, 2, 4, "audit-r1"]
        assert await (await app.get("audit-r1", double)).result() == 18
        ids = {run.id for run in await app.runs()}
        assert ids == {"r1", "r1.double-1", "r1.double-2", "r1.double-3", "audit-r1"}


@pytest.mark.parametrize("who", ["session", "user"])
async def test_an_exclusive_agent_has_one_run_at_a_time_per_session_or_user(who: Any) -> None:
    """Runs of another session or user do not wait."""
    running: list[str] = []

    @limpet.agent(exclusive=who)
    async def chat(run: limpet.Run) -> list[str]:
        running.append(run.id)
        await run.sleep("1h")
        return running

    async with testing.app(chat) as app:
        for id, session in (("a1", "a"), ("a2", "a"), ("b1", "b")):
            owner = {"session": session} if who == "session" else {"user": session}
            await app.start("chat", None, id=id, session=owner.get("session"), user=owner.get("user"))
            await app.advance("1s")
        assert sorted(set(running)) == ["a1", "b1"]
        with pytest.raises(limpet.ContractError):
            await app.start(chat)


async def test_starting_an_existing_id_returns_the_same_run() -> None:
    """Twenty concurrent starts create one run. Another input raises IdConflict."""

    @limpet.agent()
    async def agent(run: limpet.Run, n: int) -> int:
        return n

    async with testing.app(agent) as app:
        assert await asyncio.gather(*(app.run(agent, 5, id="r1") for _ in range(20))) == [5] * 20
        with pytest.raises(limpet.IdConflict):
            await app.start(agent, 6, id="r1")
        with pytest.raises(limpet.ContractError):
            await app.start("agent", "six")
        assert len(await app.runs()) == 1


async def test_once_runs_a_function_once_per_key() -> None:
    """Concurrent callers with the same key wait and get the first result."""
    calls: list[int] = []

    async def work() -> dict[str, int]:
        calls.append(1)
        return {"n": len(calls)}

    @limpet.agent()
    async def nothing(run: limpet.Run) -> None: ...

    async with testing.app(nothing) as app:
        assert await asyncio.gather(*(app.once("key-1", work) for _ in range(5))) == [{"n": 1}] * 5
        assert await app.once("key-1", work) == {"n": 1}
        assert await app.once("key-2", work) == {"n": 2}


async def test_a_run_whose_input_no_longer_fits_waits_for_an_operator() -> None:
    """An operator's resume overrides the maximum age."""

    async def takes_text(run: limpet.Run, what: str) -> str:
        await run.sleep("1h")
        return what

    async def takes_number(run: limpet.Run, what: int) -> int:
        return what

    before = limpet.agent(name="moved")(takes_text)
    async with testing.app(before) as app:
        handle = await app.start(before, "text")
        await app.settle()
        app.deploy(limpet.agent(name="moved")(takes_number))
        await app.crash()
        await app.advance("1h")
        assert (await handle.info()).waits_text == "operator:input"
        app.deploy(limpet.agent(name="moved", max_age="1m")(takes_text))
        await app.crash()
        await app.resume(handle.id)
        assert await handle.result() == "text"


async def test_a_run_older_than_max_age_waits_for_an_operator() -> None:
    """It completes after the operator resumes it."""

    @limpet.agent(max_age="1d")
    async def agent(run: limpet.Run) -> str:
        await run.sleep("3d")
        return "late"

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.advance("3d")
        assert (await handle.info()).waits_text == "operator:too old"
        await app.resume(handle.id)
        assert await handle.result() == "late"
