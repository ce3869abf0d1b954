"""A task record with its own schema: id, user, type, time, status, plan, observations and output.

python examples/seeds/task_state.py
"""

import limpet


@limpet.agent()
def portfolio_review(run: limpet.sync.Run, account: str) -> dict[str, float]:
    """Note the plan and what was observed, and return the output."""
    run.patch(goal=f"review {account}", plan=["gather", "score"], facts={"risk_score": 6.8}, source="broker")
    return {"risk_score": run.state.facts["risk_score"]}


with limpet.sync.open("sqlite:///reviews.db", agents=[portfolio_review]) as app:
    app.run(portfolio_review, "a-1", id="task-1", user="ann")
    info, state = app.info("task-1"), app.state("task-1")
    print(info.id, info.user, info.agent, info.created, info.status, state.working.plan, state.facts, info.output)
