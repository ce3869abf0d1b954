"""Options of LLM agents: those of every agent, the built-in tools, and the model in a test."""

import inspect
from typing import Any

import msgspec
import pytest

import limpet
from limpet import testing
from limpet.testing import ScriptedModel, calls

NAMES = ["note_fact", "set_plan", "note_question", "ask_person", "open_artifact"]


def made(name: str, model: Any = "openai:gpt-5-mini", **more: Any) -> Any:
    """Return an LLM agent."""
    return limpet.llm_agent(name, model=model, instructions="Work.", **more)


def test_an_llm_agent_takes_every_option_of_an_agent() -> None:
    """Name, default and annotation are the same, so that the two cannot drift apart."""
    plain, llm = inspect.signature(limpet.agent).parameters, inspect.signature(limpet.llm_agent).parameters
    options = {name: each for name, each in plain.items() if name not in ("bare", "name")}
    assert len(options) > 9
    assert {name: str(llm.get(name)) for name in options} == {name: str(each) for name, each in options.items()}


def test_the_options_of_an_llm_agent_reach_its_rules() -> None:
    options: dict[str, Any] = {
        "version": "3",
        "accepts": ["1", "2"],
        "steps": 4,
        "deadline": "1h",
        "budget": limpet.Budget(max_steps=9),
        "approvals": limpet.Approvals("write_local"),
        "escalate": limpet.Escalate(confidence=0.5),
        "checkpoint": "every_iteration",
        "exclusive": "session",
        "max_age": "30d",
        "concurrency": 3,
        "data": dict,
    }
    assert {"bare", "name", *options} == {*inspect.signature(limpet.agent).parameters}, "add the new option here"

    @limpet.agent(**options)
    async def plain(run: limpet.Run) -> None: ...

    assert made("options_rules", **options).rules == plain.rules


async def test_exclusive_llm_agents_run_one_after_another_in_a_session() -> None:
    """The second run of a session starts when the first has ended."""
    model = ScriptedModel(lambda request: calls("ask_person", question="?") if len(request.messages) < 3 else "done")
    agent = made("options_exclusive", model, exclusive="session")
    async with testing.app(agent) as app:
        first, second = [await app.start(agent, "go", id=id, session="s") for id in ("a", "b")]
        await app.settle()
        assert [each.run for each in await app.inbox()] == ["a"]
        await app.answer((await app.inbox())[0], "yes", by="ann")
        assert await first.result() == "done"
        [request] = await app.inbox()
        await app.answer(request, "yes", by="ann")
        assert await second.result() == "done"


# Built-in tools


async def test_built_in_tools_cost_less_than_a_kilobyte() -> None:
    """Every prompt contains them, so their names, descriptions and schemas are short."""
    model = ScriptedModel("done")
    async with testing.app(agent := made("options_small", model)) as app:
        await app.run(agent, "go")
        sent = model.prompts[0].tools
        assert [each.name for each in sent] == NAMES
        assert len(msgspec.json.encode(sent)) < 1_000


@pytest.mark.parametrize(
    ("builtin", "offered"),
    [(True, NAMES), (False, []), ((), []), (["ask_person", "note_fact"], ["note_fact", "ask_person"])],
)
async def test_the_built_in_tools_can_be_chosen(builtin: Any, offered: list[str]) -> None:
    """A tool that is not chosen is not offered, and a call of it is answered with the names that are."""
    model = ScriptedModel(calls("set_plan", items=["a"]), "done")
    async with testing.app(agent := made("options_chosen", model, builtin=builtin)) as app:
        await app.run(agent, "go", id="r")
        assert [each.name for each in model.prompts[0].tools] == offered
        [said] = [each.text for each in await app.messages("r.chat") if each.role == "tool"]
        names = ", ".join(offered)
        assert said == ("noted" if builtin is True else f"There is no tool 'set_plan'. There are: {names or 'none'}")


def test_an_unknown_built_in_tool_is_refused_with_the_list() -> None:
    with pytest.raises(limpet.DefinitionError, match=r"no built-in tool is called 'plan'; there are: note_fact, set_p"):
        made("options_unknown", builtin=("plan",))
    with pytest.raises(limpet.DefinitionError, match=r"llm_agent\(builtin=…\)"):
        made("options_text", builtin="note_fact")


def test_an_own_tool_may_have_the_name_of_a_built_in_tool_that_is_off() -> None:

    @limpet.tool(effect="none", name="ask_person")
    def own(question: str) -> str:
        """Ask."""
        return question

    assert list(made("options_own", tools=[own], builtin=False).llm.tools) == ["ask_person"]
    with pytest.raises(limpet.DefinitionError, match="two tools"):
        made("options_twice", tools=[own])


