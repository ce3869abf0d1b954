"""A run that fails in parallel code goes on after one resume: every branch that failed or was cancelled continues."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing

Branch = Callable[[], Awaitable[Any]]
broken: dict[str, bool] = {}
done: list[str] = []


class Outage(Exception):
    """The error of a broken tool."""


@pytest.fixture(autouse=True)
def fresh() -> None:
    forget()


def forget() -> None:
    """Repair everything, and forget what was done."""
    broken.clear()
    done.clear()


def act(name: str) -> str:
    """Fail while the name is broken; else note that it was done."""
    if broken.get(name):
        raise Outage(name)
    done.append(name)
    return name


@limpet.tool(effect="none", retry=1, name="parallel_fetch")
async def fetch(name: str) -> str:
    return act(name)


@limpet.tool(effect="idempotent", retry=1, name="parallel_save")
async def save(name: str) -> str:
    return act(name)


@limpet.tool(effect="none", name="parallel_hang")
async def hang(name: str) -> str:
    """Wait until it is cancelled while something is broken."""
    if any(broken.values()):
        await asyncio.Event().wait()
    return act(name)


@limpet.tool(effect="once", name="parallel_pay")
async def pay(name: str) -> str:
    """Wait until it is cancelled while something is broken."""
    if any(broken.values()):
        await asyncio.Event().wait()
    return act(name)


@limpet.tool(effect="idempotent", risk="high", name="parallel_delete")
async def delete(name: str) -> str:
    return act(name)


@limpet.agent(name="parallel_child")
async def child(run: limpet.Run, name: str) -> str:
    await run.sleep("1h")
    return await run.step(save, name)


async def in_scope(run: limpet.Run, name: str, branch: Branch) -> Any:
    async with run.scope(name):
        return await branch()


async def in_group(run: limpet.Run, **branches: Branch) -> list[Any]:
    """Run branches in a TaskGroup, which cancels them all if one fails."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(in_scope(run, name, branch)) for name, branch in branches.items()]
    return [task.result() for task in tasks]


async def gathered(run: limpet.Run, **branches: Branch) -> list[Any]:
    """Run branches that go on if one fails."""
    return list(await asyncio.gather(*(in_scope(run, name, branch) for name, branch in branches.items())))


async def fails(app: Any, run: str) -> limpet.RunFailed:
    """Return the error of a run, which must fail."""
    with pytest.raises(limpet.RunFailed) as failed:
        await app.result(run, timeout=None)
    return failed.value


async def result(app: Any) -> Any:
    """Return the result of the run "r"."""
    return (await app.result("r", timeout=None)).value


async def repaired(app: Any) -> Any:
    """Repair everything, resume the run "r", and return its result."""
    broken.clear()
    await app.resume("r")
    return await result(app)


async def voids(app: limpet.App, run: str) -> list[str]:
    """Return the calls that a resume of the failed run makes again."""
    found: list[list[str]] = [each.body.get("voids", []) for each in await app.log(run) if each.kind == "run.failed"]
    return found[-1]


# What a failure cancels

SIBLINGS: dict[str, Callable[[limpet.Run], Awaitable[Any]]] = {
    "read": lambda run: run.step(hang, "b"),
    "timer": lambda run: run.sleep("1h"),
    "question": lambda run: run.ask("b?"),
    "signal": lambda run: run.receive("b", str),
    "approval": lambda run: run.step(delete, "b"),
    "agent": lambda run: run.call(child, "b"),
    "once": lambda run: run.step(pay, "b"),
}


@limpet.agent(name="parallel_group", approvals=limpet.Approvals("high"))
async def group_agent(run: limpet.Run, sibling: str) -> list[Any]:
    return await in_group(run, a=lambda: run.step(fetch, "a"), b=lambda: SIBLINGS[sibling](run))


async def decide(app: Any, run: str) -> None:
    """Do what each kind of sibling waits for."""
    await app.settle()
    while requests := await app.inbox():
        for request in requests:
            if request.kind == "unknown":
                await app.answer(request, {"applied": "b"} if "b" in done else "not_applied", by="ann")
            else:
                await app.approve(request, by="ann")
        await app.settle()
    if "signal" in (await app.info(run)).waits_text:
        await app.signal(run, "b", "hello")
    await app.advance("2h")


