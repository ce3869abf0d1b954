"""One agent writes its progress; another reads it over MCP, by its URI, and takes over its plan.

python examples/seeds/shared_state.py
"""

import json
import sys
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters, stdio_client

import limpet

URL, LIMPET = "sqlite:///shared.db", str(Path(sys.executable).with_name("limpet"))


@limpet.tool(effect="none")
async def read_shared_state(agent_id: str, task_id: str) -> dict[str, Any]:
    """Read another agent's state through an MCP server."""
    server = StdioServerParameters(command=LIMPET, args=["mcp", "--role", "auditor", "--url", URL])
    async with Client(stdio_client(server)) as client:
        [content] = (await client.read_resource(f"state://agents/{agent_id}/tasks/{task_id}")).contents
    return dict(json.loads(content.model_dump()["text"]))


@limpet.agent()
def a(run: limpet.sync.Run) -> None:
    """Write progress."""
    run.patch(plan=["collect", "apply"])


@limpet.agent()
def b(run: limpet.sync.Run, task_id: str) -> dict[str, Any]:
    """Take over the plan of the other agent."""
    found: dict[str, Any] = run.step(read_shared_state, "a", task_id)
    run.patch(plan=found["plan"])
    return found


with limpet.sync.open(URL, agents=[a, b]) as app:
    app.run(a, id="task-1")
    print(app.run(b, "task-1", id="task-2"))
