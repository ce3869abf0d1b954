"""An LLM agent that uses an MCP server, and the process that runs it and is killed."""

import os
from multiprocessing.connection import Connection
from typing import Any

import limpet
from limpet.adapters.mcp import MCPTools
from limpet.llm.model import Prompt
from limpet.testing import ScriptedModel, calls

__all__ = ["postman", "run_postman"]


def scripted_reply(request: Prompt) -> Any:
    """Send one letter, then report the result."""
    last = request.messages[-1]
    return calls("deliver", name="Ann", process=os.getpid()) if last.role == "user" else f"it says: {last.text}"


def postman(server: Any, effect: Any) -> limpet.Agent[str, str]:
    """Return an agent that sends letters through a server."""
    tools = MCPTools(server, name="desk", only=["deliver"], effects={} if effect == "once" else {"deliver": effect})
    return limpet.llm_agent("letters_postman", model=ScriptedModel(scripted_reply), instructions="Send.", tools=[tools])


async def run_postman(pipe: Connection, url: str, server: Any, effect: Any) -> None:
    """Run the agent to its end, unless this process is killed."""
    agent = postman(server, effect)
    async with limpet.open(url, agents=[agent], worker=limpet.Worker(lease="1h")) as app:
        pipe.send(await app.run(agent, "write to Ann", id="r"))