@pytest.mark.parametrize("sibling", SIBLINGS)
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_what_a_failed_branch_cancelled_goes_on_after_a_resume(sibling: str, is_restarted: bool) -> None:
    """The cause of the cancellation is gone, so the code does not repeat it."""
    broken["a"] = True
    async with testing.app(group_agent, child) as app:
        await app.start(group_agent, sibling, id="r")
        await app.settle()
        assert (await fails(app, "r")).error_type == "builtins.ExceptionGroup"
        assert "a/parallel_fetch#1" in await voids(app, "r")
        if is_restarted:
            await app.crash()
        broken.clear()
        await app.resume("r")
        if is_restarted:
            await app.settle()
            await app.crash()
        await decide(app, "r")
        assert (await result(app))[0] == "a"
        assert done.count("b") <= 1
        assert (await app.info("r")).status == "completed"
        assert str(await app.replay("r")).startswith("r returns ")


async def test_a_resume_that_fails_again_can_be_repeated() -> None:
    broken.update(a=True)
    async with testing.app(group_agent) as app:
        await app.start(group_agent, "timer", id="r")
        await fails(app, "r")
        for _ in range(3):
            await app.resume("r")
            await fails(app, "r")
            assert await voids(app, "r") == ["a/parallel_fetch#1", "b/sleep#1"]
        broken.clear()
        await app.resume("r")
        await app.advance("2h")
        assert await result(app) == ["a", None]


async def test_a_called_run_that_was_faster_than_its_cancellation_is_not_called_again() -> None:
    @limpet.tool(effect="idempotent", name="parallel_signal")
    async def save_and_tell() -> str:
        saved.set()
        return act("b")

    @limpet.tool(effect="none", retry=1, name="parallel_after")
    async def fetch_after() -> str:
        await saved.wait()
        return act("a")

    @limpet.agent(name="parallel_fast")
    async def fast(run: limpet.Run) -> str:
        return await run.step(save_and_tell)

    @limpet.agent(name="parallel_caller")
    async def caller(run: limpet.Run) -> list[Any]:
        return await in_group(run, a=lambda: run.step(fetch_after), b=lambda: run.call(fast, None))

    saved = asyncio.Event()
    broken["a"] = True
    async with testing.app(caller, fast) as app:
        await app.start(caller, id="r")
        await fails(app, "r")
        first = (await app.info("r.parallel_fast-1")).status
        assert await repaired(app) == ["a", "b"]
        assert first == "completed"
        assert done.count("b") == 1
        assert len(await app.runs(agent="parallel_fast")) == 1


# Several failures


@pytest.mark.parametrize("together", [in_group, gathered])
async def test_one_resume_is_enough_if_several_branches_failed(together: Any) -> None:
    @limpet.agent(name="parallel_three")
    async def agent(run: limpet.Run) -> list[Any]:
        found: list[Any] = await together(run, **{name: lambda name=name: run.step(fetch, name) for name in "abc"})
        return found

    broken.update(a=True, b=True, c=True)
    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        await fails(app, "r")
        assert await repaired(app) == ["a", "b", "c"]


async def test_steps_that_are_gathered_without_scopes_fail_together() -> None:
    @limpet.agent(name="parallel_flat")
    async def agent(run: limpet.Run) -> list[Any]:
        return list(await asyncio.gather(*(run.step(fetch, name) for name in "abc")))

    broken.update(a=True, b=True, c=True)
    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        await fails(app, "r")
        assert await repaired(app) == ["a", "b", "c"]


async def test_a_failure_is_voided_although_another_branch_went_on() -> None:
    """Only a call of the branch itself, or of the code around it, may depend on the failure."""
    failed, ready = asyncio.Event(), asyncio.Event()

    @limpet.agent(name="parallel_beside")
    async def agent(run: limpet.Run) -> list[Any]:
        async def first() -> str:
            try:
                return await run.step(fetch, "a")
            except limpet.StepFailed:
                failed.set()
                await ready.wait()
                raise

        async def second() -> list[str]:
            await failed.wait()
            names = [await run.step(save, name) for name in "xyz"]
            ready.set()
            return names

        return await in_group(run, a=first, b=second)

    broken["a"] = True
    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        await fails(app, "r")
        assert await repaired(app) == ["a", ["x", "y", "z"]]
        assert done == ["x", "y", "z", "a"]


