"""What a model gets wrong about the run itself: it is told, and the run goes on."""

import limpet
from limpet import testing
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
