"""An agent of a model that uses the tools of an MCP server, and the process that drives it and is killed."""

import os
from multiprocessing.connection import Connection
from typing import Any

import limpet
from limpet.adapters.mcp import MCPTools
from limpet.llm.model import Prompt
from limpet.testing import ScriptedModel, calls

__all__ = ["post", "postman"]


def says(request: Prompt) -> Any:
    """One letter, and what came of it."""
    last = request.messages[-1]
    return calls("deliver", name="Ann", process=os.getpid()) if last.role == "user" else f"it says: {last.text}"


def postman(server: Any, effect: Any) -> limpet.Agent[str, str]:
    """An agent that sends letters by a server."""
    tools = MCPTools(server, name="desk", only=["deliver"], effects={} if effect == "once" else {"deliver": effect})
    return limpet.llm_agent("letters_postman", model=ScriptedModel(says), instructions="Send.", tools=[tools])


async def post(pipe: Connection, url: str, server: Any, effect: Any) -> None:
    """Drive a run to its end, unless somebody kills this process."""
    agent = postman(server, effect)
    async with limpet.open(url, agents=[agent], worker=limpet.Worker(lease="1h")) as app:
        pipe.send(await app.run(agent, "write to Ann", id="r"))