async def test_groups_in_groups_go_on_together() -> None:
    @limpet.agent(name="parallel_nested")
    async def agent(run: limpet.Run) -> list[Any]:
        def inner(*names: str) -> Branch:
            return lambda: in_group(run, **{name: lambda name=name: run.step(fetch, name) for name in names})

        return await in_group(run, left=inner("a", "b"), right=inner("c", "d"), timer=lambda: run.sleep("1h"))

    broken.update(a=True, d=True)
    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        await fails(app, "r")
        broken.clear()
        await app.resume("r")
        await app.advance("2h")
        assert await result(app) == [["a", "b"], ["c", "d"], None]
        assert sorted(done) == ["a", "b", "c", "d"]


async def test_all_branches_go_on_after_the_deadline_was_extended() -> None:
    @limpet.agent(name="parallel_late", deadline="1h")
    async def agent(run: limpet.Run) -> list[Any]:
        return await in_group(
            run,
            timer=lambda: run.sleep("2h"),
            question=lambda: run.ask("go?"),
            signal=lambda: run.receive("b", str),
            agent=lambda: run.call(child, "b"),
        )

    async with testing.app(agent, child) as app:
        await app.start(agent, id="r")
        await app.settle()
        await app.advance("61m")
        await fails(app, "r")
        await app.extend("r", deadline="9h")
        await app.resume("r")
        await decide(app, "r")
        await app.advance("3h")
        assert (await result(app))[1:] == [True, "hello", "b"]
        assert done == ["b"]


async def test_all_branches_go_on_after_the_budget_was_extended() -> None:
    @limpet.agent(name="parallel_poor", budget=limpet.Budget(max_steps=1))
    async def agent(run: limpet.Run) -> list[Any]:
        await run.step(fetch, "first")
        return await in_group(run, **{name: lambda name=name: run.step(save, name) for name in "abc"})

    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        await fails(app, "r")
        error = (await app.show("r")).error
        assert error is not None
        assert "limpet extend r --budget max_steps=" in error.hint
        await app.extend("r", budget=limpet.Budget(max_steps=9))
        await app.resume("r")
        assert await result(app) == ["a", "b", "c"]
        assert sorted(done) == ["a", "b", "c", "first"]


# What stays


async def test_a_failure_that_a_branch_handled_stays() -> None:
    @limpet.agent(name="parallel_fallback")
    async def agent(run: limpet.Run) -> list[Any]:
        async def with_fallback() -> str:
            try:
                return await run.step(save, "a")
            except limpet.StepFailed:
                return await run.step(save, "instead")

        async def late() -> str:
            await run.sleep("1h")
            return await run.step(fetch, "b")

        return await gathered(run, a=with_fallback, b=late)

    broken.update(a=True, b=True)
    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        await app.advance("2h")
        await fails(app, "r")
        assert await voids(app, "r") == ["b/parallel_fetch#1"]
        assert await repaired(app) == ["instead", "b"]
        assert done == ["instead", "b"]


async def test_a_rejection_that_a_branch_handled_is_not_asked_again() -> None:
    """The branch ended with a result, and made no call after the rejection."""

    @limpet.agent(name="parallel_rejected", approvals=limpet.Approvals("high"))
    async def agent(run: limpet.Run) -> list[Any]:
        async def careful() -> str:
            with suppress(limpet.Rejected):
                return await run.step(delete, "a")
            return "kept"

        async def late() -> str:
            await run.sleep("1h")
            return await run.step(fetch, "b")

        return await in_group(run, a=careful, b=late)

    broken["b"] = True
    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        await app.settle()
        await app.reject((await app.inbox())[0], by="ann", because="no")
        await app.advance("2h")
        await fails(app, "r")
        assert await repaired(app) == ["kept", "b"]


async def test_the_loser_of_an_earlier_race_stays_cancelled() -> None:
    @limpet.agent(name="parallel_race")
    async def agent(run: limpet.Run) -> list[Any]:
        async def race() -> str:
            tasks = [
                asyncio.ensure_future(in_scope(run, "fast", lambda: run.step(fetch, "fast"))),
                asyncio.ensure_future(in_scope(run, "slow", lambda: run.ask("slow?"))),
            ]
            ready, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in left:
                task.cancel()
            await asyncio.wait(tasks)
            return str(ready.pop().result())

        winner = await race()
        return [winner, *await in_group(run, a=lambda: run.step(fetch, "a"), b=lambda: run.sleep("1h"))]

    broken["a"] = True
    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        await fails(app, "r")
        assert await voids(app, "r") == ["a/parallel_fetch#1", "b/sleep#1"]
        broken.clear()
        await app.resume("r")
        await app.advance("2h")
        assert await result(app) == ["fast", "a", None]
        assert await app.inbox() == []


