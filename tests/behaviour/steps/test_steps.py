"""Steps: intent before effect, results verbatim, attempts, and what nobody knows."""

import asyncio
import inspect
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.engine.run import missed_awaits


async def kinds(app: limpet.App, run: str) -> list[str]:
    return [event.kind for event in await app.log(run)]


async def test_a_result_is_recorded_and_its_function_not_called_again() -> None:
    """A crash after the step: its result comes from the log, also None, 0 and what is empty."""
    outputs: list[Any] = [None, 0, "", [], {}, False, "text", {"a": [1, None]}]
    for output in outputs:

        @limpet.tool(effect="once", name=f"give-{output!r}")
        async def give(result: Any = output) -> Any:
            return result

        @limpet.agent()
        async def agent(run: limpet.Run) -> Any:
            first = await run.step(give)
            await run.ask("go on?")
            return [first, await run.step(give)]

        async with testing.app(agent) as app:
            handle = await app.start(agent)
            await app.settle()
            await app.crash()
            await app.approve((await app.inbox())[0], by="ann")
            assert await handle.result() == [output, output]
            assert len(app.calls(give)) == 2


async def test_intent_is_durable_before_an_effect_and_a_read_costs_one_commit() -> None:
    """When the function of an effect runs, its start is in the log; that of a read rides with its end."""
    seen: dict[str, list[str]] = {}

    @limpet.tool(effect="none")
    async def read() -> None:
        seen["read"] = await kinds(app, "r1")

    @limpet.tool(effect="idempotent")
    async def act() -> None:
        seen["act"] = await kinds(app, "r1")

    @limpet.agent()
    async def agent(run: limpet.Run) -> None:
        await run.step(read)
        await run.step(act)

    async with testing.app(agent) as app:
        await app.run(agent, id="r1")
    assert seen["read"] == ["run.created", "run.claimed"]
    assert seen["act"] == [*seen["read"], "step.started", "step.completed", "step.started"]


async def test_every_error_is_kept_and_the_last_one_is_raised() -> None:
    """Attempts are durable; the code gets StepFailed with what it was, live and on replay."""

    @limpet.tool(effect="none", retry=limpet.Retry(3))
    async def flaky() -> str:
        raise TimeoutError("no answer")

    caught: list[tuple[int, str, bool, bool]] = []

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        try:
            return await run.step(flaky)
        except limpet.StepFailed as error:
            caught.append((error.attempts, error.message, error.was(OSError), error.was("ValueError")))
            await run.ask("go on?")
            return "caught"

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        await app.crash()
        await app.approve((await app.inbox())[0], by="ann")
        assert await handle.result() == "caught"
        assert len(app.calls(flaky)) == 3
        log = await app.log(handle.id)
        assert [event.body["attempt"] for event in log if event.kind == "step.failed"] == [1, 2, 3]
    assert caught == [(3, "no answer", True, False)] * len(caught)
    assert len(caught) >= 2


async def test_what_says_that_nothing_was_applied_is_retried_whatever_the_effect() -> None:
    """NotApplied and RetryAfter; Permanent ends it at once."""

    @limpet.tool(effect="once", retry=limpet.Retry(3))
    async def act() -> str:
        raise NotImplementedError

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        return await run.step(act)

    async with testing.app(agent) as app:
        app.stub(act, limpet.NotApplied("busy"), limpet.RetryAfter("5s"), "done")
        assert await app.run(agent) == "done"
        app.stub(act, limpet.Permanent("never"))
        with pytest.raises(limpet.RunFailed) as failed:
            await app.run(agent)
        assert failed.value.error_type == "limpet.StepFailed"
        assert len(app.calls(act)) == 4


async def test_a_once_effect_that_raised_is_verified() -> None:
    """Applied: its result is taken. Not applied: it is tried again as often as retry says, then it has failed."""
    applied = {"yes": False}

    @limpet.tool(effect="once", retry=limpet.Retry(2))
    async def act() -> str:
        raise NotImplementedError

    @act.verify
    async def was_done() -> limpet.Done[str] | None:
        return limpet.Done("found") if applied["yes"] else None

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        return await run.step(act)

    async with testing.app(agent) as app:
        app.stub(act, ConnectionError("?"), "second")
        assert await app.run(agent) == "second"
        app.stub(act, ConnectionError("?"))
        with pytest.raises(limpet.RunFailed, match="StepFailed"):
            await app.run(agent)
        applied["yes"] = True
        calls = len(app.calls(act))
        assert await app.run(agent) == "found"
        assert len(app.calls(act)) == calls + 1


