"""`still_replays`: check before a deployment whether the current code matches exported runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from limpet.engine.definitions.agents import Agent
from limpet.errors import LimpetError
from limpet.service.bundles import load_run
from limpet.service.replay import check
from limpet.stores import Inline, Store
from limpet.stores.memory import MemoryBackend

__all__ = ["still_replays"]


async def still_replays(*agents: Agent[Any, Any], bundles: str | Path) -> list[str]:
    """Replay the exported runs (`*.zip`) in a folder, and return one line for each that does not match the current
    code.

    Each run is replayed to the end of its log; no new calls are made. A completed run must return the same result.
    """
    found = [(path, await _problem(path, agents)) for path in _files(bundles)]
    return [f"{path.name}: {problem}" for path, problem in found if problem is not None]


def _files(bundles: str | Path) -> list[Path]:
    return sorted(Path(bundles).glob("*.zip"))


async def _problem(path: Path, agents: Sequence[Agent[Any, Any]]) -> str | None:
    async with Store(MemoryBackend(), Inline()) as store:
        try:
            row = await load_run(store, path, "replay")
        except LimpetError as error:
            return error.summary
        for agent in agents:
            if agent.name == row.agent and row.agent_version in (agent.version, *agent.rules.accepts):
                return (await check(store, row.id, agent)).problem
        return f"agent {row.agent!r} of version {row.agent_version!r} is missing"