async def test_nothing_is_voided_if_a_cancelled_branch_went_on() -> None:
    """Its calls after the cancellation are in the log, and a resume without the cancellation would not make them."""

    @limpet.agent(name="parallel_cleanup")
    async def agent(run: limpet.Run) -> list[Any]:
        async def tidy() -> None:
            try:
                await run.sleep("1h")
            except asyncio.CancelledError:
                await run.step(save, "tidied")
                raise

        return await in_group(run, a=lambda: run.step(fetch, "a"), b=tidy)

    broken["a"] = True
    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        for _ in range(2):
            await fails(app, "r")
            error = (await app.show("r")).error
            assert error is not None
            assert "`limpet fork r --at 1`" in error.hint
            broken.clear()
            await app.resume("r")
        await fails(app, "r")
        assert done == ["tidied"]
        fork = await app.fork("r", at=1, effects="live")
        await app.advance("2h")
        assert (await app.result(fork.id, timeout=None)).value == ["a", None]


# Other errors


async def test_a_call_that_a_timeout_of_asyncio_cancelled_is_made_again() -> None:
    """The run failed with a TimeoutError, which the cancelled call caused."""

    @limpet.agent(name="parallel_timeout")
    async def agent(run: limpet.Run) -> str:
        async with asyncio.timeout(0.01 if broken else None):
            return str(await run.step(hang, "a"))

    broken["a"] = True
    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        assert (await fails(app, "r")).error_type == "builtins.TimeoutError"
        assert await repaired(app) == "a"


async def test_a_bug_beside_a_group_voids_nothing() -> None:
    """The code is corrected; the failure that it handled without another call stays."""

    @limpet.agent(name="parallel_bug")
    async def agent(run: limpet.Run) -> list[str]:
        found = await asyncio.gather(*(run.step(fetch, name) for name in "ab"), return_exceptions=True)
        if broken["b"]:
            raise KeyError("a bug")
        return [type(each).__name__ if isinstance(each, Exception) else str(each) for each in found]

    broken.update(a=True, b=False)
    broken["b"] = True
    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        assert (await fails(app, "r")).error_type == "builtins.KeyError"
        assert await voids(app, "r") == []
        broken.update(a=False, b=False)
        await app.resume("r")
        assert await result(app) == ["StepFailed", "StepFailed"]


def blocking_agent(run: limpet.sync.Run) -> str:
    try:
        return run.step(fetch, "a")
    except limpet.StepFailed:
        return run.step(fetch, "b")


async def test_blocking_code_voids_only_what_it_did_not_handle() -> None:
    agent = limpet.agent(name="parallel_blocking")(blocking_agent)
    broken.update(a=True, b=True)
    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        await fails(app, "r")
        assert await voids(app, "r") == ["parallel_fetch#2"]
        assert await repaired(app) == "b"


async def test_an_error_of_another_run_voids_no_call_of_this_one(tmp_path: Path) -> None:
    """The exception of a run in the same process belongs to that run, also if both have a call of the same name."""

    @limpet.agent(name="parallel_other")
    async def other(run: limpet.Run) -> str:
        return await run.step(fetch, "other")

    @limpet.agent(name="parallel_reader")
    async def reader(run: limpet.Run) -> str:
        await asyncio.gather(run.step(fetch, "mine"), return_exceptions=True)
        raise RuntimeError("see the cause") from errors[0]

    errors: list[BaseException] = []
    broken.update(other=True, mine=True)
    async with limpet.open(f"sqlite:///{tmp_path}/a.db", agents=[other, reader]) as app, asyncio.timeout(60):
        with pytest.raises(limpet.RunFailed) as failed:
            await app.run(other, id="o")
        assert failed.value.__cause__ is not None
        errors.append(failed.value.__cause__)
        with pytest.raises(limpet.RunFailed):
            await app.run(reader, id="r")
        assert await voids(app, "r") == []


