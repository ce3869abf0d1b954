"""Prompts and context: what a model was sent and why, facts and conclusions, and replaceable parts of the loop."""

import json
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.context.slice import Known, SliceMessage, describe, slice_of
from limpet.context.window import Selected
from limpet.errors import DefinitionError, NotFound
from limpet.events import Fact, StatePatch
from limpet.llm.model import Prompt, Reply, ToolCall
from limpet.llm.prompt import SUMMARY, ContextChoice, ContextView, digest_of
from limpet.state import AgentState, apply, derived, outdated
from limpet.testing import ScriptedModel, calls


def talking_agent(model: ScriptedModel, name: str = "seeing_talker", **more: Any) -> limpet.Agent[str, str]:
    """Return an agent with a small window."""
    return limpet.llm_agent(name, model=model, instructions="Talk.", window=8_000, **more)


async def test_every_prompt_of_a_long_conversation_is_rebuilt_exactly() -> None:
    """Over twenty runs, with facts, tools, summaries and truncated messages, byte for byte."""

    def says(request: Prompt) -> Any:
        if request.messages[0].text == SUMMARY:
            return "They talked."
        turn = sum(each.role == "user" for each in request.messages)
        if request.messages[-1].role == "user":
            return calls("note_fact", key=f"fact {turn}", value="x" * 300)
        return "y" * 1_500

    model = ScriptedModel(says)
    agent = talking_agent(model)
    async with testing.app(agent) as app:
        for number in range(20):
            await app.run(agent, f"message {number} " + "z" * 900, id=f"r{number}", conversation="c")
        found: list[limpet.PromptView] = []
        for number in range(20):
            asked = [each.body for each in await app.log(f"r{number}") if each.body.get("kind") == "model"]
            found += [await app.prompt(f"r{number}", step=body["number"]) for body in asked]
        assert all(each.is_exact for each in found)
        assert [digest_of(each.prompt) for each in found] == [digest_of(each) for each in model.prompts]
        summaries = [each for each in found if each.prompt.messages[0].text == SUMMARY]
        assert summaries
        assert len(found) > 40
        last = found[-1]
        assert any("a summary of messages" in line for line in last.why)
        assert any("of c, which ended at" in line for line in last.why)
        assert "They talked." in str(last)


async def test_a_prompt_is_exact_after_the_agent_changed() -> None:
    """The instructions and tools are stored with the prompt."""
    model = ScriptedModel("one", "two")

    def nothing_known(view: ContextView) -> ContextChoice:
        return ContextChoice("", Selected(tuple(range(len(view.said))), tuple(each.seq for each in view.said), 0, 0))

    async with testing.app(talking_agent(model, build_context=nothing_known)) as app:
        agent = talking_agent(model, build_context=nothing_known)
        await app.run(agent, "hello", id="r")
        assert (await app.prompt("r", step=1)).is_exact
        other = limpet.llm_agent("seeing_talker", model=model, instructions="Be silent.")
        app._agents = {**app._agents, "seeing_talker": other}
        found = await app.prompt("r", step=1)
        assert found.is_exact  # there are no facts, so the default context is the same
        assert found.prompt.messages[0].text == "Talk."
        with pytest.raises(NotFound, match="r/2"):
            await app.prompt("r", step=2)


async def test_the_error_for_a_step_without_a_prompt_lists_model_steps() -> None:

    @limpet.tool(effect="none")
    async def seeing_look() -> str:
        return "seen"

    model = ScriptedModel(calls("seeing_look"), calls("seeing_look"), "done")
    agent = limpet.llm_agent("seeing_asks", model=model, instructions="Look.", tools=[seeing_look])
    async with testing.app(agent) as app:
        await app.run(agent, "go", id="r")
        with pytest.raises(NotFound) as missing:
            await app.prompt("r", step=2)
    assert missing.value.hint == "Pass the step of a model call: 1, 3, 5."


async def test_choose_can_skip_the_model_or_change_the_prompt() -> None:
    """A changed prompt is recorded as sent."""

    async def choose(run: limpet.Run, request: Prompt, ask: Any) -> Reply:
        if not run.state.facts:
            return Reply(calls=(ToolCall(id="first", name="note_fact", args='{"key":"k","value":"v"}'),))
        short = Prompt(messages=request.messages[-1:], max_tokens=10)
        reply: Reply = await ask(short)
        return reply

    model = ScriptedModel("done")
    agent = talking_agent(model, choose=choose)
    async with testing.app(agent) as app:
        assert await app.run(agent, "hello", id="r") == "done"
        assert len(model.prompts) == 1
        found = await app.prompt("r", step=1)
        assert found.is_exact
        assert found.prompt == model.prompts[0]
        decisions = [each.body for each in await app.log("r") if each.kind == "decision.made"]
        assert [each["chosen"]["json"] for each in decisions] == ["note_fact", "answer"]


