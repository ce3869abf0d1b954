"""Opening the store that a command is about: none is made, unless the command puts something there."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import limpet
from limpet.service import App

__all__ = ["ask", "ask_app", "ask_when"]

T = TypeVar("T")


def ask(url: str | None, work: Callable[[App], Awaitable[T]], *, makes: bool = False) -> T:
    """What some work on the store at an address gives; the usual one, if nothing is said."""
    return ask_app(limpet.open(url, worker=False), work, makes=makes)


def ask_when(url: str, work: Callable[[App], Awaitable[T]]) -> tuple[T, int]:
    """The same, and what time it is there."""

    async def look(app: App) -> tuple[T, int]:
        return await work(app), await app.store.now()

    return ask(url, look)


def ask_app(app: App, work: Callable[[App], Awaitable[T]], *, makes: bool = False) -> T:
    """What some work with an app gives."""

    async def do() -> T:
        async with app.but(door="cli", makes=makes) as opened:
            return await work(opened)

    return asyncio.run(do())