async def test_show_names_the_step_behind_a_group() -> None:
    broken["a"] = True
    async with testing.app(group_agent) as app:
        await app.start(group_agent, "timer", id="r")
        assert (await fails(app, "r")).step == 1
        found = (await app.show("r")).error
        assert found is not None
        assert found.step == 1
        assert [each.handled for each in await app.errors(run="r")] == ["failed the run"]
        assert "Outage: a" in ((await app.info("r")).error or "")


@pytest.mark.parametrize("is_resumed", [False, True], ids=["before the failure", "after the resume"])
@pytest.mark.parametrize("sibling", SIBLINGS)
async def test_a_crash_at_any_commit_changes_nothing(sibling: str, is_resumed: bool) -> None:
    """Also while the failure, and what it cancels, is being recorded, and while both go on again."""
    for nth, when in product(range(1, 9), ("before", "after")):
        forget()
        broken["a"] = True
        async with testing.app(group_agent, child) as app:
            if not is_resumed:
                app.crash_at(when, nth=nth)  # type: ignore[arg-type]
            with suppress(limpet.ConnectionLost):
                await app.start(group_agent, sibling, id="r")
            await app.start(group_agent, sibling, id="r")
            await fails(app, "r")
            broken.clear()
            await app.resume("r")
            if is_resumed:
                app.crash_at(when, nth=nth)  # type: ignore[arg-type]
            await app.settle()
            await decide(app, "r")
            assert (await result(app))[0] == "a", (nth, when)
            assert done.count("b") <= 1 or sibling in ("read", "approval", "agent"), (nth, when)
            assert str(await app.replay("r")).startswith("r returns ")


@pytest.mark.parametrize("together", [in_group, gathered])
async def test_branches_that_wait_for_a_semaphore_do_not_handle_the_failure(together: Any) -> None:
    """They begin after it, but not because of it: their tasks existed before."""

    @limpet.agent(name="parallel_limited")
    async def agent(run: limpet.Run) -> list[Any]:
        free = asyncio.Semaphore(1)

        async def work(name: str) -> str:
            async with free, run.scope(name):
                return await run.step(fetch, name)

        tasks = [work(name) for name in "abcd"]
        if together is gathered:
            return list(await asyncio.gather(*tasks))
        async with asyncio.TaskGroup() as group:
            begun = [group.create_task(each) for each in tasks]
        return [each.result() for each in begun]

    broken["b"] = True
    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        await fails(app, "r")
        assert "b/parallel_fetch#1" in await voids(app, "r")
        assert await repaired(app) == ["a", "b", "c", "d"]
        assert sorted(done) == ["a", "b", "c", "d"]


async def test_a_second_attempt_handles_the_failures_of_the_first() -> None:
    """The code around began new branches because of it, without a call of its own."""

    @limpet.agent(name="parallel_attempts")
    async def agent(run: limpet.Run) -> list[Any]:
        for attempt in range(2):
            try:
                return await in_group(
                    run,
                    **{f"save-{attempt}": lambda attempt=attempt: run.step(save, f"s{attempt}")},
                    **{f"fetch-{attempt}": lambda: run.step(fetch, "a")},
                )
            except* limpet.StepFailed:
                if attempt:
                    raise
        return []

    broken["a"] = True
    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        await fails(app, "r")
        assert await voids(app, "r") == ["fetch-1/parallel_fetch#1"]
        assert await repaired(app) == ["s1", "a"]
        assert done == ["s0", "s1", "a"]


async def test_branches_of_a_fallback_handle_the_failure_of_sequential_code() -> None:
    @limpet.agent(name="parallel_after_failure")
    async def agent(run: limpet.Run) -> list[Any]:
        try:
            return [await run.step(fetch, "a")]
        except limpet.StepFailed:
            return await in_group(run, x=lambda: run.step(save, "x"), b=lambda: run.step(fetch, "b"))

    broken.update(a=True, b=True)
    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        await fails(app, "r")
        assert await voids(app, "r") == ["b/parallel_fetch#1"]
        assert await repaired(app) == ["x", "b"]


# What another part of the code has handled


async def by_another_task(run: limpet.Run) -> str:
    """The task that waits for the branch has no scope, and existed before the failure."""
    task = asyncio.ensure_future(in_scope(run, "a", lambda: run.step(fetch, "a")))
    try:
        return str(await task)
    except limpet.StepFailed:
        return str(await in_scope(run, "fallback", lambda: run.step(save, "instead")))