@pytest.mark.parametrize(
    ("said", "calls", "result"),
    [({"applied": "by hand"}, 1, "by hand"), ("not_applied", 2, "done"), ("unknown", 1, "unknown")],
)
async def test_a_once_effect_that_nobody_can_verify_goes_to_a_person(said: Any, calls: int, result: str) -> None:
    """Its worker died in it: it is never repeated blindly."""
    crashed = asyncio.Event()

    @limpet.tool(effect="once")
    async def act() -> str:
        if not crashed.is_set():
            crashed.set()
            await asyncio.get_running_loop().create_future()
        return "done"

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        try:
            return await run.step(act)
        except limpet.OutcomeUnknown:
            return "unknown"

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await crashed.wait()
        await app.crash()
        await app.settle()
        [request] = await app.inbox()
        assert (request.kind, request.tool) == ("unknown", "act")
        with pytest.raises(limpet.InvalidAnswer):
            await app.answer(request, "perhaps", by="ann")
        await app.answer(request, said, by="ann")
        assert await handle.result() == result
        assert len(app.calls(act)) == calls


@pytest.mark.parametrize("effect", ["none", "idempotent"])
async def test_a_death_is_repeated_where_that_is_safe_and_counts_no_attempt(effect: Any) -> None:
    """With the same key; the attempt keeps its number."""
    crashed = asyncio.Event()
    seen: list[tuple[int, str]] = []

    @limpet.tool(effect=effect, retry=limpet.Retry(1))
    async def act() -> str:
        call = limpet.current()
        seen.append((call.attempt, call.key if effect != "none" else ""))
        if not crashed.is_set():
            crashed.set()
            await asyncio.get_running_loop().create_future()
        return "done"

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        return await run.step(act)

    async with testing.app(agent) as app:
        handle = await app.start(agent, id="r1")
        await crashed.wait()
        await app.crash()
        assert await handle.result() == "done"
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert seen[0] == (1, f"r1:step_1:act:{'44136fa355b3678a'}" if effect != "none" else "")


async def test_an_idempotent_effect_without_an_answer_is_unknown() -> None:
    """After its last attempt the code is told so, not that it failed."""

    @limpet.tool(effect="idempotent", retry=limpet.Retry(2))
    async def act() -> str:
        raise ConnectionError("lost")

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        with pytest.raises(limpet.OutcomeUnknown) as unknown:
            await run.step(act)
        assert unknown.value.was(ConnectionError)
        return "unknown"

    async with testing.app(agent) as app:
        assert await app.run(agent, id="r1") == "unknown"
        assert [kind for kind in await kinds(app, "r1") if kind.startswith("step.")] == [
            "step.started",
            "step.failed",
            "step.started",
            "step.unknown",
            "step.resolved",
        ]


async def test_an_attempt_has_its_time() -> None:
    """By the injected clock; then a read has failed."""

    @limpet.tool(effect="none", timeout="10s")
    async def slow() -> None:
        await asyncio.get_running_loop().create_future()

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        try:
            await run.step(slow)
        except limpet.StepFailed as failed:
            return failed.message
        return "in time"

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        while not app.calls(slow):
            await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop
        app._test_settings.frozen.advance("10s")
        assert await handle.result() == "timed out after 10 s"


async def test_an_output_that_cannot_be_stored_is_unavailable_and_never_run_again() -> None:
    """The effect was applied: the same error each time."""

    @limpet.tool(effect="once")
    async def act() -> Any:
        return object()

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        with pytest.raises(limpet.OutputUnavailable):
            await run.step(act)
        await run.ask("go on?")
        return "done"

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.settle()
        await app.crash()
        await app.approve((await app.inbox())[0], by="ann")
        assert await handle.result() == "done"
        assert len(app.calls(act)) == 1


async def test_inside_a_tool() -> None:
    """The key, the attempt, progress, partial values, what was spent; a key in a read is an error."""

    @limpet.tool(effect="idempotent")
    async def act() -> str:
        call = limpet.current()
        call.progress("half", 0.5)
        call.spent(tokens=10, cost=0.5)
        call.spent(tokens=2)
        await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop
        return limpet.idempotency_key()

    @limpet.tool(effect="none")
    async def read() -> str:
        with pytest.raises(limpet.WrongCall):
            limpet.idempotency_key()
        return "no key"

    @limpet.agent()
    async def agent(run: limpet.Run) -> list[str]:
        return [await run.step(act), await run.step(read)]

    with pytest.raises(limpet.WrongCall):
        limpet.current()
    async with testing.app(agent) as app:
        [key, _] = await app.run(agent, id="r1")
        assert key.startswith("r1:step_1:act:")
        log = await app.log("r1")
        [progress] = [event.body for event in log if event.kind == "step.progressed"]
        assert (progress["note"], progress["fraction"]) == ("half", 0.5)
        completed = next(event.body for event in log if event.kind == "step.completed")
        assert completed["spent"] == {"tokens": 12, "cost": 0.5}


