"""Waiting parks the run; it does not raise an error."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.clock import SECOND, SystemClock, microseconds
from limpet.events import bodies as b


async def kinds(app: limpet.App, run: str) -> list[str]:
    return [event.kind for event in await app.log(run)]


async def test_a_run_resumes_after_a_sleep_of_a_year() -> None:
    """No process holds the run meanwhile."""

    @limpet.agent()
    async def agent(run: limpet.Run) -> float:
        before = run.now()
        await run.sleep("365d")
        return (run.now() - before).days

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        info = await handle.info()
        assert (info.status, info.waits_text) == ("waiting", "time:sleep#1")
        await app.advance("364d")
        assert (await handle.info()).status == "waiting"
        await app.crash()
        await app.advance("1d")
        assert await handle.result() == 365


@pytest.mark.parametrize("wait", ["retry", "sleep"])
async def test_a_short_wait_does_not_park_the_run(wait: str) -> None:
    """It stays in memory for a while after the wait began, however long ago its worker started."""
    tries = list[int]()

    @limpet.tool(effect="none", retry=limpet.Retry(2, first="20ms", jitter=False))
    async def look() -> int:
        tries.append(1)
        if wait == "retry" and len(tries) == 1:
            raise ConnectionError("busy")
        return 1

    @limpet.agent()
    async def agent(run: limpet.Run) -> int:
        if wait == "sleep":
            await run.sleep("20ms")
        return await run.step(look)

    app = limpet.open("memory:", agents=[agent])
    app._settings.linger = microseconds("20s")
    async with app:
        assert await app.run(agent, id="r1") == 1
        assert "run.waiting" not in await kinds(app, "r1")


@pytest.mark.parametrize("beside", ["read", "effect", "effect in another branch"])
async def test_a_signal_that_a_flush_reads_ends_its_wait(beside: str, tmp_path: Path) -> None:
    """At once, although a tool runs in another branch until then. No notification follows: the event is known."""
    heard = asyncio.Event()

    @limpet.tool(effect="none")
    async def send(run: str) -> None:
        await app.store.send_commands(
            run, b.SignalReceived(command="c", signal="go", value=app.store.pack("now")[0]), actor="x"
        )

    @limpet.tool(effect="once")
    async def mark() -> None:
        pass

    @limpet.tool(effect="none" if beside == "read" else "once")
    async def until_heard() -> None:
        await heard.wait()

    @limpet.agent(checkpoint="on_state_change")
    async def agent(run: limpet.Run) -> None:
        async def listen() -> None:
            async with run.scope("listen"):
                await run.receive("go", str)
                heard.set()

        async def work() -> None:
            async with run.scope("work"):
                await run.step(send, run.id)
                await run.step(until_heard if beside == "effect" else mark)  # Its flush reads the signal.

        async def wait() -> None:
            async with run.scope("wait"):
                await (run.step(until_heard) if beside != "effect" else run.sleep(0))

        await asyncio.gather(listen(), work(), wait())

    app = limpet.open(f"sqlite:///{tmp_path}/s.db", agents=[agent])
    app._settings.listen_interval = app._settings.command_poll = 3600 * SECOND
    async with app, asyncio.timeout(60):
        await app.run(agent)


async def test_a_cancel_that_a_flush_reads_stops_code_that_makes_no_call(tmp_path: Path) -> None:
    @limpet.tool(effect="none")
    async def send(run: str) -> None:
        await app.store.send_commands(run, b.CancelRequested(command="c", reason="enough"), actor="x")

    @limpet.agent()
    async def agent(run: limpet.Run) -> None:
        await run.step(send, run.id)
        await asyncio.get_running_loop().create_future()

    app = limpet.open(f"sqlite:///{tmp_path}/s.db", agents=[agent])
    app._settings.listen_interval = app._settings.command_poll = 3600 * SECOND
    async with app, asyncio.timeout(60):
        with pytest.raises(limpet.RunCancelled):
            await app.run(agent)


async def test_a_suspension_triggers_no_except_or_finally_effects() -> None:
    """The code around a wait is executed again, but steps in `finally` do not run because of a suspension."""
    entered = []

    @limpet.tool(effect="once")
    async def act(what: str) -> None: ...

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        entered.append(1)
        try:
            await run.ask("first?")
            await run.ask("second?")
        except limpet.LimpetError as error:
            entered.append(0)
            return f"never: {error}"
        finally:
            try:
                await run.step(act, "cleaned up")
            except limpet.Suspended:
                entered.append(-1)
                raise
        return "done"

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        for _ in range(2):
            await app.settle()
            assert app.calls(act) == []
            await app.approve((await app.inbox())[0], by="ann")
        assert await handle.result() == "done"
        assert app.calls(act) == [{"what": "cleaned up"}]
    assert entered.count(1) >= 2
    assert 0 not in entered


async def test_task_groups_and_gather_pass_a_suspension_on() -> None:
    """TaskGroup, gather(return_exceptions=True) and a bare except do not turn a suspension into an error."""

    @limpet.tool(effect="once")
    async def act(what: str) -> str:
        return what

    @limpet.agent()
    async def agent(run: limpet.Run) -> list[Any]:
        found: list[Any] = list(
            await asyncio.gather(run.step(act, "a"), run.ask("1?"), run.sleep("1h"), return_exceptions=True)
        )
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run.ask("2?")), group.create_task(run.step(act, "b"))]
        try:
            found.append(await run.ask("3?"))
        except:
            found.append("caught")
            raise
        return found + [task.result() for task in tasks]

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        for _ in range(3):
            await app.settle()
            await app.crash()
            await app.settle()
            [request] = await app.inbox()
            await app.approve(request, by="ann")
            await app.advance("1h")
        assert await handle.result() == ["a", True, None, True, True, "b"]
        assert app.calls(act) == [{"what": "a"}, {"what": "b"}]


async def test_a_request_whose_wait_is_cancelled_by_the_code_is_withdrawn() -> None:
    """On replay it stays open until the code cancels it again."""

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        asking = asyncio.ensure_future(run.ask("sure?"))
        await run.sleep("1h")
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await run.sleep("1h")
        return "alone"

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        [request] = await app.inbox()
        await app.advance("1h")
        assert await app.inbox() == []
        with pytest.raises(limpet.AlreadyAnswered, match="withdrawn"):
            await app.approve(request, by="ann")
        await app.crash()
        await app.advance("1h")
        assert await handle.result() == "alone"
        assert (await kinds(app, handle.id)).count("request.opened") == 1


@pytest.mark.parametrize("what", ["ask", "approval"])
async def test_a_request_that_is_cancelled_while_it_is_written_is_withdrawn(tmp_path: Path, what: str) -> None:
    """It leaves the inbox, cannot be answered, and on replay the code cancels it again."""

    @limpet.tool(effect="idempotent", risk="x")
    async def act() -> None:
        raise NotImplementedError

    @limpet.agent(approvals=limpet.Approvals("x", to="ann"))
    async def agent(run: limpet.Run) -> bool:
        async def ask() -> None:
            async with run.scope("first"):
                await (run.ask("first?") if what == "ask" else run.step(act))

        async def fail() -> None:
            raise ValueError(what)

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(ask())
                group.create_task(fail())
        except* ValueError:
            await run.patch(facts={"went": "on"})
        return await run.ask("last?")

    async with limpet.open(f"sqlite:///{tmp_path}/a.db", agents=[agent]) as app, asyncio.timeout(60):
        handle = await app.start(agent)
        while (await handle.info()).status != "waiting":
            await SystemClock().sleep(SECOND // 100)
        [last] = await app.inbox()
        assert last.question == "last?"
        opened = [event.body["request"] for event in await app.log(handle.id) if event.kind == "request.opened"]
        assert len(opened) == 2
        with pytest.raises(limpet.AlreadyAnswered, match="withdrawn"):
            await app.approve(next(each for each in opened if each != last.id), by="ann")
    async with limpet.open(f"sqlite:///{tmp_path}/a.db", agents=[agent]) as app, asyncio.timeout(60):
        await app.approve(last, by="ann")
        assert await (await app.get(handle.id)).result() is True
        assert (await kinds(app, handle.id)).count("request.opened") == 2
        assert str(await app.replay(handle.id)).endswith("returns True")


async def test_an_answer_that_does_not_fit_its_request_is_refused() -> None:
    """Yes or no, one of several options, or a typed value. The request stays open after a refusal."""

    @limpet.agent()
    async def agent(run: limpet.Run) -> list[Any]:
        return [
            await run.ask("sure?"),
            await run.ask("which?", options=["red", "blue"]),
            await run.ask("how many?", answer=int),
        ]

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        for wrong, right in (("yes", False), ("green", "blue"), ("three", 3)):
            await app.settle()
            [request] = await app.inbox()
            with pytest.raises(limpet.InvalidAnswer):
                await app.answer(request, wrong, by="ann")
            await app.answer(request, right, by="ann")
            with pytest.raises(limpet.AlreadyAnswered):
                await app.answer(request, right, by="bob")
        assert await handle.result() == [False, "blue", 3]


async def test_an_unanswered_request_takes_its_default_escalates_or_raises() -> None:
    """An answer after the expiry is refused."""

    @limpet.agent(deadline="30d")
    async def agent(run: limpet.Run) -> list[Any]:
        found: list[Any] = [await run.ask("sure?", expires="1d", default=True)]
        try:
            await run.ask("really?", to="ann", expires="1d", escalate=["bob", "cfo"])
        except limpet.Expired:
            found.append("nobody")
        with pytest.raises(limpet.InvalidValue):
            await run.ask("too late?", expires="60d")
        return found

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        [first] = await app.inbox()
        await app.advance("1d")
        with pytest.raises(limpet.Expired):
            await app.approve(first, by="ann")
        for person in ("ann", "bob", "cfo"):
            [request] = await app.inbox()
            assert request.to == (person,)
            await app.crash()
            await app.advance("1d")
        assert await handle.result() == [True, "nobody"]


async def test_signals_are_received_in_order_and_once() -> None:
    """This includes signals sent before the run waits for them, and survives a crash."""

    @limpet.agent()
    async def agent(run: limpet.Run) -> list[int]:
        found = []
        await run.sleep("1h")
        for _ in range(4):
            found.append(await run.receive("n", int))
            if len(found) == 2:
                await run.ask("more?")
        with pytest.raises(limpet.Expired):
            await run.receive("n", int, timeout="5m")
        return found

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        for n in (1, 2, 3):
            await app.signal(handle.id, "n", n)
        await app.advance("1h")
        await app.crash()
        await app.approve((await app.inbox())[0], by="ann")
        await app.settle()
        await app.signal(handle.id, "other", 9)
        await app.signal(handle.id, "n", 4)
        await app.advance("5m")
        assert await handle.result() == [1, 2, 3, 4]


async def test_a_deadline_ends_a_sleep_and_starts_no_new_step() -> None:

    @limpet.tool(effect="none")
    async def read() -> None: ...

    @limpet.agent(deadline="2d")
    async def agent(run: limpet.Run) -> str:
        with pytest.raises(limpet.DeadlineExceeded):
            await run.sleep("3d")
        await run.step(read)
        return "too late"

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.advance("2d")
        with pytest.raises(limpet.RunFailed, match="DeadlineExceeded"):
            await handle.result()
        assert app.calls(read) == []


async def test_a_delayed_run_starts_at_its_time() -> None:

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        return "begun"

    async with testing.app(agent) as app:
        handle = await app.start(agent, at="3d")
        await app.advance("2d")
        with pytest.raises(limpet.NotDone):
            await handle.result()
        await app.advance("1d")
        assert await handle.result() == "begun"


async def test_time_random_numbers_and_ids_are_the_same_in_every_execution() -> None:
    seen = []

    @limpet.agent()
    async def agent(run: limpet.Run) -> int:
        seen.append((run.now(), run.random(), run.uuid(), run.version("x")))
        await run.sleep("1h")
        return 1

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        await app.crash()
        await app.advance("1h")
        assert await handle.result() == 1
    assert len(seen) >= 2
    assert len(set(seen)) == 1
    assert seen[0][2][14] == "4"


async def test_one_signal_ends_one_of_two_waits() -> None:
    """The first of the two waits receives it."""

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
