"""A model with two tools: five turns, a deadline, retries, and a durable task.

OPENAI_API_KEY=… python examples/seeds/disk_space.py
"""

import os

import limpet

os.environ.setdefault("OPENAI_API_KEY", "dummy")  # OPENAI_BASE_URL may name another server


@limpet.tool(effect="none", retry=3)
def check_disk() -> str:
    """Check current disk usage."""
    return "Disk Usage: 95% (CRITICAL). Large folder: /var/log"


@limpet.tool(effect="idempotent", retry=3)
def clean_logs() -> str:
    """Delete old logs to free space."""
    print("cleaning")
    return "Logs cleaned. Freed 20GB."


devops = limpet.llm_agent(
    "devops",
    model="openai:gpt-4o-mini",
    instructions="You are an autonomous DevOps agent.",
    tools=[check_disk, clean_logs],
    max_turns=5,
    deadline="5m",
)

with limpet.sync.open("sqlite:///disk.db", agents=[devops]) as app:
    print("AI:", app.run(devops, "I'm out of disk space. Fix it.", id="task-1"))
    for step in app.steps("task-1"):
        if step.kind == "tool":
            print(f"Tool {step.tool}: {step.result}")