async def test_a_direct_call_of_a_tool_in_an_agent_is_refused() -> None:
    """Inside another tool it is the plain function."""

    @limpet.tool(effect="none")
    async def inner() -> int:
        return 7

    @limpet.tool(effect="none")
    async def outer() -> int:
        return await inner()

    @limpet.agent()
    async def agent(run: limpet.Run) -> int:
        with pytest.raises(limpet.WrongCall, match=r"run\.step"):
            await inner()
        return await run.step(outer)

    async with testing.app(agent) as app:
        assert await app.run(agent) == 7


async def test_sync_tools_run_beside_the_event_loop() -> None:
    """With the same context: key, progress, errors."""

    @limpet.tool(effect="idempotent")
    def act(n: int) -> str:
        if n == 2:
            raise limpet.Permanent("no")
        limpet.current().progress("on a thread")
        return limpet.idempotency_key()

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        key = await run.step(act, 1)
        with pytest.raises(limpet.StepFailed):
            await run.step(act, 2)
        return key

    async with testing.app(agent) as app:
        assert (await app.run(agent, id="r1")).startswith("r1:step_1:act:")


async def test_what_is_no_tool_and_no_agent_is_named_with_the_cure() -> None:
    """A plain function where a tool or an agent is wanted."""

    async def plain(n: int) -> int:
        return n

    @limpet.agent()
    async def agent(run: limpet.Run) -> int:
        with pytest.raises(limpet.DefinitionError, match=r"@limpet\.tool"):
            await run.step(plain, 1)  # type: ignore[arg-type]
        with pytest.raises(limpet.DefinitionError, match=r"@limpet\.agent"):
            await run.call(plain, 1)  # type: ignore[call-overload]
        return 1

    async with testing.app(agent) as app:
        assert await app.run(agent) == 1
        with pytest.raises(limpet.DefinitionError, match=r"@limpet\.agent"):
            await app.start(plain, 1)  # type: ignore[call-overload]


async def test_a_thread_that_was_given_up_tells_what_came_of_it(tmp_path: Path) -> None:
    """A plain function goes on after its time: its result settles the step before a person has to."""
    go = Event()

    @limpet.tool(effect="once", timeout="10ms")
    def slow(bad: bool = False) -> Any:
        go.wait(10)
        return object() if bad else "sent"

    @limpet.agent()
    async def agent(run: limpet.Run, bad: bool) -> Any:
        return await run.step(slow, bad)

    async with limpet.open(f"sqlite:///{tmp_path}/x.db", agents=[agent]) as app:
        for bad in (False, True):
            go.clear()
            handle = await app.start(agent, bad, id=f"r{bad}")
            while not await app.inbox():
                await asyncio.sleep(0.01)  # noqa: TID251 - a real clock
            go.set()
            if bad:
                with pytest.raises(limpet.RunFailed, match="not a JSON type") as caught:
                    await handle.result(timeout="10s")
                assert caught.value.error_type == "limpet.OutputUnavailable"
            else:
                assert await handle.result(timeout="10s") == "sent"
            resolved = [event.body for event in await app.log(handle.id) if event.kind == "step.resolved"]
            assert [(body["how"], body["outcome"]) for body in resolved] == [("late", "applied")]
            assert await app.inbox() == []


async def test_a_verify_that_does_not_answer_cannot_tell() -> None:
    """It has the tool's time; then a person is asked."""
    asked: list[bool] = []

    @limpet.tool(effect="once", timeout="5s")
    async def send() -> str:
        raise ConnectionError("?")

    @send.verify
    async def was_sent() -> limpet.Done[str] | None:
        asked.append(True)
        await asyncio.get_running_loop().create_future()
        return None

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        return await run.step(send)

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        while not asked:
            await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop
        app._test_settings.frozen.advance("5s")
        await app.settle()
        [request] = await app.inbox()
        assert request.kind == "unknown"
        await app.answer(request, {"applied": "sent"}, by="ann")
        assert await handle.result() == "sent"


async def test_what_is_misspelt_about_a_run_is_refused() -> None:
    """Nothing is started under an id that nobody knows."""

    @limpet.agent()
    async def agent(run: limpet.Run) -> None:
        pass

    async with testing.app(agent) as app:
        for begin in (app.start, app.run):
            wrong: Any = {"idd": "r1"}
            with pytest.raises(limpet.InvalidArgument, match="Invalid idd: unknown option; allowed: id, session"):
                await begin(agent, **wrong)
        assert await app.runs() == []


