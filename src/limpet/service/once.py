"""Doing something once for a key: a run whose id is the key, with one step. For whoever writes a tool's server.

The function is nowhere but in this process, so the run is of an agent that only this process serves for this key; if it
dies, whoever asks next with the same key takes the run over.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from limpet.engine.definitions.agents import Agent, AgentOptions
from limpet.engine.definitions.tools import Tool
from limpet.engine.definitions.traits import Traits
from limpet.engine.run.run import Run
from limpet.events import bodies as b
from limpet.events import inline
from limpet.ids import check_id
from limpet.service.settings import Settings
from limpet.stores import RunRow

__all__ = ["AGENT", "agent_of", "create_once"]

AGENT = "limpet.once"


async def create_once(settings: Settings, key: str) -> RunRow:
    """The run of a key, new or not."""
    created = b.RunCreated(agent=AGENT, agent_version=check_id(key), input=inline(None))
    row, _ = await settings.store.create(key, created, actor="once")
    return row


def agent_of(key: str, fn: Callable[[], Awaitable[Any]]) -> Agent[None, Any]:
    """The agent that only this process serves."""

    async def work() -> Any:
        return await fn()

    tool: Tool[[], Any, Awaitable[Any]] = Tool(work, AGENT, Traits(effect="idempotent"))

    async def once(run: Run) -> Any:
        return await run.step(tool)

    return Agent(once, AGENT, AgentOptions(version=key))
