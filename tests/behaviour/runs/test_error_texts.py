"""Errors in the situations in which they are raised: the summary is true, and the hint works there."""

from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.llm import loop
from limpet.llm.model import Reply
from limpet.stores import commit, writes
from limpet.testing import ScriptedModel, calls


@limpet.tool(effect="none", name="texts_read")
async def read(n: int = 0) -> int:
    """Read."""
    return n


@limpet.tool(effect="once", name="texts_act")
async def act() -> str:
    """Act."""
    return "done"


@limpet.tool(effect="once", name="texts_hide")
async def hide() -> Any:
    """Return something that cannot be stored."""
    return object()


caught: list[str] = []
"""The texts of the errors that `step` has seen."""


async def step(run: limpet.Run, tool: Any) -> str:
    """Run a step, and keep the text of the error that it raises."""
    try:
        await run.step(tool)
    except limpet.LimpetError as error:
        caught.append(str(error))
        raise
    return "no error"


async def test_a_budget_names_the_total_usage() -> None:
    """The limit, the usage with the next step, and that only a new run gets another budget."""

    @limpet.agent(name="texts_poor", budget=limpet.Budget(max_steps=1))
    async def agent(run: limpet.Run) -> str:
        await run.step(read)
        return await step(run, read)

    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        await app.settle()
        text = caught[-1]
        assert (
            "max_steps is 1, and with the next step the usage would be 2. Run `limpet extend RUN --budget max_steps=N`"
            in text
        )


async def test_a_refused_budget_is_asked_for_again_after_a_resume() -> None:
    """As the hint says."""

    @limpet.agent(name="texts_poor_asking", budget=limpet.Budget(max_steps=1, exhausted="ask"))
    async def agent(run: limpet.Run) -> str:
        await run.step(read)
        return await step(run, read)

    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        await app.settle()
        await app.reject((await app.inbox())[0], by="ann", because="no")
        await app.settle()
        assert "Run `limpet resume` on the failed run to ask again" in caught[-1]
        await app.resume("r")
        await app.settle()
        assert [each.kind for each in await app.inbox()] == ["budget"]


@pytest.mark.parametrize("answer", ["unknown", "applied"])
async def test_after_a_death_the_text_says_so_and_a_resume_asks_again(answer: str) -> None:
    """No error was recorded, so none is named; the next answer settles the step."""

    @limpet.agent(name="texts_dying")
    async def agent(run: limpet.Run) -> str:
        return await step(run, act)

    async with testing.app(agent) as app:
        app.crash_at("before", "step.completed")
        handle = await app.start(agent, id="r")
        await app.settle()
        await app.answer((await app.inbox())[0], answer, by="ann")
        await app.settle()
        text = caught[-1]
        if answer == "unknown":
            assert "step 1 (texts_act) was applied: the worker died during the call. Find out" in text
        else:
            assert "its output cannot be stored or read: no result was given. Run `limpet resume`" in text
        await app.resume("r")
        await app.settle()
        await app.answer((await app.inbox())[0], {"applied": "yes"}, by="ann")
        assert await handle.result() == "no error"
        assert len(app.calls(act)) == 1


async def test_an_output_that_cannot_be_stored_is_given_to_a_fork() -> None:
    """The fork continues after the effect, which is not repeated."""

    @limpet.agent(name="texts_hiding")
    async def agent(run: limpet.Run) -> str:
        return await step(run, hide)

    async with testing.app(agent) as app:
        await app.start(agent, id="r")
        await app.settle()
        assert "fork it at the next step with `--result 1=JSON`" in caught[-1]
        assert await (await app.fork("r", at=2, results={1: "x"})).result() == "no error"
        assert len(app.calls(hide)) == 1


async def test_times_are_readable() -> None:
    """A wait that expired, and a deadline that passed; the facts keep the number."""

    @limpet.agent(name="texts_late", deadline="1h")
    async def agent(run: limpet.Run) -> list[str]:
        found = []
        waits: list[Any] = [lambda: run.receive("news", str, timeout="1m"), lambda: run.ask("Well?", expires="1m")]
        for wait in waits:
            try:
                await wait()
            except limpet.Expired as error:
                found.append(str(error))
        return found

    async with testing.app(agent) as app:
        handle = await app.start(agent)
        for _ in range(2):
            await app.settle()
            await app.advance("1m")
        received, asked = await handle.result()
        assert "receive:news#1 expired at 2023-11-1" in received
        assert " UTC. Pass a longer timeout= to `run.receive`" in received
        assert "Pass default= or a longer expires=" in asked
    late = limpet.DeadlineExceeded(deadline=1_700_000_000_000_000)
    assert late.summary == "The run passed its deadline, 2023-11-14 22:13:20 UTC."
    assert late.facts == {"deadline": 1_700_000_000_000_000}


