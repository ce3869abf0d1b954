"""The state of an agent as a contract: a run starts with it, and its code changes it with a patch.

python examples/seeds/agent_state.py
"""

import limpet

LIMITS = {"max_steps": 20, "max_wall_time_ms": 300000, "max_llm_tokens": 200000, "max_artifact_bytes_in_context": 8000}
STATE = {
    "constraints": {"human_in_the_loop": {"required_for_risk_levels": ["write_local", "external_action"]}},
    "budget": LIMITS,
    "plan": ["Check current status", "Collect config", "Apply changes", "Verify again"],
    "known_facts": [{"key": "service", "value": "X", "source": "user"}],
    "open_questions": ["Which namespace should we deploy to?"],
    "artifacts": [{"artifact_id": "log_123", "type": "tool_result.logs", "summary": "nginx error log", "bytes": 48231}],
    "risk_flags": ["budget_pressure"],
}


@limpet.agent()
def deploy(run: limpet.sync.Run) -> None:
    """Append a fact, replace the plan, and add an open question."""
    run.patch(facts={"namespace": "blue"}, plan=["Apply changes", "Verify again"], questions=["Which tag?"])
    print(run.state.working.to_dict())


with limpet.sync.open("sqlite:///deploy.db", agents=[deploy]) as app:
    app.run(deploy, state=STATE, goal="Deploy service X to staging")
