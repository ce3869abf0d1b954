"""Steps: intent before effect, verbatim results, attempts, and unknown outcomes."""

import asyncio
import inspect
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from msgspec import Struct

import limpet
from limpet import testing
from limpet.engine.run import missed_awaits


async def kinds(app: limpet.App, run: str) -> list[str]:
    return [event.kind for event in await app.log(run)]


async def test_a_completed_step_is_not_called_again() -> None:
    """After a crash its result comes from the log, also if it is None, 0 or empty."""
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


async def test_the_start_of_an_effect_is_durable_before_its_function_runs() -> None:
    """The start of a read is committed together with its end."""
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


async def test_every_failed_attempt_is_recorded_and_the_last_error_is_raised() -> None:
    """The code gets StepFailed with the original error, live and on replay."""

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


async def test_a_read_is_tried_three_times_by_default() -> None:
    """An effect without `retry=` is tried once."""

    @limpet.tool(effect="none", name="steps_default_read")
    async def read() -> None:
        raise ConnectionError("away")

    @limpet.tool(effect="idempotent", name="steps_default_effect", not_applied=(ConnectionError,))
    async def act() -> None:
        raise ConnectionError("away")

    @limpet.agent(name="steps_defaults")
    async def agent(run: limpet.Run) -> list[int]:
        attempts = []
        for tool in (read, act):
            try:
                await run.step(tool)
            except limpet.StepFailed as error:
                attempts.append(error.attempts)
        return attempts

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        await app.advance("1h")
        assert await handle.result() == [3, 1]


async def test_not_applied_and_retry_after_are_retried_for_any_effect() -> None:
    """Permanent fails the step immediately."""

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


async def test_a_once_effect_that_raises_is_verified() -> None:
    """Applied: the verified result is used. Not applied: the step is retried up to its limit, then it fails."""
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
async def test_an_interrupted_once_effect_without_verify_goes_to_a_person(said: Any, calls: int, result: str) -> None:
    """Its worker died while it ran; it is never repeated blindly."""
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
async def test_a_safe_step_is_repeated_after_a_crash_without_counting_an_attempt(effect: Any) -> None:
    """The repeated call has the same key and attempt number."""
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


async def test_an_idempotent_effect_without_a_response_has_an_unknown_outcome() -> None:
    """After the last attempt the code gets OutcomeUnknown, not StepFailed."""

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


async def test_a_read_fails_after_its_timeout() -> None:
    """The timeout uses the injected clock."""

    @limpet.tool(effect="none", retry=1, timeout="10s")
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


class Part(Struct):
    """An object whose field may be deleted; then its encoder raises AttributeError."""

    size: int


def part_without_size() -> Part:
    part = Part(1)
    del part.size
    return part


@pytest.mark.parametrize("timeout", [None, "1m"], ids=["short", "general"])
@pytest.mark.parametrize(
    ("returns", "make"),
    [
        (Any, object),
        (Any, lambda: [part_without_size()]),
        (Part, part_without_size),
        (list[Part], lambda: [part_without_size()]),
        (dict[str, Any], lambda: {"part": part_without_size()}),
    ],
    ids=["object", "any", "part", "list", "dict"],
)
async def test_an_effect_whose_output_cannot_be_stored_is_not_repeated(returns: Any, make: Any, timeout: Any) -> None:
    """The effect was applied, so the code gets OutputUnavailable, live and on replay."""

    async def make_it() -> Any:
        return make()

    make_it.__annotations__["return"] = returns
    act = limpet.tool(effect="once", timeout=timeout)(make_it)

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


