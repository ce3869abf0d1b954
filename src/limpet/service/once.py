"""`app.once`: call a function once per key, as a run whose id is the key and which has one step.

The function exists only in this process, so its agent is served only by this process, for this key. If the process
dies, the next caller with the same key takes the run over.
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
    """Create the run of a key, or return the existing one."""
    created = b.RunCreated(agent=AGENT, agent_version=check_id(key), input=inline(None), via=settings.interface)
    row, _ = await settings.store.create(key, created, actor="once")
    return row


def agent_of(key: str, fn: Callable[[], Awaitable[Any]]) -> Agent[None, Any]:
    """Return the agent that calls `fn`, at a version that only this process serves."""

    async def work() -> Any:
        return await fn()

    tool: Tool[[], Any, Awaitable[Any]] = Tool(work, AGENT, Traits(effect="idempotent"))

    async def once(run: Run) -> Any:
        return await run.step(tool)

    return Agent(once, AGENT, AgentOptions(version=key))
