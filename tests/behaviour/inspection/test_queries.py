"""Queries across runs: decisions, errors, tool calls, full text, workers and counts."""

from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.service.where_conditions import condition


@pytest.fixture
def refund_tool() -> Any:
    """A tool that refuses amounts above 900."""

    @limpet.tool(effect="idempotent", name="query_refund", retry=limpet.Retry(2, first="1s"))
    async def refund(order: str, cents: int) -> str:
        if cents > 900:
            raise limpet.NotApplied(f"{cents} is too much")
        return f"receipt-{order}"

    return refund


def agents(refund: Any) -> list[limpet.Agent[Any, Any]]:
    """Return an agent that refunds, and one that only decides."""

    @limpet.agent(name="query_support")
    async def support(run: limpet.Run, cents: int) -> str:
        await run.decide("refund?", choose="full", over=["none", "full"], because=f"it was {cents} and broken")
        return await run.step(refund, f"o-{cents}", cents)

    @limpet.agent(name="query_other")
    async def other(run: limpet.Run) -> str:
        return await run.decide("what?", choose="nothing", over=["nothing"], because="why not")

    return [support, other]


async def test_tool_calls_are_filtered_by_arguments_and_age(refund_tool: Any) -> None:
    """Newest first, with arguments, outcome, attempts and the preceding decision."""
    [support, other] = agents(refund_tool)
    async with testing.app(support, other) as app:
        for cents in (50, 150, 950):
            await app.start(support, cents, id=f"r{cents}")
            await app.settle()
            await app.advance("1d")
        await app.start(other, id="x")
        await app.settle()
        found = await app.tool_calls("query_refund", where=["cents>100"], since="7d")
        assert [(each.run, each.step.status, each.step.attempt_count) for each in found] == [
            ("r950", "failed", 2),
            ("r150", "completed", 1),
        ]
        first, second = found
        assert first.step.error is not None
        assert (first.step.error.type, first.step.error.message) == ("limpet.NotApplied", "950 is too much")
        assert (second.step.args, second.step.result) == ({"order": "o-150", "cents": 150}, "receipt-o-150")
        assert [each.decision.because for each in found if each.decision] == [
            "it was 950 and broken",
            "it was 150 and broken",
        ]
        assert [each.run for each in await app.tool_calls("query_refund", last=1)] == ["r950"]
        assert [each.run for each in await app.tool_calls(since="36h")] == ["r950"]
        assert await app.tool_calls("query_refund", agent="query_other") == []
        assert [each.run for each in await app.tool_calls(where=["order~O-1", "cents>=150"])] == ["r150"]


async def test_decisions_errors_and_text_are_found_across_runs(refund_tool: Any) -> None:
    """Each error shows how it was handled."""
    [support, other] = agents(refund_tool)
    async with testing.app(support, other) as app:
        await app.start(support, 950, id="bad")
        await app.start(other, id="fine")
        await app.settle()
        assert [each.run for each in await app.decisions()] == ["fine", "bad"]
        assert [each.chosen for each in await app.decisions("BROKEN")] == ["full"]
        assert [each.options for each in await app.decisions(agent="query_other")] == [["nothing"]]
        errors = await app.errors()
        assert [each.handled for each in errors] == ["failed the run", "retried"]
        assert {(each.run, each.agent, each.step) for each in errors} == {("bad", "query_support", 1)}
        assert await app.errors(agent="query_other") == []
        assert [each.kind for each in await app.search("too MUCH", kind="step.failed")] == ["step.failed"] * 2
        assert {each.run for each in await app.search("o-950")} == {"bad"}
        assert await app.search("nowhere to be found") == []
        with pytest.raises(limpet.InvalidArgument, match=r"step\.failed"):
            await app.search("x", kind="step.fails")
        with pytest.raises(limpet.InvalidArgument, match="no time zone"):
            await app.errors(since=datetime(2026, 1, 1))  # noqa: DTZ001 - which is refused


async def test_search_finds_text_in_conversations_inputs_and_replies() -> None:
    """Although the text is stored only once."""
    model = testing.ScriptedModel("The harbour is closed. " + "x" * 400)
    agent = limpet.llm_agent("query_llm", model=model, instructions="Talk.")
    async with testing.app(agent) as app:
        await app.run(agent, "Is the lighthouse open? " + "y" * 400, id="r", conversation="c")
        assert {(each.run, each.kind) for each in await app.search("LIGHTHOUSE")} == {
            ("r", "run.created"),
            ("c", "message.added"),
        }
        assert {each.kind for each in await app.search("harbour")} == {
            "step.completed",
            "message.added",
            "run.completed",
        }


async def test_agents_workers_and_stats_are_listed(refund_tool: Any) -> None:
    [support, other] = agents(refund_tool)
    async with testing.app(support, other) as app:
        await app.run(support, 1, id="r")
        known = {each.name: each for each in await app.agents()}
        assert known["query_support"].is_served
        assert known["query_support"].contract["input"] == {"type": "integer"}
        [worker] = [each for each in await app.workers() if each.is_live]
        assert set(worker.agents) >= {"query_support", "query_other"}
        stats = await app.stats()
        assert (stats.runs["completed"], stats.workers, stats.unserved, stats.requests) == (1, 1, (), 0)
        assert stats.agents["query_support"] == {"completed": 1}
        [line] = [each for each in await app.timeline("r") if each.number == 1]
        assert [each.how for each in line.spans] == ["completed"]
        with pytest.raises(limpet.NotFound):
            await app.timeline("nobody")


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        ("a=1", {"a": 1}, True),
        ("a = 1", {"a": "1"}, False),
        ("a=x", {"a": "x"}, True),
        ("a!=1", {"a": 2}, True),
        ("a!=1", {}, False),
        ("a>1", {"a": "2"}, False),
        ("a>=1.5", {"a": 1.5}, True),
        ("a<b", {"a": "a"}, True),
        ("a.b.0<=3", {"a": {"b": [3]}}, True),
        ("a.b.9<=3", {"a": {"b": [3]}}, False),
        ("a~ell", {"a": "HELLO"}, True),
        ("a~1", {"a": {"b": 1}}, True),
        ("a=true", {"a": True}, True),
        ("a>1", {"a": None}, False),
        ('a="1"', {"a": "1"}, True),
        ("a=null", {"a": None}, True),
        ("a>[1]", {"a": {}}, False),
    ],
)
def test_a_condition_compares_a_field_with_a_value(text: str, value: Any, holds: bool) -> None:
    """A comparison of incompatible types is false."""
    assert condition(text)(value) is holds


