"""Opening the store that a command is about."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

import limpet
from limpet.errors import NoStore
from limpet.service import App
from limpet.stores.sqlite import is_store

__all__ = ["ask", "ask_app", "check_there"]

T = TypeVar("T")


def ask(url: str, work: Callable[[App], Awaitable[T]], *, makes: bool = False) -> T:
    """What some work on the store at an address gives; no SQLite file is made, unless it puts something there."""
    if not makes:
        check_there(url)
    return ask_app(limpet.open(url, worker=False), work)


def ask_app(app: App, work: Callable[[App], Awaitable[T]]) -> T:
    """What some work with an app gives."""

    async def do() -> T:
        async with app.but(door="cli") as opened:
            return await work(opened)

    return asyncio.run(do())


def check_there(url: str) -> None:
    """Refuse to look into a SQLite file that is not there, or is of something else: looking would make it a store."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite" and not is_store(Path(unquote(parts.path[1:]))):
        raise NoStore(url=url)