async def test_normalise_replaces_a_tool_result_and_patches_state() -> None:

    @limpet.tool(effect="none")
    def read_disk() -> dict[str, Any]:
        """Read it."""
        return {"used": 95, "noise": "x" * 500}

    async def normalise(run: limpet.Run, call: ToolCall, result: Any) -> Any:
        if call.name == "read_disk":
            await run.patch(facts={"used": result["used"]}, source=call.name)
            return f"{result['used']} % used"
        return result

    model = ScriptedModel(calls("read_disk"), "done")
    agent = talking_agent(model, tools=[read_disk], normalise=normalise)
    async with testing.app(agent) as app:
        assert await app.run(agent, "look", id="r") == "done"
        assert model.prompts[-1].messages[-1].text == "95 % used"
        [fact] = (await app.state("r")).working.known_facts
        assert (fact.key, fact.source, fact.step) == ("used", "read_disk", 2)


async def test_a_handoff_returns_the_result_of_the_other_agent() -> None:
    """The other agent receives the facts and continues in the same conversation."""
    second = ScriptedModel(lambda _: "refunded")
    billing = limpet.llm_agent("seeing_billing", model=second, instructions="Refund.")
    first = ScriptedModel(
        (calls("note_fact", key="order", value="7"), calls("hand_over_to_seeing_billing", input="refund order 7"))
    )
    desk = limpet.llm_agent("seeing_desk", model=first, instructions="Help.", handoffs=[billing])
    async with testing.app(desk, billing) as app:
        handle = await app.start(desk, "I want my money back", id="r", conversation="c", user="ann")
        assert await handle.result() == "refunded"
        [info] = await app.runs(agent="seeing_billing")
        assert info.parent == "r"
        [request] = second.prompts
        assert request.messages[1].text == "I want my money back"
        assert request.messages[-1].text == "refund order 7"
        assert "order" in request.messages[0].text
        log = await app.log("r")
        assert [each.body["mode"] for each in log if each.kind == "agent.called"] == ["handoff"]
        assert [each.text for each in await app.messages("c")][-1] == "refunded"


async def test_a_handoff_with_invalid_input_or_another_output_type_is_refused() -> None:
    """The model is sent an error about its input; the author gets a DefinitionError about the output type."""

    @limpet.agent(name="seeing_counts")
    async def counts(run: limpet.Run, given: int) -> str:
        return f"{given} counted"

    @limpet.agent(name="seeing_numbers")
    async def numbers(run: limpet.Run, given: int) -> int:
        return given

    model = ScriptedModel(calls("hand_over_to_seeing_counts", input="seven"), "sorry")
    agent = limpet.llm_agent("seeing_chief", model=model, instructions="Count.", handoffs=[counts])
    async with testing.app(agent, counts) as app:
        assert await app.run(agent, "count", id="r") == "sorry"
        assert "do not fit" in model.prompts[-1].messages[-1].text
    with pytest.raises(DefinitionError, match="returns another type; set the same output="):
        limpet.llm_agent("seeing_wrong", model=model, instructions="x", handoffs=[numbers])


def facts(**rests_on: tuple[str, ...]) -> AgentState:
    """Return a state with these facts, in order."""
    found = tuple(Fact(key=key, value=b"1", derived_from=rests) for key, rests in rests_on.items())  # type: ignore[arg-type]
    return AgentState(known_facts=found)


def test_derived_facts_become_outdated_if_their_sources_change() -> None:
    """Directly or through other facts, by a retraction or a new value."""
    state = facts(a=(), b=("a",), c=("b",), d=())
    assert [each.key for each in derived(state, "a")] == ["b", "c"]
    assert derived(state, "d") == ()
    assert outdated(state) == {}
    retracted = apply(state, StatePatch(retract=("a",)))
    assert outdated(retracted) == {"b": ("a",), "c": ("b",)}
    assert [each.key for each in derived(retracted, "a")] == ["b", "c"]
    anew = apply(state, StatePatch(facts=(Fact(key="a", value=b"2"),)))  # type: ignore[arg-type]
    assert outdated(anew) == {"b": ("a",), "c": ("b",)}
    again = apply(anew, StatePatch(facts=(Fact(key="b", value=b"2", derived_from=("a",)),)))  # type: ignore[arg-type]
    assert outdated(again) == {"c": ("b",)}
    assert any("which changed since" in line for line in slice_lines(anew))


def slice_lines(state: AgentState) -> list[str]:
    """Return the lines about the state that a model is sent."""
    return describe(state, since=None, room=1_000).split("\n")


async def test_code_and_models_can_derive_and_retract_facts() -> None:
    """Each fact has the number of its step."""

    @limpet.tool(effect="none")
    def price() -> int:
        """Read it."""
        return 100

    @limpet.agent(name="seeing_shop")
    async def shop(run: limpet.Run) -> list[str]:
        await run.patch(facts={"price": await run.step(price)}, source="price")
        await run.patch(facts={"total": 300}, derived_from=["price"])
        found = [fact.key for fact in run.state.derived_from("price")]
        await run.patch(retract=["price"])
        return found

    model = ScriptedModel(
        calls("note_fact", key="a", value="1"),
        calls("note_fact", key="b", value="2", derived_from=["a"]),
        calls("note_fact", key="a"),
        calls("note_fact", key="a"),
        "done",
    )
    agent = talking_agent(model)
    async with testing.app(shop, agent) as app:
        assert await app.run(shop, id="r") == ["total"]
        [fact] = (await app.state("r")).working.known_facts
        assert (fact.key, fact.step, fact.derived_from) == ("total", 1, ("price",))
        assert await app.run(agent, "go", id="m") == "done"
        said = [each.text for each in model.prompts[-1].messages if each.role == "tool"]
        assert said[2:] == [
            "taken back; look again at what was concluded from it: b",
            "There is no such fact; there are: b",
        ]
        assert "concluded from a, which changed since" in model.prompts[-1].messages[0].text