@pytest.mark.parametrize("text", ["", "a", "=1", "a==", "a b=1"])
def test_an_invalid_condition_is_refused_with_an_example(text: str) -> None:
    """`a==` is valid, and compares with the text `=`."""
    if text == "a==":
        assert condition(text)({"a": "="})
        return
    with pytest.raises(limpet.InvalidArgument, match="such as cents>100"):
        condition(text)


@pytest.mark.parametrize("last", [0, -1, True, "5"])
async def test_last_must_be_a_positive_integer(last: Any) -> None:
    """In every query that accepts it."""
    async with testing.app() as app:
        await app.say("c", "hello")
        questions: list[Any] = [app.runs, app.decisions, app.errors, app.tool_calls]
        asked = [*(each(last=last) for each in questions), app.search("x", last=last), app.messages("c", last=last)]
        for each in asked:
            with pytest.raises(limpet.InvalidArgument, match="Invalid last"):
                await each
        with pytest.raises(limpet.InvalidArgument, match="Invalid last"):
            await anext(app.replay_all(last=last))


async def test_last_may_exceed_the_page_size_and_an_unknown_status_is_refused(refund_tool: Any) -> None:
    [_, other] = agents(refund_tool)
    async with testing.app(other) as app:
        await app.run(other, id="x")
        assert [each.id for each in await app.runs(last=5000)] == ["x"]
        with pytest.raises(limpet.InvalidArgument, match="unknown status 'done'; use pending, running"):
            await app.runs(status="done")
        with pytest.raises(limpet.InvalidArgument, match="unknown status 'done'"):
            await anext(app.replay_all(status=["done"]))


async def test_a_retried_step_is_one_tool_call() -> None:
    """After a crash in the middle of it, and after its run failed and was resumed."""
    outcomes: list[str | Exception] = [limpet.NotApplied("no luck"), "fine"]

    @limpet.tool(effect="idempotent", name="query_retried")
    async def retried(number: int) -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    @limpet.agent(name="query_again")
    async def again(run: limpet.Run, number: int) -> str:
        await run.decide("go?", choose="yes", over=["yes"], because="why not")
        return await run.step(retried, number)

    async with testing.app(again) as app:
        app.crash_at("after", "step.started")
        await app.start(again, 1, id="r1")
        await app.settle()
        await app.advance("1d")
        await app.resume("r1")
        await app.settle()
        [call] = await app.tool_calls("query_retried", last=1)
        step = call.step
        assert (step.status, step.attempt_count, step.result) == ("completed", 3, "fine")
        assert step.error is not None
        assert (step.error.type, step.error.message) == ("limpet.NotApplied", "no luck")
        assert step.ended is not None
        assert step.ended - step.started >= timedelta(days=1)
        assert call.decision is not None
        assert len(await app.tool_calls()) == 1


@pytest.mark.parametrize(
    ("said", "handled"), [({"applied": "sent"}, "settled"), ("not_applied", "settled"), ("unknown", "caught")]
)
async def test_an_error_shows_how_a_person_resolved_its_outcome(said: Any, handled: str) -> None:
    """It is unknown until a person answers."""

    @limpet.tool(effect="once", name="query_send")
    async def send() -> str:
        raise ConnectionError("?")

    @limpet.agent(name="query_sender")
    async def sender(run: limpet.Run) -> None:
        with suppress(limpet.StepFailed):
            await run.step(send)

    async with testing.app(sender) as app:
        await app.start(sender, id="r")
        await app.settle()
        assert [each.handled for each in await app.errors()] == ["unknown"]
        await app.answer((await app.inbox())[0], said, by="ann")
        await app.settle()
        assert (await app.errors())[-1].handled == handled


async def test_queries_handle_large_arguments_quotes_and_deleted_runs() -> None:
    """Also agents that make no decisions."""

    @limpet.tool(effect="none", name="again_note")
    async def note(cents: int, text: str) -> str:
        return 'he said "no"'

    @limpet.agent(name="again_noting")
    async def noting(run: limpet.Run, text: str) -> str:
        return await run.step(note, 500, text)

    async with testing.app(noting) as app:
        await app.run(noting, "z" * 9_000, id="r")
        assert [each.run for each in await app.tool_calls("again_note", where=["cents>100", "text~zzz"])] == ["r"]
        assert {each.kind for each in await app.search('said "no"')} == {"step.completed", "run.completed"}
        queries = app.store.get

        async def gone(run: str) -> Any:
            raise limpet.NotFound(what="run", id=run)

        app.store.get = gone  # type: ignore[method-assign]
        assert [each.agent for each in await app.tool_calls("again_note")] == [""]
        app.store.get = queries  # type: ignore[method-assign]
