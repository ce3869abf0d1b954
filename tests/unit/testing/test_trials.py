"""Trials of an agent: every agent that it needs is served."""

import limpet
from limpet import testing
from limpet.testing import ScriptedModel, calls


async def test_trials_know_the_agents_of_a_model() -> None:
    """Those that it calls, and those that it hands over to."""
    sub = limpet.llm_agent("again_sub", model=ScriptedModel("sub"), instructions="Sub.")
    agent = limpet.llm_agent(
        "again_main", model=ScriptedModel(calls("again_sub", input="x"), "main"), instructions="Main.", tools=[sub]
    )
    assert await testing.always_resume(agent, "go") > 0