async def test_a_call_of_a_built_in_tool_ends_after_the_tool_was_switched_off() -> None:
    """A parked question, deployed without `ask_person`: the answer still reaches the model. A new call is refused."""
    model = ScriptedModel(calls("ask_person", question="?"), calls("ask_person", question="again?"), "done")
    async with testing.app(agent := made("options_off", model)) as app:
        handle = await app.start(agent, "go", id="r")
        await app.settle()
        app.deploy(made("options_off", model, builtin=("note_fact",)))
        await app.crash()
        await app.answer((await app.inbox())[0], "blue", by="ann")
        assert await handle.result() == "done"
        said = [each.text for each in await app.messages("r.chat") if each.role == "tool"]
        assert said == ["blue", "There is no tool 'ask_person'. There are: note_fact"]
        assert (await app.replay("r")).value == "done"


async def test_a_note_that_was_recorded_before_a_crash_stays_when_the_tool_is_switched_off() -> None:
    """The state was changed, but the result was not yet recorded. The next process has no such tool."""
    model = ScriptedModel(calls("note_fact", key="k", value="v"), "done")
    async with testing.app(agent := made("options_crash", model)) as app:
        app.deploy(made("options_crash", model, builtin=False))
        app.crash_at("after", "state.patched")
        assert await app.run(agent, "go", id="r") == "done"
        assert app.crashes == 1
        assert [each.text for each in await app.messages("r.chat") if each.role == "tool"] == ["noted"]
        assert dict((await app.state("r")).facts) == {"k": "v"}
        assert (await app.replay("r")).value == "done"


async def test_a_run_can_be_forked_with_other_built_in_tools() -> None:
    """The fork shares the calls before it, and its model is offered what the new code offers."""
    model = ScriptedModel(calls("note_fact", key="k", value="v"), "done")
    async with testing.app(agent := made("options_fork", model)) as app:
        await app.run(agent, "go", id="r")
        app.deploy(made("options_fork", model, builtin=False))
        await app.crash()
        fork = await app.fork("r", at=2, effects="stub", model="live")
        assert await fork.result() == "done"
        assert model.prompts[-1].tools == ()
        assert dict((await app.state(fork.id)).facts) == {"k": "v"}


async def test_invalid_arguments_of_built_in_tools_are_explained_to_the_model() -> None:
    """An unknown argument is refused, although the schema that the model gets does not say so."""
    model = ScriptedModel(
        (
            calls("note_fact", key="k", val="v"),
            calls("note_fact", value="v"),
            calls("set_plan", items="look"),
            calls("note_fact", key="gone"),
            calls("set_plan", items=["a"], done=["b"]),
        ),
        "done",
    )
    async with testing.app(agent := made("options_wrong", model)) as app:
        await app.run(agent, "go", id="r")
        said = [each.text for each in await app.messages("r.chat") if each.role == "tool"]
        assert "val" in said[0]
        assert "key" in said[1]
        assert "items" in said[2]
        assert said[3:] == ["There is no such fact; there are: none", "There is no item 'b'; the plan has: a"]
        assert (await app.state("r")).plan == []


async def test_one_call_replaces_the_plan_and_marks_items_done() -> None:
    model = ScriptedModel(calls("set_plan", items=["a", "b"], done=["a"]), "done")
    async with testing.app(agent := made("options_plan", model)) as app:
        await app.run(agent, "go", id="r")
        assert [(each.item, each.status) for each in (await app.state("r")).working.items] == [
            ("a", "done"),
            ("b", "pending"),
        ]


# The model in a test


async def test_one_parameter_replaces_the_models_of_a_test() -> None:
    """Also of a called agent, after a crash, and after a deployment. The definition keeps its own model."""
    helper = made("options_helper")
    agent = made("options_support", tools=[helper])
    models = {
        "options_support": ScriptedModel(calls("options_helper", input="look"), "all is well"),
        "options_helper": ScriptedModel(calls("ask_person", question="?"), "I looked"),
    }
    async with testing.app(agent, helper, models=models) as app:
        handle = await app.start(agent, "go", id="r")
        await app.settle()
        app.deploy(made("options_support", tools=[helper]), helper)
        await app.crash()
        await app.answer((await app.inbox())[0], "yes", by="ann")
        assert await handle.result() == "all is well"
        assert [each.text for each in await app.messages("r.chat") if each.role == "tool"] == ["I looked"]
        assert (await app.prompt("r", step=1)).is_exact
        app.deploy(helper)
    assert agent.llm.model().name == "openai:gpt-5-mini"


@pytest.mark.parametrize(
    ("models", "text"),
    [
        ({"options_suport": ScriptedModel()}, "no LLM agent 'options_suport'; it serves: options_named"),
        ({"options_code": ScriptedModel()}, "no LLM agent 'options_code'; it serves: options_named"),
        ({"options_named": "openai:gpt-5"}, "'openai:gpt-5' is not a model; pass limpet.testing.ScriptedModel"),
    ],
)
async def test_a_model_that_no_agent_would_use_is_refused(models: Any, text: str) -> None:

    @limpet.agent(name="options_code")
    async def code(run: limpet.Run) -> None: ...

    with pytest.raises(limpet.InvalidArgument, match=text):
        async with testing.app(made("options_named"), code, models=models):
            pass
