"""The state of an agent as a contract: a run starts with it, and its code changes it with patches.

python examples/seeds/agent_state.py
"""

import limpet


@limpet.agent()
def deploy(run: limpet.sync.Run) -> None:
    """Revise the plan when a new fact arrives."""
    run.patch(facts={"namespace": "blue"}, source="user", answered={"Which namespace should we deploy to?": "blue"})
    run.patch(plan=["Check current status", "Apply changes", "Verify again"], lower=["budget_pressure"])


with limpet.sync.open("sqlite:///deploy.db", agents=[deploy]) as app:
    app.run(
        deploy,
        id="deploy-1",
        state={"open_questions": ["Which namespace should we deploy to?"], "risk_flags": ["budget_pressure"]},
        goal="Deploy service X to staging",
        constraints={"human_in_the_loop": {"required_for_risk_levels": ["write_local", "external_action"]}},
        budget=limpet.Budget(max_steps=20, max_wall_time="5m", max_llm_tokens=200_000),
        plan=["Check current status", "Collect config", "Apply changes", "Verify again"],
        facts={"service": "X"},
    )
    print(app.state("deploy-1").working.to_dict())