async def by_a_queue(run: limpet.Run) -> str:
    """Another branch is told of the failure, and acts on it."""
    told: asyncio.Queue[str] = asyncio.Queue()

    async def work() -> None:
        try:
            told.put_nowait(await run.step(fetch, "a"))
        except limpet.StepFailed:
            told.put_nowait("instead")
        await asyncio.Event().wait()

    async def act() -> str:
        return await run.step(save, await told.get())

    worker = asyncio.ensure_future(in_scope(run, "work", work))
    try:
        return str(await in_scope(run, "act", act))
    finally:
        worker.cancel()


@pytest.mark.parametrize("handle", [by_another_task, by_a_queue])
async def test_a_failure_before_the_one_that_failed_the_run_stays(handle: Any) -> None:
    """Nothing is known of what others did about it, but it did not fail the run."""

    @limpet.agent(name="parallel_handled")
    async def agent(run: limpet.Run) -> list[Any]:
        async def late() -> str:
            await run.sleep("1h")
            return await run.step(fetch, "b")

        return list(await asyncio.gather(handle(run), in_scope(run, "late", late)))

    broken.update(a=True, b=True)
    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        await app.advance("2h")
        await fails(app, "r")
        assert await voids(app, "r") == ["late/parallel_fetch#1"]
        assert await repaired(app) == ["instead", "b"]
        assert done == ["instead", "b"]


async def test_a_race_after_an_earlier_failure_does_not_hide_a_later_one() -> None:
    @limpet.agent(name="parallel_old_failure")
    async def agent(run: limpet.Run) -> list[Any]:
        async def collect() -> list[str]:
            found = await asyncio.gather(run.step(fetch, "a"), run.step(fetch, "c"), return_exceptions=True)
            return [each if isinstance(each, str) else "missing" for each in found]

        async def race() -> str:
            await run.sleep("1m")
            slow = asyncio.ensure_future(in_scope(run, "slow", lambda: run.ask("now?")))
            quick = asyncio.ensure_future(in_scope(run, "quick", lambda: run.step(save, "quick")))
            await asyncio.wait([slow, quick], return_when=asyncio.FIRST_COMPLETED)
            slow.cancel()
            await asyncio.wait([slow])
            return await run.step(fetch, "b")

        return await gathered(run, x=collect, y=race)

    broken.update(a=True, b=True)
    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        await app.advance("2m")
        await fails(app, "r")
        assert await voids(app, "r") == ["y/parallel_fetch#1"]
        assert await repaired(app) == [["missing", "c"], "b"]


# Errors that come from no call


@pytest.mark.parametrize("sibling", SIBLINGS)
async def test_calls_that_were_cancelled_by_a_bug_go_on_when_it_is_corrected(sibling: str) -> None:
    """The branch failed between its calls. The cancellations are the last events before the failure."""

    @limpet.agent(name="parallel_bug_in_branch", approvals=limpet.Approvals("high"))
    async def agent(run: limpet.Run, sibling: str) -> list[Any]:
        async def parse() -> int:
            found = await run.step(fetch, "a")
            if broken:
                raise ValueError(found)
            return len(found)

        return await in_group(run, a=parse, b=lambda: SIBLINGS[sibling](run))

    broken["bug"] = True
    async with testing.app(agent, child) as app:
        await app.start(agent, sibling, id="r")
        await fails(app, "r")
        broken.clear()
        await app.resume("r")
        await decide(app, "r")
        assert (await result(app))[0] == 1
        assert done.count("a") == 1


async def test_a_group_that_a_timeout_of_asyncio_cancelled_goes_on() -> None:
    @limpet.agent(name="parallel_timed_group")
    async def agent(run: limpet.Run) -> list[Any]:
        async with asyncio.timeout(0.01 if broken else None):
            return await in_group(run, a=lambda: run.step(hang, "a"), b=lambda: run.sleep("1h"))

    broken["a"] = True
    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        assert (await fails(app, "r")).error_type == "builtins.TimeoutError"
        assert sorted(await voids(app, "r")) == ["a/parallel_hang#1", "b/sleep#1"]
        broken.clear()
        await app.resume("r")
        await app.advance("2h")
        assert await result(app) == ["a", None]