async def test_applied_and_nobody_said_what_it_returned() -> None:
    """The code is told that, in a sentence with one end; a tool that may return nothing did so."""

    @limpet.tool(effect="once")
    async def act() -> str:
        raise ConnectionError("?")

    @limpet.tool(effect="once")
    async def tell() -> None:
        raise ConnectionError("?")

    @limpet.agent()
    async def agent(run: limpet.Run) -> str:
        await run.step(tell)
        try:
            return await run.step(act)
        except limpet.OutputUnavailable as error:
            return error.summary

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        for _ in range(2):
            await app.settle()
            [request] = await app.inbox()
            assert request.context is not None
            assert "applied" in [each.say for each in request.context.choices]
            await app.answer(request, "applied", by="ann")
        said = "Step 2 (act) was applied, but its output cannot be stored or read: no result was given."
        assert await handle.result() == said


def test_options_that_a_tool_has_not_are_named() -> None:
    """With those that there are, and how it is said instead."""
    for wrong, said in (
        ({"verify": print}, "unknown option verify=; allowed: effect, name, .*decorate a function with @page.verify"),
        ({"retires": 3}, "unknown option retires=; allowed: effect, name, risk, retry, .*, invalidates"),
    ):
        with pytest.raises(limpet.DefinitionError, match=said):
            limpet.tool(effect="once", name="page", **wrong)
    with pytest.raises(limpet.DefinitionError, match="Invalid definition of print: missing effect"):
        limpet.tool(print)  # type: ignore[arg-type,call-arg]
    with pytest.raises(limpet.DefinitionError, match="unknown option <built-in function print>"):
        limpet.tool(print, effect="none")  # type: ignore[arg-type,misc]


@limpet.tool(effect="once", name="steps_forgotten")
async def forgettable(n: int) -> int:
    return n


def line_of(fn: Any, text: str) -> str:
    """Where a function has a text."""
    lines, first = inspect.getsourcelines(fn.fn)
    return f"test_steps.py, line {first + next(n for n, line in enumerate(lines) if text in line)}"


@limpet.agent(name="forgets_a_step")
async def forgets_a_step(run: limpet.Run) -> str:
    await run.step(forgettable, 1)
    run.step(forgettable, 2)  # type: ignore[unused-coroutine] # forgotten
    return "ok"


@limpet.agent(name="forgets_an_ask")
async def forgets_an_ask(run: limpet.Run) -> str:
    run.ask("sure?")  # type: ignore[unused-coroutine] # forgotten
    await run.step(forgettable, 1)
    return "ok"


@limpet.agent(name="forgets_a_task")
async def forgets_a_task(run: limpet.Run) -> str:
    asyncio.create_task(run.step(forgettable, 1))  # noqa: RUF006 - forgotten
    return "ok"


@pytest.mark.parametrize("agent", [forgets_a_step, forgets_an_ask, forgets_a_task], ids=lambda each: each.name)
async def test_a_verb_that_is_never_awaited_fails_the_run_and_names_the_line(agent: Any) -> None:
    """It was never done, so the run must not complete as if it were."""
    async with testing.app(agent) as app:
        handle = await app.start(agent)
        with pytest.raises(limpet.RunFailed) as failed:
            await handle.result()
        assert failed.value.error_type == "limpet.WrongCall"
        assert isinstance((await app.replay(handle.id)).raised, limpet.WrongCall)
        assert line_of(agent, "# forgotten" if agent is not forgets_a_task else "# noqa") in str(failed.value)


async def test_verbs_that_were_awaited_cancelled_or_raced_are_not_forgotten() -> None:
    """Nor those of a function that failed by itself."""

    @limpet.agent(name="forgets_nothing")
    async def careful(run: limpet.Run) -> str:
        asyncio.create_task(run.step(forgettable, 1)).cancel()
        waiting = asyncio.create_task(run.receive("never", int))
        await asyncio.wait([waiting, asyncio.create_task(run.sleep("1s"))], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        await asyncio.gather(*(run.step(forgettable, n) for n in range(200)))
        asyncio.create_task(run.step(forgettable, 2)).cancel()
        return "ok"

    async with testing.app(careful) as app:
        handle = await app.start(careful)
        await app.advance("2s")
        assert await handle.result() == "ok"


def test_every_verb_is_noticed() -> None:
    """A new one, too."""
    verbs = [fn for name, fn in vars(limpet.Run).items() if callable(fn) and not name.startswith("_")]
    coroutines = [fn for fn in verbs if "Coroutine" in str(inspect.signature(fn).return_annotation)]
    assert len(coroutines) >= 15
    for fn in coroutines:
        noticing = inspect.unwrap(fn, stop=lambda each: each.__code__.co_filename == missed_awaits.__file__)
        assert noticing.__code__.co_filename == missed_awaits.__file__, fn


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
