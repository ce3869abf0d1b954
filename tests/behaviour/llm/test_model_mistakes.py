"""Mistakes of a model: it is sent an error, and the run continues."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

import limpet
from limpet import testing
from limpet.llm.loop import CUT_OFF, MISFIT
from limpet.llm.model import Prompt, Reply, ToolCall
from limpet.testing import ScriptedModel, calls


async def test_invalid_notes_are_reported_and_valid_ones_are_kept() -> None:
    """Empty notes, and the same question twice."""
    model = ScriptedModel(
        (calls("note_fact", key="", value="x"), calls("note_question", question=""), calls("set_plan", items=[""])),
        (calls("note_question", question="why?"), calls("note_fact", key="k", value="v")),
        (calls("note_question", question="why?"), calls("note_question", question="what?", answer="x")),
        calls("open_artifact", artifact_id="none", start=0),
        "done",
    )
    agent = limpet.llm_agent("mistakes_notes", model=model, instructions="Work.")
    async with testing.app(agent) as app:
        assert await app.run(agent, "go", id="r") == "done"
        texts = [each.text for each in await app.messages("r.chat") if each.role == "tool"]
        assert len(texts) == 8
        assert all("It did not work" in texts[place] for place in (1, 7))
        state = await app.state("r")
        assert (dict(state.facts).get("k"), state.open_questions) == ("v", ["why?"])
        assert (await app.replay("r")).value == "done"


async def test_repeated_calls_of_an_earlier_run_do_not_fail_the_next_one() -> None:
    """Four identical calls in a row fail a run, but not the next one in its conversation."""

    @limpet.tool(effect="none", name="mistakes_spin")
    async def spin() -> str:
        """Spin."""
        return "round"

    def says(request: object) -> object:
        return "done" if "and now?" in str(request) else calls("mistakes_spin")

    agent = limpet.llm_agent("mistakes_spinner", model=ScriptedModel(says), instructions="Spin.", tools=[spin])
    async with testing.app(agent) as app:
        handle = await app.start(agent, "go", id="r", conversation="c")
        await app.settle()
        assert (await app.store.get("r")).status == "failed"
        assert handle.id == "r"
        assert await app.run(agent, "and now?", id="s", conversation="c") == "done"


class Verdict(BaseModel):
    """The output of a judge."""

    guilty: bool


async def test_a_run_fails_after_three_invalid_answers() -> None:
    """The model is sent the error three times, even with tool calls in between."""

    @limpet.tool(effect="none", name="mistakes_look")
    async def look(n: int) -> int:
        """Look."""
        return n

    model = ScriptedModel(
        "no idea", calls("mistakes_look", n=1), '{"guilty": "perhaps"}', calls("mistakes_look", n=2), "[]", "well", "x"
    )
    agent = limpet.llm_agent("mistakes_judge", model=model, instructions="Judge.", output=Verdict, tools=[look])
    async with testing.app(agent) as app:
        handle = await app.start(agent, "go", id="r", conversation="c")
        with pytest.raises(limpet.RunFailed, match="the answer does not match its type"):
            await handle.result()
        assert len(model.prompts) == 6
        told = [each.text for each in await app.messages("c") if each.role == "user"]
        assert told[0] == "go"
        assert [text.split(":")[0] for text in told[1:]] == [MISFIT] * 3
        assert "guilty" in told[2]


async def test_each_run_of_a_conversation_may_give_three_invalid_answers() -> None:
    """Invalid answers of an earlier run do not count."""

    def says(request: Prompt) -> object:
        since = [each.text for each in request.messages if each.role == "user"]
        wrong = len(since) - since.index("again") if "again" in since else 0
        return Verdict(guilty=True) if wrong > 3 else "no idea"

    agent = limpet.llm_agent("mistakes_jury", model=ScriptedModel(says), instructions="Judge.", output=Verdict)
    async with testing.app(agent) as app:
        await app.start(agent, "go", id="r", conversation="c")
        await app.settle()
        assert (await app.store.get("r")).status == "failed"
        assert await app.run(agent, "again", id="s", conversation="c") == Verdict(guilty=True)


@pytest.mark.parametrize("kind", ["state.patched", "step.started", "step.completed", "message.said"])
async def test_facts_noted_concurrently_are_all_kept(kind: str) -> None:
    """By built-in tools and by `normalise`, after any crash and in the same order."""

    @limpet.tool(effect="none", name="mistakes_measure")
    async def measure(what: str) -> int:
        """Measure something."""
        return len(what)

    async def normalise(run: limpet.Run, call: ToolCall, result: Any) -> Any:
        if call.name == "mistakes_measure":
            what = json.loads(call.args)["what"]
            await run.patch(facts={what: result}, source=call.name)
        return result

    both = (calls("note_fact", key="a", value="1"), calls("note_fact", key="b", value="2"))
    measures = (calls("mistakes_measure", what="width"), calls("mistakes_measure", what="depths"))
    for when, nth in (("before", 1), ("after", 1), ("before", 2), ("after", 2), ("before", 3), ("after", 4)):
        model = ScriptedModel((*both, *measures), "done")
        agent = limpet.llm_agent(
            "mistakes_both", model=model, instructions="Measure.", tools=[measure], normalise=normalise
        )
        async with testing.app(agent) as app:
            handle = await app.start(agent, "go", id="r")
            app.crash_at(when, kind, nth=nth)  # type: ignore[arg-type]
            assert await handle.result() == "done"
            state = await app.state("r")
            assert dict(state.facts) == {"a": "1", "b": "2", "width": 5, "depths": 6}
            texts = [each.text for each in await app.messages("r.chat") if each.role == "tool"]
            assert texts == ["noted", "noted", "5", "6"]
            assert all(f"Fact {key} = " in model.prompts[-1].messages[0].text for key in state.facts)
            again = await app.replay("r")
            assert again.value == "done"


async def test_the_last_of_two_concurrent_values_of_a_fact_is_kept() -> None:
    """Both are recorded in the log."""
    both = (calls("note_fact", key="a", value="1"), calls("note_fact", key="a", value="2"))
    agent = limpet.llm_agent("mistakes_twice", model=ScriptedModel(both, "done"), instructions="Note.")
    async with testing.app(agent) as app:
        assert await app.run(agent, "go", id="r") == "done"
        patched = [each.body for each in await app.log("r") if each.kind == "state.patched"]
        assert len(patched) == 2
        assert dict((await app.state("r")).facts) == {"a": "2"}
        assert (await app.replay("r")).value == "done"


async def tool_messages(app: testing.TestApp) -> list[str]:
    """Return the texts of the tool messages."""
    return [each.text for each in await app.messages("r.chat") if each.role == "tool"]


async def test_only_the_first_of_several_handoffs_is_taken() -> None:
    """The model is sent which one is taken. An invalid one does not count."""
    first = limpet.llm_agent("mistakes_first", model=ScriptedModel(lambda _: "first"), instructions="Go on.")
    second = limpet.llm_agent("mistakes_second", model=ScriptedModel(lambda _: "second"), instructions="Go on.")
    wanted = (
        calls("hand_over_to_mistakes_second"),
        calls("hand_over_to_mistakes_first", input="x"),
        calls("hand_over_to_mistakes_second", input="y"),
    )
    agent = limpet.llm_agent(
        "mistakes_hands", model=ScriptedModel(wanted), instructions="Go.", handoffs=[first, second]
    )
    async with testing.app(agent, first, second) as app:
        assert await app.run(agent, "go", id="r") == "first"
        unfit, goes_on, does_not = await tool_messages(app)
        assert "do not fit" in unfit
        assert goes_on == "mistakes_first is to go on with it."
        assert does_not == "mistakes_second does not go on with it: mistakes_first does."
        assert (await app.replay("r")).value == "first"


async def test_a_reply_that_is_always_truncated_and_empty_fails_the_run() -> None:
    """A model may use up all tokens for reasoning; it is called at most four times."""
    model = ScriptedModel(lambda _: Reply(text="", finish="length"))
    agent = limpet.llm_agent("mistakes_thinker", model=model, instructions="Think.")
    async with testing.app(agent) as app:
        with pytest.raises(limpet.RunFailed, match="cut off after 4 replies"):
            await app.run(agent, "go", id="r")
        assert len(model.prompts) == 4


async def test_an_empty_piece_of_a_truncated_answer_is_skipped() -> None:
    replies = (Reply(text="Stop the ", finish="length"), Reply(text="", finish="length"), Reply(text="pump."))
    agent = limpet.llm_agent("mistakes_pieces", model=ScriptedModel(*replies, in_order=True), instructions="Say.")
    async with testing.app(agent) as app:
        assert await app.run(agent, "go", id="r") == "Stop the pump."


async def test_a_truncated_tool_call_is_not_made() -> None:
    """Its arguments may be incomplete; the calls before it are complete and made."""
    wiped: list[str] = []

    @limpet.tool(effect="idempotent", name="mistakes_wipe")
    async def wipe(folder: str = "/") -> str:
        """Wipe."""
        wiped.append(folder)
        return "wiped"

    cut = (
        ToolCall(id="a", name="mistakes_wipe", args='{"folder":"/tmp"}'),
        ToolCall(id="b", name="mistakes_wipe", args=""),
    )
    model = ScriptedModel(Reply(calls=cut, finish="length"), "done")
    agent = limpet.llm_agent("mistakes_wiper", model=model, instructions="Wipe.", tools=[wipe])
    async with testing.app(agent) as app:
        assert await app.run(agent, "go", id="r") == "done"
        assert wiped == ["/tmp"]
        whole, left = await tool_messages(app)
        assert whole == "wiped"
        assert "cut off" in left
        assert (await app.replay("r")).value == "done"


async def test_deeply_nested_json_from_a_model_is_reported() -> None:
    """In arguments and in an answer; the run continues."""
    deep = "[" * 5_000 + "]" * 5_000
    model = ScriptedModel(Reply(calls=(ToolCall(id="a", name="set_plan", args=f'{{"items":{deep}}}'),)), deep, "[1]")
    agent = limpet.llm_agent("mistakes_deep", model=model, instructions="Dig.", output=list[int])
    async with testing.app(agent) as app:
        assert await app.run(agent, "go", id="r") == [1]
        [told] = await tool_messages(app)
        assert "are not JSON" in told


async def test_an_unknown_outcome_is_not_reported_to_the_model_as_a_failure() -> None:
    """After a failure, the model would repeat the call."""

    @limpet.tool(effect="idempotent", name="mistakes_pay")
    async def pay() -> str:
        """Pay."""
        raise TimeoutError("no answer")

    @limpet.tool(effect="idempotent", name="mistakes_post")
    async def post() -> Any:
        """Post."""
        return float("nan")

    model = ScriptedModel((calls("mistakes_pay"), calls("mistakes_post")), "done")
    agent = limpet.llm_agent("mistakes_payer", model=model, instructions="Pay.", tools=[pay, post])
    async with testing.app(agent) as app:
        assert await app.run(agent, "go", id="r") == "done"
        unknown, applied = await tool_messages(app)
        assert unknown.startswith("Unknown whether step")
        assert "no answer" in unknown
        assert "was applied, but its output cannot be stored or read" in applied


async def test_tool_calls_with_missing_or_repeated_ids_get_their_results() -> None:
    """Each result names its tool."""
    seen: list[Prompt] = []

    async def chosen(run: limpet.Run, request: Prompt, ask: Any) -> Reply:
        seen.append(request)
        turn = sum(each.role == "assistant" for each in request.messages)
        wanted = [ToolCall(id=id, name="note_fact", args=f'{{"key":"{turn}{id}","value":"x"}}') for id in ("", "", "a")]
        return Reply(calls=tuple(wanted)) if turn < 2 else Reply(text="done")

    agent = limpet.llm_agent("mistakes_nameless", model=ScriptedModel(), instructions="Note.", choose=chosen)
    async with testing.app(agent) as app:
        assert await app.run(agent, "go", id="r") == "done"
        assert await tool_messages(app) == ["noted"] * 6
        assert (await app.state("r")).risk_flags == []
        assert {each.tool for each in seen[-1].messages if each.role == "tool"} == {"note_fact"}
        assert (await app.replay("r")).value == "done"


async def test_a_large_result_can_be_read_in_small_pieces() -> None:
    """In pieces of the size that the budget allows, without losing a character."""
    text = "ä€😀" * 500

    @limpet.tool(effect="none", name="mistakes_much")
    async def much() -> str:
        """Much."""
        return text

    def reads(request: Prompt) -> Any:
        last = request.messages[-1].text
        if request.messages[-1].role == "user":
            return calls("mistakes_much")
        if "artifact " in last:
            return calls("open_artifact", artifact_id=last.split("artifact ")[1].split(";")[0], start=0)
        if "go on at " not in last:
            return "done"
        artifact = json.loads(request.messages[-2].calls[0].args)["artifact_id"]
        return calls("open_artifact", artifact_id=artifact, start=int(last.split("go on at ")[1].rstrip("]")))

    budget = limpet.Budget(max_artifact_bytes_in_context=500)
    agent = limpet.llm_agent(
        "mistakes_reader", model=ScriptedModel(reads), instructions="Read.", tools=[much], budget=budget
    )
    async with testing.app(agent) as app:
        assert await app.run(agent, "go", id="r") == "done"
        assert len((await app.state("r")).artifacts) == 1
        first, *pieces = await tool_messages(app)
        assert "put away" in first
        assert "".join(piece.split("\n[")[0] for piece in pieces) == text
        assert all(len(each.encode()) <= 500 for each in (first, *pieces))


async def test_an_empty_answer_is_refused_three_times_and_then_fails_the_run() -> None:
    model = ScriptedModel(Reply(text=" "), "done", in_order=True)
    silent = ScriptedModel(lambda _: "")
    agent = limpet.llm_agent("mistakes_shy", model=model, instructions="Say.")
    mute = limpet.llm_agent("mistakes_mute", model=silent, instructions="Say.")
    async with testing.app(agent, mute) as app:
        assert await app.run(agent, "go", id="r") == "done"
        assert (await app.messages("r.chat"))[-2].text == f"{MISFIT}: answer: empty. Answer again."
        with pytest.raises(limpet.RunFailed, match="the answer does not match its type: answer: empty"):
            await app.run(mute, "go", id="s")
        assert len(silent.prompts) == 4


async def test_truncated_and_invalid_answers_fail_the_run() -> None:
    """Continuations do not reset the count."""

    def says(request: Prompt) -> Reply:
        goes_on = request.messages[-1].text == CUT_OFF
        return Reply(text="and so on") if goes_on else Reply(text='{"guilty": ', finish="length")

    model = ScriptedModel(says)
    agent = limpet.llm_agent("mistakes_rambler", model=model, instructions="Judge.", output=Verdict)
    async with testing.app(agent) as app:
        with pytest.raises(limpet.RunFailed, match="the answer does not match its type"):
            await app.run(agent, "go", id="r")
        assert len(model.prompts) == 8
