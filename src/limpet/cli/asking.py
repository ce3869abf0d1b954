"""Opening the store that a command is about, and saying what went wrong."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
import typer

import limpet
from limpet.errors import LimpetError, NoStore
from limpet.redaction import say
from limpet.service import App

__all__ = ["ask", "ask_app", "json_object", "reported"]

T = TypeVar("T")


def ask(url: str, work: Callable[[App], Awaitable[T]], *, makes: bool = False) -> T:
    """What some work on the store at an address gives; no SQLite file is made, unless it puts something there."""

    with reported():
        if not makes:
            _check_there(url)
        return ask_app(limpet.open(url, worker=False), work)


def ask_app(app: App, work: Callable[[App], Awaitable[T]]) -> T:
    """What some work with an app gives."""

    async def do() -> T:
        async with app.but(door="cli") as opened:
            return await work(opened)

    with reported():
        return asyncio.run(do())


@contextmanager
def reported() -> Iterator[None]:
    """An error of Limpet ends the command with its text, its cure, and what may have been meant."""
    try:
        yield
    except LimpetError as error:
        for line in (f"error: {error}", *getattr(error, "__notes__", ())):
            typer.echo(say(line), err=True)
        raise typer.Exit(1) from error


def json_object(text: str) -> dict[str, Any]:
    """A JSON object that was typed."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise typer.BadParameter(f"{say(text)!r} is no JSON object ({error})") from error


def _check_there(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme == "sqlite" and not Path(unquote(parts.path[1:])).is_file():
        raise NoStore(url=url)
