"""Batches: one command to every run that matches a filter, as a durable run of a built-in agent.

Any worker of the store drives it. Its log records which runs matched, and which of them refused the command. Killed
anywhere, it continues; a run gets the command once.
"""

from collections import Counter
from contextlib import suppress
from typing import Any, Literal, Protocol

import msgspec

from limpet.engine.definitions.agents import Agent, AgentOptions
from limpet.engine.definitions.tools import Tool
from limpet.engine.definitions.traits import Traits
from limpet.engine.execution.principal import Principal
from limpet.engine.run.run import Run
from limpet.errors import NotFound, WrongState
from limpet.policy.retry import Retry
from limpet.service.resolve import each_run
from limpet.service.views import LIVE
from limpet.stores import RunFilter, Store
from limpet.stores.search import row_matches

__all__ = ["AGENT", "OWN", "STATUSES", "BatchCommand", "Commands", "batch_agent"]

AGENT = "limpet.batch"
# Prefix of the names of built-in agents, whose runs no batch selects.
OWN = "limpet."
BatchCommand = Literal["resume", "pause", "cancel"]
STATUSES: dict[BatchCommand, tuple[str, ...]] = {
    "resume": ("failed", "waiting"),
    "pause": LIVE,
    "cancel": LIVE,
}
"""The statuses of runs that a command can have an effect on."""
# Maximum number of runs of one batch, and of one step.
MOST, BITE = 10_000, 50
RETRY = Retry(10, first="1s", cap="1m")


class Commands(Protocol):
    """The part of an app that a batch uses."""

    @property
    def store(self) -> Store:
        """The store."""

    async def resume(self, run: str, /, *, by: Principal, command_id: str) -> object:
        """Resume a run."""

    async def pause(self, run: str, /, *, reason: str, by: Principal, command_id: str) -> object:
        """Pause a run."""

    async def cancel(self, run: str, /, *, reason: str, by: Principal, command_id: str) -> object:
        """Cancel a run."""


def batch_agent(app: Commands) -> Agent[dict[str, Any], Any]:
    """Return the agent that sends the commands of batches through an app."""

    async def find(where: dict[str, Any], runs: list[str]) -> list[str]:
        return await _matching(app.store, msgspec.convert(where, RunFilter), runs)

    async def send(batch: str, order: dict[str, Any], runs: list[str]) -> dict[str, str]:
        return await _send_all(app, batch, order, runs)

    finding: Tool[..., Any, Any] = Tool(find, f"{AGENT}.find", Traits(effect="none", retry=RETRY))
    sending: Tool[..., Any, Any] = Tool(send, f"{AGENT}.send", Traits(effect="idempotent", retry=RETRY))

    async def batch(run: Run, order: dict[str, Any]) -> dict[str, Any]:
        matched: list[str] = await run.step(finding, order["where"], order["runs"])
        refused: dict[str, str] = {}
        for start in range(0, len(matched), BITE):
            refused |= await run.step(sending, run.id, order, matched[start : start + BITE])
        return {
            "matched": len(matched),
            "sent": len(matched) - len(refused),
            "refused": dict(Counter(refused.values())),
            "is_complete": len(matched) < MOST,
        }

    return Agent(batch, AGENT, AgentOptions(version="1"))


async def _matching(store: Store, where: RunFilter, runs: list[str]) -> list[str]:
    """Return the ids of the runs that match, the newest first, as many as a batch may have; or of those named."""
    found: list[str] = []
    for id in runs:
        with suppress(NotFound):
            row = await store.get(id)
            if row.type == "run" and not row.agent.startswith(OWN) and row_matches(row, where):
                found.append(id)
    if runs:
        return found
    async for row in each_run(store, where):
        if not row.agent.startswith(OWN):
            found.append(row.id)
        if len(found) == MOST:
            break
    return found


async def _send_all(app: Commands, batch: str, order: dict[str, Any], runs: list[str]) -> dict[str, str]:
    """Send a command to some runs. Returns the code of the error for each run that has ended, or was deleted."""
    refused: dict[str, str] = {}
    for run in runs:
        try:
            await _send(app, order, run, f"{batch}:{run}")
        except (WrongState, NotFound) as error:
            refused[run] = error.code
    return refused


async def _send(app: Commands, order: dict[str, Any], run: str, id: str) -> None:
    who = Principal(name=order["by"], door=order["via"])
    command: BatchCommand = order["command"]
    match command:
        case "resume":
            await app.resume(run, by=who, command_id=id)
        case "pause":
            await app.pause(run, reason=order["reason"], by=who, command_id=id)
        case "cancel":
            await app.cancel(run, reason=order["reason"], by=who, command_id=id)
