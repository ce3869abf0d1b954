"""What a model gets wrong about the run itself: it is told, and the run goes on."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

import limpet
from limpet import testing
from limpet.llm.loop import MISFIT
from limpet.llm.model import Call, ModelRequest
from limpet.testing import ScriptedModel, calls


async def test_notes_that_cannot_be_taken() -> None:
    """Empty ones, and the same one twice; what can be is taken."""
    model = ScriptedModel(
        (calls("note_fact", key="", value="x"), calls("open_question", question=""), calls("set_plan", items=[""])),
        (calls("open_question", question="why?"), calls("note_fact", key="k", value="v")),
        (calls("open_question", question="why?"), calls("close_question", question="what?", answer="x")),
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


async def test_what_was_called_before_is_no_circle() -> None:
    """The same call four times in a row ends a run, but not the next one in its conversation."""

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
    """What a judge says."""

    guilty: bool


async def test_answers_that_never_fit_end_the_run() -> None:
    """Three times the model is told what is wrong, also when it looks at something in between; then it is over."""

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
        with pytest.raises(limpet.RunFailed, match="its answer does not fit"):
            await handle.result()
        assert len(model.requests) == 6
        told = [each.text for each in await app.messages("c") if each.role == "user"]
        assert told[0] == "go"
        assert [text.split(":")[0] for text in told[1:]] == [MISFIT] * 3
        assert "guilty" in told[2]


async def test_every_run_of_a_conversation_has_its_repairs() -> None:
    """What another run was told before counts for that one."""

    def says(request: ModelRequest) -> object:
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
async def test_two_facts_at_once(kind: str) -> None:
    """By the model's own notes, and by what is made of results: all are kept, whatever dies, in the same order."""

    @limpet.tool(effect="none", name="mistakes_measure")
    async def measure(what: str) -> int:
        """Measure something."""
        return len(what)

    async def normalise(run: limpet.Run, call: Call, result: Any) -> Any:
        if call.name == "mistakes_measure":
            what = json.loads(call.args)["what"]
            await run.patch(facts={what: result}, source=call.name)
        return result

    both = (calls("note_fact", key="a", value="1"), calls("note_fact", key="b", value="2"))
    results = (calls("mistakes_measure", what="width"), calls("mistakes_measure", what="depths"))
    for when, nth in (("before", 1), ("after", 1), ("before", 2), ("after", 2), ("before", 3), ("after", 4)):
        model = ScriptedModel((*both, *results), "done")
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
            assert all(f"Fact {key} = " in model.requests[-1].messages[0].text for key in state.facts)
            again = await app.replay("r")
            assert again.value == "done"


async def test_the_same_fact_twice_at_once() -> None:
    """One of them counts, and the other is not lost from the log; nothing fails."""
    both = (calls("note_fact", key="a", value="1"), calls("note_fact", key="a", value="2"))
    agent = limpet.llm_agent("mistakes_twice", model=ScriptedModel(both, "done"), instructions="Note.")
    async with testing.app(agent) as app:
        assert await app.run(agent, "go", id="r") == "done"
        patched = [each.body for each in await app.log("r") if each.kind == "state.patched"]
        assert len(patched) == 2
        assert dict((await app.state("r")).facts) == {"a": "2"}
        assert (await app.replay("r")).value == "done"
