"""Crash tests: agents are killed at every point in their own processes, and a file counts their effects."""

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.testing import crash_test
from limpet.testing.crash_points import When


def lines() -> list[str]:
    path = Path(os.environ["WORLD"])
    return path.read_text().splitlines() if path.exists() else []


def act(name: str, key: str) -> None:
    with Path(os.environ["WORLD"]).open("a") as file:
        file.write(f"{name} {key}\n")


def counted() -> Mapping[str, int]:
    """Return the number of effects, counting each key once."""
    return Counter(line.split()[0] for line in set(lines()))


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD", str(tmp_path / "world"))


@limpet.tool(effect="none")
async def trial_look(what: str) -> str:
    print("look", what)
    return what.upper()


@limpet.tool(effect="idempotent", risk="external_action")
async def trial_pay(cents: int) -> str:
    act("pay", limpet.idempotency_key())
    return f"R-{cents}"


@limpet.tool(effect="once")
def trial_mail(to: str) -> int:
    act("mail", os.urandom(8).hex())
    return len(to)


@limpet.tool(effect="once")
async def trial_post(to: str) -> None:
    act("post", limpet.idempotency_key())


@trial_post.verify
async def was_posted(to: str) -> limpet.Done[None] | None:
    return limpet.Done(None) if f"post {limpet.idempotency_key()}" in lines() else None


@limpet.agent()
async def helper(run: limpet.Run, cents: int) -> str:
    return await run.step(trial_pay, cents)


@limpet.agent(approvals=limpet.Approvals("external_action", to="finance"))
async def errand(run: limpet.Run, order: str) -> list[Any]:
    await run.patch(goal=order)
    done: list[Any] = [*await asyncio.gather(run.step(trial_look, "a"), run.step(trial_look, order))]
    done.append(await run.step(trial_pay, 900))
    await run.sleep("3d")
    done.append(await run.step(trial_mail, "ann"))
    if await run.ask("Post it?"):
        await run.step(trial_post, "ann")
    done.append(await run.call(helper, 7))
    return done


async def test_a_correct_agent_loses_and_doubles_no_effect() -> None:
    """The agent has approvals, sleeps, children, and effects with a key, with `verify` and with a person's decision."""
    report = await testing.crash_everywhere(errand, "o1", answers={"*": True}, effects=counted)
    assert report == testing.CrashReport(points=report.points)
    assert report.points > 30
    runs = {line.split()[1].split(":")[0] for line in lines() if line.startswith("post ")}
    assert len(runs) == report.points + 2


@limpet.tool(effect="idempotent")
async def trial_careless() -> None:
    act("careless", os.urandom(8).hex())


@limpet.tool(effect="once")
async def trial_forgetful() -> None:
    act("forgetful", os.urandom(8).hex())


@trial_forgetful.verify
def surely() -> limpet.Done[None]:
    return limpet.Done(None)


@limpet.agent()
async def sloppy(run: limpet.Run) -> None:
    await run.step(trial_careless)
    await run.step(trial_forgetful)


async def test_wrong_declarations_are_found() -> None:
    """One tool is declared idempotent but is not; another's `verify` always returns Done."""
    report = await testing.crash_everywhere(sloppy, None, effects=counted)
    [doubled], [lost] = report.doubled, report.lost
    assert doubled.startswith("Killed before commit 3 (step.completed trial_careless#1")
    assert doubled.endswith("careless happened 2 times; without a crash, 1 times.")
    assert lost.startswith("Killed after commit 4 (step.started trial_forgetful#1")
    assert lost.endswith("forgetful happened 0 times; without a crash, 1 times.")
    assert report.failed == []


@limpet.agent()
async def fickle(run: limpet.Run, order: str) -> str:
    await run.step(trial_look, order)
    await run.step(trial_pay, os.getpid())
    raise ValueError(order) if len(lines()) < 2 else KeyError(order)


async def test_different_ends_are_reported() -> None:
    """Diverged code waits for an operator; another error is a different end."""
    report = await testing.crash_everywhere(fickle, "o1", effects=counted)
    assert any("did not end (waiting for operator:diverged; The code of" in each for each in report.failed)
    other = "failed with builtins.KeyError; without a crash, it failed with builtins.ValueError"
    assert any(other in each for each in report.failed)


@limpet.agent()
async def endless(run: limpet.Run) -> None:
    await asyncio.Event().wait()