@pytest.mark.parametrize(("effect", "calls"), [("once", 1), ("idempotent", 2)])
async def test_a_resume_repeats_an_applied_step_without_output_only_if_that_is_safe(effect: Any, calls: int) -> None:
    """A run that failed because an output cannot be stored is resumed: an effect that happens once is not repeated."""
    made: list[int] = []

    @limpet.tool(effect=effect, name=f"unstorable_{effect}")
    async def act() -> Any:
        made.append(1)
        return object() if len(made) == 1 else "fine"

    @limpet.agent(name=f"unstorable-{effect}")
    async def agent(run: limpet.Run) -> Any:
        return await run.step(act)

    async with testing.app(agent) as app:
        handle = await app.start(agent, id="r")
        await app.settle()
        await app.resume("r")
        await app.settle()
        assert len(made) == calls
        if calls == 2:
            assert await handle.result() == "fine"
            return
        with pytest.raises(limpet.RunFailed, match="OutputUnavailable"):
            await handle.result()
        fork = await app.fork("r", at=2, results={1: "by hand"}, effects="live")
        assert await fork.result() == "by hand"
        assert len(made) == 1


async def test_a_tool_reports_progress_and_spending_and_reads_its_key() -> None:
    """The idempotency key is not available in a read."""

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
    """Inside another tool, the call runs the plain function."""

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


async def test_a_sync_tool_runs_in_a_thread_with_its_context() -> None:
    """Its key, its progress and its errors work as in an async tool."""

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


async def test_a_plain_function_is_refused_with_a_hint_to_decorate_it() -> None:

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


async def test_the_late_result_of_a_timed_out_thread_resolves_the_step(tmp_path: Path) -> None:
    """The request to a person is then withdrawn."""
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


async def test_a_verify_that_times_out_leaves_the_outcome_to_a_person() -> None:
    """`verify` has the timeout of its tool."""
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


async def test_start_refuses_an_unknown_option() -> None:
    """Otherwise a misspelt `id` would start a run with a generated id."""

    @limpet.agent()
    async def agent(run: limpet.Run) -> None:
        pass

    async with testing.app(agent) as app:
        for begin in (app.start, app.run):
            wrong: Any = {"idd": "r1"}
            with pytest.raises(limpet.InvalidArgument, match="Invalid idd: unknown option; allowed: id, session"):
                await begin(agent, **wrong)
        later: Any = {"at": "1h"}
        with pytest.raises(limpet.InvalidArgument, match="Invalid at: unknown option"):  # `run` waits for the result.
            await app.run(agent, **later)
        assert await app.runs() == []


async def test_an_effect_confirmed_without_a_result_raises_output_unavailable() -> None:
    """A tool that may return None has returned None."""

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
            assert "applied" in [each.answer for each in request.context.choices]
            await app.answer(request, "applied", by="ann")
        said = "Step 2 (act) was applied, but its output cannot be stored or read: no result was given."
        assert await handle.result() == said


def test_tool_refuses_an_unknown_option_and_lists_the_allowed_ones() -> None:
    """The error also suggests `@page.verify` for `verify=`."""
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
    """Return the file and line of a text in an agent's function."""
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
async def test_a_call_that_is_never_awaited_fails_the_run_and_names_the_line(agent: Any) -> None:
    """The call had no effect, so the run must not complete as if it had."""
    async with testing.app(agent) as app:
        handle = await app.start(agent)
        with pytest.raises(limpet.RunFailed) as failed:
            await handle.result()
        assert failed.value.error_type == "limpet.WrongCall"
        assert isinstance((await app.replay(handle.id)).raised, limpet.WrongCall)
        assert line_of(agent, "# forgotten" if agent is not forgets_a_task else "# noqa") in str(failed.value)


async def test_awaited_cancelled_or_raced_calls_do_not_fail_the_run() -> None:

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


def test_every_coroutine_method_of_run_detects_a_missing_await() -> None:
    verbs = [fn for name, fn in vars(limpet.Run).items() if callable(fn) and not name.startswith("_")]
    coroutines = [fn for fn in verbs if "Coroutine" in str(inspect.signature(fn).return_annotation)]
    assert len(coroutines) >= 15
    for fn in coroutines:
        noticing = inspect.unwrap(fn, stop=lambda each: each.__code__.co_filename == missed_awaits.__file__)
        assert noticing.__code__.co_filename == missed_awaits.__file__, fn


async def test_a_step_cancelled_by_the_code_is_not_started_again() -> None:
    """The code's own timeout cancels the step; on replay the step waits to be cancelled again."""
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
