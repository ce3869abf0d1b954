"""What a shell offers on the tab key: ids of runs and requests, names of agents. It is never slow, and never fails."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import typer

import limpet
from limpet.errors import LimpetError
from limpet.service import App

__all__ = ["complete_agent", "complete_conversation", "complete_request", "complete_run"]

# Seconds; whoever waits longer has typed it meanwhile.
PATIENCE = 1.0
MOST = 100


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """The newest runs whose ids begin so."""

    async def look(app: App) -> list[str]:
        return [each.id for each in await app.runs(last=MOST)]

    return _offered(ctx, incomplete, look)


def complete_request(ctx: typer.Context, incomplete: str) -> list[str]:
    """The open requests whose ids begin so."""

    async def look(app: App) -> list[str]:
        return [row.id for row in await app.store.requests(limit=MOST)]

    return _offered(ctx, incomplete, look)


def complete_conversation(ctx: typer.Context, incomplete: str) -> list[str]:
    """The newest conversations whose ids begin so."""

    async def look(app: App) -> list[str]:
        return [each.id for each in await app.conversations()]

    return _offered(ctx, incomplete, look)


def complete_agent(ctx: typer.Context, incomplete: str) -> list[str]:
    """The agents that the store knows."""

    async def look(app: App) -> list[str]:
        return sorted({agent.name for agent in await app.agents()})

    return _offered(ctx, incomplete, look)


def _offered(ctx: Any, incomplete: str, look: Callable[[App], Awaitable[list[str]]]) -> list[str]:
    url = ctx.params.get("url") or os.environ.get("LIMPET_URL")
    os.environ["LIMPET_PATIENCE"] = f"{PATIENCE}s"  # this process does nothing else

    async def ask() -> list[str]:
        async with limpet.open(url, worker=False).but(makes=False) as app:
            return await look(app)

    async def in_time() -> list[str]:
        return await asyncio.wait_for(ask(), PATIENCE)

    try:
        return [each for each in asyncio.run(in_time()) if each.startswith(incomplete)]
    except (LimpetError, OSError, TimeoutError):
        return []  # there is nobody to tell: the shell has the line
