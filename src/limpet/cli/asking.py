"""Opening the store that a command is about, and saying what went wrong."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

import typer

import limpet
from limpet.errors import LimpetError, NoStore
from limpet.service import App

__all__ = ["ask", "reported"]

T = TypeVar("T")


def ask(url: str, work: Callable[[App], Awaitable[T]]) -> T:
    """What some work on the store at an address gives; no SQLite file is made for it."""

    async def do() -> T:
        async with limpet.open(url, worker=False).but(door="cli") as app:
            return await work(app)

    with reported():
        _check_there(url)
        return asyncio.run(do())


@contextmanager
def reported() -> Iterator[None]:
    """An error of Limpet ends the command with its text, its cure, and what may have been meant."""
    try:
        yield
    except LimpetError as error:
        for line in (f"error: {error}", *getattr(error, "__notes__", ())):
            typer.echo(line, err=True)
        raise typer.Exit(1) from error


def _check_there(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme == "sqlite" and not Path(unquote(parts.path[1:])).is_file():
        raise NoStore(url=url)