async def test_agents_that_cannot_be_crash_tested_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples are an unanswered request, code that hangs, and an agent that another process cannot import."""
    hurried = crash_test.HELPER.replace("crash_child.main", "crash_child.LIFE_TIMEOUT = 1; crash_child.main")
    monkeypatch.setattr(crash_test, "HELPER", hurried)
    with pytest.raises(limpet.TrialStuck, match="took longer than 1 s"):
        await testing.crash_everywhere(endless, None, effects=counted)
    with pytest.raises(limpet.TrialStuck, match=r"no answer to 'May trial_pay run .*', of kind approval"):
        await testing.crash_everywhere(errand, "o1", effects=counted)

    @limpet.agent()
    async def inner(run: limpet.Run) -> None: ...

    with pytest.raises(limpet.DefinitionError, match="define it at the top level of a module"):
        await testing.crash_everywhere(inner, None, effects=counted)


def test_a_script_can_crash_test_its_own_agent(tmp_path: Path) -> None:
    """An agent in `__main__` is found by its file."""
    path = tmp_path / "script.py"
    path.write_text(
        "import asyncio, limpet\nfrom limpet import testing\n\n@limpet.agent()\nasync def a(run: limpet.Run) -> int:\n"
        "    return 1\n\nif __name__ == '__main__':\n"
        "    print(asyncio.run(testing.crash_everywhere(a, None, effects=dict)).points)\n"
    )
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "4\n"


# In memory


@pytest.mark.parametrize(("when", "kind", "calls"), [("before", "step.completed", 2), ("after", "step.completed", 1)])
async def test_a_run_resumes_after_a_crash_at_a_named_point(when: When, kind: str, calls: int) -> None:
    """The commit is written or not, and the process gets no reply."""
    async with testing.app(helper) as app:
        app.crash_at(when, kind, name="trial_pay#1")
        assert await app.run(helper, 5) == "R-5"
        assert (len(app.calls(trial_pay)), app.crashes) == (calls, 1)
        with pytest.raises(limpet.DefinitionError, match=r"unknown kind of event 'step\.ended'"):
            app.crash_at("after", "step.ended")
        with pytest.raises(limpet.DefinitionError, match=r"unknown fields tool; step\.completed has name, number"):
            app.crash_at("before", "step.completed", tool="trial_pay")
        with pytest.raises(limpet.DefinitionError, match="no event has all of them"):
            app.crash_at("before", colour="red")


@limpet.agent()
async def looping(run: limpet.Run[dict[str, int]], most: int) -> list[Any]:
    """Loop over turns, as documented."""
    drawn = [run.uuid(), run.random(), str(run.now())]
    async for turn in run.turns(max=most):
        seen = await run.step(trial_look, str(turn.number))
        await run.patch(data={"sum": run.state.data.get("sum", 0) + len(seen)})
        await run.step(trial_mail, run.uuid())
        if turn.number == 2:
            await run.sleep("1d")
    return [*drawn, run.random(), run.state.data["sum"]]


async def test_resumable_agents_pass_always_resume() -> None:
    """This covers every step and turn, random values, parallel steps, waits and ordered stubs."""
    times = await testing.always_resume(looping, 3, prepare=lambda app: app.stub(trial_look, "1", "22", "333"))
    assert times >= 10
    assert await testing.always_resume(errand, "o1", answers={"*": True}) >= 15


async def test_agents_that_are_not_resumable_are_found() -> None:
    """The error names the point. The agents use a local variable across turns, random arguments or random results."""

    @limpet.agent()
    async def local(run: limpet.Run) -> int:
        total = 0
        async for turn in run.turns(max=3):
            seen = await run.step(trial_look, "x" * turn.number)
            total += len(seen)
        return total

    @limpet.agent()
    async def chancy(run: limpet.Run) -> None:
        await run.step(trial_mail, os.urandom(3).hex())

    @limpet.agent()
    async def counting(run: limpet.Run) -> int:
        entered.append(1)
        await run.step(trial_mail, "again" if len(entered) == 5 else "first")
        return 5

    entered: list[int] = []
    with pytest.raises(limpet.NotResumable, match=r"after turn.started turns#1/2, .*: completed with 5; without .* 6"):
        await testing.always_resume(local, None)
    with pytest.raises(AssertionError, match=r"was run a second time: new, missing or changed calls: trial_mail#1"):
        await testing.always_resume(chancy, None)
    with pytest.raises(limpet.NotResumable, match=r"after step.completed .*: stuck with waiting for operator:div"):
        await testing.always_resume(counting, None)