async def test_context_is_the_same_inside_and_outside_of_a_run() -> None:
    """It fits the limit, and counts what it leaves out."""

    @limpet.agent(name="seeing_slice")
    async def sliced(run: limpet.Run, text: str) -> dict[str, Any]:
        await run.patch(goal="answer", plan=["look", "say"], facts={f"f{n}": "x" * 90 for n in range(20)})
        await run.say("hello", role="assistant")
        await run.artifact("big" * 1000, type="text/plain", summary="a big one")
        found = await run.context(max_tokens=400)
        return {"facts": [each.key for each in found.facts], "left": found.left_out}

    async with testing.app(sliced) as app:
        inside = await app.run(sliced, "hi", id="r", conversation="c")
        outside = await app.context("r", max_tokens=400)
        assert inside["facts"] == [each.key for each in outside.facts]
        assert inside["facts"][0] == "f19"
        assert inside["left"]["facts"] == 20 - len(inside["facts"])
        assert (outside.goal, outside.current_step) == ("answer", "look")
        assert [each.text for each in outside.messages] == ["hi", "hello"]
        assert [each.summary for each in (await app.context("r")).artifacts] == ["a big one"]
        assert len((await app.context("r", max_bytes=600)).facts) < len((await app.context("r")).facts) == 20
        for most in (250, 400, 600, 1000, 1500, 2000):
            assert len(json.dumps((await app.context("r", max_bytes=most)).as_json(), separators=(",", ":"))) <= most
            assert len(json.dumps((await app.context("r", max_tokens=most // 3)).as_json())) <= most * 1.2
        with pytest.raises(limpet.InvalidArgument):
            await app.context("r", max_bytes=-1)


async def test_context_at_an_earlier_step_contains_nothing_later() -> None:
    """Neither later messages nor a later summary."""

    def says(request: Prompt) -> Any:
        if request.messages[0].text == SUMMARY:
            return "They talked."
        return calls("note_fact", key="k", value="v") if request.messages[-1].role == "user" else "y" * 1_500

    agent = talking_agent(ScriptedModel(says))
    async with testing.app(agent) as app:
        for number in range(8):
            await app.run(agent, f"message {number} " + "z" * 900, id=f"r{number}", conversation="c")
        first = await app.context("r0", before=1)
        assert [each.text[:9] for each in first.messages] == ["message 0"]
        then = await app.context("r0", before=2)
        assert [each.role for each in then.messages] == ["user", "assistant", "tool"]
        assert then.messages[1].calls == ('note_fact({"key":"k","value":"v"})',)
        assert then.messages[2].tool == "note_fact"
        assert then.goal.startswith("message 0 zzz")  # without an explicit goal, the input is used
        assert (then.status, (await app.context("r0")).status) == ("running", "completed")
        last = await app.context("r7")
        assert (last.messages[0].text, last.messages[-1].role) == ("They talked.", "assistant")


def test_context_keeps_the_newest_messages() -> None:
    """No message older than one that does not fit is included."""
    said = [SliceMessage(role="user", text=text) for text in ("a", "b" * 900, "c")]
    found = slice_of(Known(AgentState()), messages=said, max_tokens=75)
    assert [each.text for each in found.messages] == ["c"]
    assert found.left_out == {"messages": 2}
    more = slice_of(Known(AgentState()), messages=said, max_tokens=100)
    assert [each.text[:9] for each in more.messages] == ["a", "b" * 9, "c"]  # a long message is truncated, with a note
    assert "characters are left out" in more.messages[1].text


def test_llm_agent_refuses_a_plain_function_as_a_tool() -> None:
    """A plain function has no declared effect."""

    def look() -> str:
        return "x"

    with pytest.raises(DefinitionError, match=r"put @limpet\.tool"):
        talking_agent(ScriptedModel("x"), tools=[look])


async def test_the_context_of_an_ended_run_has_no_later_messages() -> None:
    """Even at the same time by the clock: the run's own messages are exact, and times are not."""

    @limpet.agent(name="prompts_greeter")
    async def greeter(run: limpet.Run, text: str) -> None:
        await run.say(f"hello, {text}")

    async with testing.app(greeter) as app:
        await app.run(greeter, "ann", id="r", conversation="c")
        await app.say("c", "are you still there?")
        assert [each.text for each in (await app.context("r")).messages] == ["ann", "hello, ann"]
        assert len(await app.messages("c")) == 3
