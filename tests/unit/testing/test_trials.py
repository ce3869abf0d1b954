"""Trials of an agent serve every agent that it needs."""

import limpet
from limpet import testing
from limpet.testing import ScriptedModel, calls


async def test_trials_serve_the_agents_of_an_llm_agent() -> None:
    """An agent that the model calls as a tool is served."""
    sub = limpet.llm_agent("again_sub", model=ScriptedModel("sub"), instructions="Sub.")
    agent = limpet.llm_agent(
        "again_main", model=ScriptedModel(calls("again_sub", input="x"), "main"), instructions="Main.", tools=[sub]
    )
    assert await testing.always_resume(agent, "go") > 0