async def test_nothing_is_voided_if_a_branch_cleaned_up_while_its_failure_returned() -> None:
    """Both steps failed in the same moment. The second failure is in the log, but its branch got a cancellation."""
    ready = asyncio.Event()

    @limpet.tool(effect="none", retry=1, name="parallel_together")
    async def together(name: str) -> str:
        await ready.wait()
        return act(name)

    @limpet.tool(effect="none", retry=1, name="parallel_release")
    async def release() -> None:
        ready.set()

    @limpet.agent(name="parallel_same_moment")
    async def agent(run: limpet.Run) -> list[Any]:
        async def tidy() -> str:
            try:
                return await run.step(together, "b")
            except asyncio.CancelledError:
                await run.step(save, "tidied")
                raise

        return await in_group(run, a=lambda: run.step(together, "a"), b=tidy, c=lambda: run.step(release))

    broken.update(a=True, b=True)
    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        await fails(app, "r")
        assert (done, await voids(app, "r")) == (["tidied"], [])
        broken.clear()
        await app.resume("r")
        await fails(app, "r")


async def test_many_failures_look_at_few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tasks of the process are looked at once in an iteration of the loop, and seldom if there are many."""
    looks = 0
    all_tasks = asyncio.all_tasks

    def count() -> set[asyncio.Task[Any]]:
        nonlocal looks
        found = all_tasks()
        looks += len(found)
        return found

    @limpet.agent(name="parallel_many")
    async def agent(run: limpet.Run) -> int:
        branches = (in_scope(run, str(n), lambda: run.step(fetch, "a")) for n in range(1_000))
        found = await asyncio.gather(*branches, return_exceptions=True)
        return sum(isinstance(each, limpet.StepFailed) for each in found)

    broken["a"] = True
    async with testing.app(agent) as app:
        monkeypatch.setattr(asyncio, "all_tasks", count)
        await app.start(agent, id="r")
        assert await result(app) == 1_000
    assert looks < 150_000


# Decisions of people


@pytest.mark.parametrize("effect", ["none", "idempotent", "once"])
async def test_a_result_that_a_person_gave_when_another_branch_failed_is_used(effect: Any) -> None:
    """The answer was recorded, but the branch was cancelled before it could go on."""

    @limpet.tool(effect=effect, retry=1, name="parallel_wire")
    async def wire(name: str) -> str:
        calls.append(name)
        if broken:
            raise limpet.NotApplied("down")
        return name

    @limpet.agent(name="parallel_by_hand", escalate=limpet.Escalate(limpet.NotApplied))
    async def agent(run: limpet.Run) -> list[Any]:
        return await in_group(run, a=lambda: run.step(wire, "a"), b=lambda: run.step(wire, "b"))

    calls: list[str] = []
    broken["bank"] = True
    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        await app.settle()
        first, second = await app.inbox()
        await app.answer(first, "fail", by="ann")
        await app.answer(second, {"result": "by hand"}, by="ann")
        await fails(app, "r")
        assert await repaired(app) == ["a", "by hand"]
        assert calls == ["a", "b", "a"]
        assert await app.inbox() == []


async def test_an_approval_that_was_given_when_another_branch_failed_is_used() -> None:
    """The person has decided, and is not asked again."""

    @limpet.agent(name="parallel_approved", approvals=limpet.Approvals("high"))
    async def agent(run: limpet.Run) -> list[Any]:
        return await in_group(run, a=lambda: run.step(delete, "a"), b=lambda: run.step(delete, "b"))

    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        await app.settle()
        first, second = await app.inbox()
        await app.reject(first, by="ann", because="no")
        await app.approve(second, by="ann")
        await fails(app, "r")
        await app.resume("r")
        await app.settle()
        [request] = await app.inbox()
        await app.approve(request, by="ann")
        assert await result(app) == ["a", "b"]


@pytest.mark.parametrize("together", [in_group, gathered])
async def test_all_that_a_person_rejected_is_asked_again(together: Any) -> None:
    @limpet.agent(name="parallel_both_rejected", approvals=limpet.Approvals("high"))
    async def agent(run: limpet.Run) -> list[Any]:
        found: list[Any] = await together(run, a=lambda: run.step(delete, "a"), b=lambda: run.step(delete, "b"))
        return found

    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        await app.settle()
        for request in await app.inbox():
            await app.reject(request, by="ann", because="no")
        await fails(app, "r")
        await app.resume("r")
        await decide(app, "r")
        assert await result(app) == ["a", "b"]
