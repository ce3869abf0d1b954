"""An agent whose model reasons before it calls a tool, and a process that is killed inside that tool."""

import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

import limpet
from limpet.adapters.openai import OpenAIModel

__all__ = ["reasoning_agent", "run_agent"]


def reasoning_agent(model: Any, die: Path | None = None, **more: Any) -> limpet.Agent[str, str]:
    """Return an agent with one tool. If the file `die` exists, the tool deletes it and kills its process."""

    @limpet.tool(effect="none", name="thoughts_look")
    async def look(place: str) -> str:
        """Look there."""
        if die is not None and die.exists():
            die.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return f"nothing {place}"

    return limpet.llm_agent("thoughts_thinker", model=model, instructions="Look.", tools=[look], **more)


async def run_agent(pipe: Connection, url: str, server: str, die: Path) -> None:
    """Run the agent to its end, unless this process dies before."""
    model = OpenAIModel("thinks-1", client=AsyncOpenAI(base_url=server, api_key="none"))
    agent = reasoning_agent(model, die)
    async with limpet.open(url, agents=[agent], worker=limpet.Worker(lease="1h")) as app:
        pipe.send(await app.run(agent, "look around", id="r", conversation="c"))