async def test_wrong_arguments_of_a_call_are_not_values_to_store() -> None:
    """Each is refused by its name, with the allowed values."""

    @limpet.agent(name="texts_wrong")
    async def agent(run: limpet.Run) -> list[str]:
        wrong: list[Any] = [
            lambda: run.decide("Which?", choose="c", over=["a", "b"], because="so"),
            lambda: run.ask("Which?", options=["a", "b"], default="c"),
            lambda: run.ask("Well?", escalate=["ann"]),
            lambda: run.say("hello", role="robot"),  # type: ignore[arg-type]
            lambda: run.patch(goal=3),  # type: ignore[arg-type]
            lambda: run.artifact(3, type="text/plain", summary="three"),  # type: ignore[arg-type]
        ]
        found = []
        for call in wrong:
            try:
                await call()
            except limpet.InvalidArgument as error:
                found.append(str(error))
        return found

    async with testing.app(agent) as app:
        found = await app.run(agent)
        assert [text.split(":")[0].removeprefix("Invalid ") for text in found] == [
            "choose",
            "default",
            "escalate",
            "role",
            "goal",
            "data",
        ]
        assert not any("Pass plain JSON" in text for text in found)


@pytest.mark.parametrize(
    ("says", "more", "hint"),
    [
        (lambda n: calls("texts_read", n=n), {"max_turns": 2}, "Set a larger max_turns="),
        (lambda _: calls("texts_read", n=0), {}, "fork the run before these calls"),
        (lambda _: Reply(text="x", finish="length"), {}, "Set a larger max_reply="),
        (lambda _: "no number", {"output": int}, "Describe the output in the instructions"),
    ],
)
async def test_each_way_to_make_no_progress_has_its_own_hint(
    says: Any, more: Any, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns, repetitions, an answer that is cut off, and one of the wrong type."""
    seen: list[limpet.NoProgress] = []

    def remember(**facts: Any) -> limpet.NoProgress:
        seen.append(limpet.NoProgress(**facts))
        return seen[-1]

    monkeypatch.setattr(loop, "NoProgress", remember)
    model = ScriptedModel(lambda request: says(len(request.messages)))
    agent = limpet.llm_agent("texts_model", model=model, instructions="Work.", tools=[read], **more)
    async with testing.app(agent) as app:
        with pytest.raises(limpet.RunFailed, match="did not finish"):
            await app.run(agent, "go")
    assert hint in seen[-1].hint


async def test_a_fork_without_model_calls_says_how_to_allow_them() -> None:
    """The reason for which it is parked has the option to type."""
    agent = limpet.llm_agent("texts_forked", model=ScriptedModel(lambda _: "done"), instructions="Work.")
    async with testing.app(agent) as app:
        await app.run(agent, "go", id="r")
        fork = await app.fork("r", at=1, effects="stub")
        await app.settle()
        [flagged] = [each.body for each in await app.log(fork.id) if each.kind == "risk.flagged"]
        assert "this fork makes no model calls. Fork the original run again, with `--model live`" in flagged["detail"]


async def test_a_request_for_others_names_them() -> None:
    """In words, not as a tuple."""

    @limpet.agent(name="texts_asking")
    async def agent(run: limpet.Run) -> bool:
        return await run.ask("Well?", to=["finance", "legal"])

    async with testing.app(agent) as app:
        app._settings.people = {"finance": ["ann"]}
        await app.start(agent)
        await app.settle()
        with pytest.raises(limpet.NotAllowed, match=r"'bob' may not decide request \S+, which is for finance, legal\."):
            await app.approve((await app.inbox())[0], by="bob")


async def test_an_unexpected_error_of_the_store_names_the_run_and_the_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a hint for the caller, not for the author of a store."""

    def fail(*_: object) -> None:
        raise KeyError("x")

    perform: dict[type[writes.Op[Any]], Any] = {**commit._PERFORM, writes.Rebuild: fail}
    monkeypatch.setattr(commit, "_PERFORM", perform)
    async with testing.app() as app:
        with pytest.raises(limpet.LimpetError) as refused:
            await app.store.rebuild("r")
    assert refused.value.summary == "The store refused a write to r: Rebuild raised KeyError: 'x'."
    assert "seal" not in refused.value.hint
