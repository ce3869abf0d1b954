"""An LLM agent that uses an MCP server, and the process that runs it and is killed."""

import os
from multiprocessing.connection import Connection
from typing import Any

import limpet
from limpet.adapters.mcp import MCPTools
from limpet.llm.model import Prompt
from limpet.testing import ScriptedModel, calls

__all__ = ["carrier", "postman", "run_carrier", "run_postman"]


def scripted_reply(request: Prompt) -> Any:
    """Send one letter, then report the result."""
    last = request.messages[-1]
    return calls("deliver", name="Ann", process=os.getpid()) if last.role == "user" else f"it says: {last.text}"


def postman(server: Any, effect: Any) -> limpet.Agent[str, str]:
    """Return an agent that sends letters through a server."""
    tools = MCPTools(server, name="desk", only=["deliver"], effects={} if effect == "once" else {"deliver": effect})
    return limpet.llm_agent("letters_postman", model=ScriptedModel(scripted_reply), instructions="Send.", tools=[tools])


def carrier(server: Any) -> limpet.Agent[str, str]:
    """Return an agent in code that sends a letter through a server."""
    tools = MCPTools(server, name="desk", only=["deliver"])

    @limpet.agent(name="letters_carrier")
    async def carry(run: limpet.Run, name: str) -> str:
        found = await tools.tools(run)
        told: str = await run.step(found["deliver"], name=name, process=await run.step(own_process))
        return f"it says: {told}"

    return carry


@limpet.tool(effect="none", name="letters_own_process")
def own_process() -> int:
    """Return the process that runs the agent first."""
    return os.getpid()


async def run_carrier(pipe: Connection, url: str, server: Any) -> None:
    """Run the agent in code to its end, unless this process is killed."""
    agent = carrier(server)
    async with limpet.open(url, agents=[agent], worker=limpet.Worker(lease="1h")) as app:
        pipe.send(await app.run(agent, "Ann", id="r"))


async def run_postman(pipe: Connection, url: str, server: Any, effect: Any) -> None:
    """Run the agent to its end, unless this process is killed."""
    agent = postman(server, effect)
    async with limpet.open(url, agents=[agent], worker=limpet.Worker(lease="1h")) as app:
        pipe.send(await app.run(agent, "write to Ann", id="r"))
