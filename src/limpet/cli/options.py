"""What many commands take."""

import asyncio
import getpass
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import limpet
from limpet.compose import DEFAULT_URL
from limpet.errors import InvalidValue, LimpetError
from limpet.redaction import hide_secrets
from limpet.service import App
from limpet.service.json_body import LARGEST, read_json

__all__ = [
    "STORE",
    "AgentName",
    "By",
    "Code",
    "ConversationId",
    "Json",
    "Last",
    "OwnUrl",
    "RequestId",
    "RunId",
    "Since",
    "Url",
    "complete_agent",
    "complete_conversation",
    "complete_request",
    "complete_run",
    "input_of",
    "json_object",
    "json_or_text",
    "number_of",
    "pair_of",
]

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
        async with limpet.open(url, worker=False).replace(creates_store=False) as app:
            return await look(app)

    async def in_time() -> list[str]:
        return await asyncio.wait_for(ask(), PATIENCE)

    try:
        return [each for each in asyncio.run(in_time()) if each.startswith(incomplete)]
    except (LimpetError, OSError, TimeoutError):
        return []  # there is nobody to tell: the shell has the line


STORE = DEFAULT_URL
Url = Annotated[str, typer.Option(envvar="LIMPET_URL", help="The store: sqlite:///file.db or postgresql://…")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON; errors too.")]
RunId = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Its id, or the beginning of it.", show_default=False, autocompletion=complete_run
    ),
]
RequestId = Annotated[
    str,
    typer.Argument(
        metavar="REQUEST",
        help="Its id, as `limpet inbox` says, or the beginning of it.",
        show_default=False,
        autocompletion=complete_request,
    ),
]
ConversationId = Annotated[
    str,
    typer.Argument(
        metavar="CONVERSATION",
        help="Its id, or the beginning of it.",
        show_default=False,
        autocompletion=complete_conversation,
    ),
]
AgentName = Annotated[
    str | None, typer.Option("--agent", help="Only of this agent.", show_default=False, autocompletion=complete_agent)
]
Since = Annotated[str | None, typer.Option(help="Only of so long, such as 7d.", show_default=False)]
Last = Annotated[int, typer.Option(min=1, max=1000, help="How many.")]
Code = Annotated[
    str | None,
    typer.Option("--app", envvar="LIMPET_APP", help="MODULE:ATTRIBUTE, else [tool.limpet] app in pyproject.toml."),
]
OwnUrl = Annotated[
    str | None, typer.Option(envvar="LIMPET_URL", help="The store, if not the app's own.", show_default=False)
]
By = Annotated[str, typer.Option(help="Who decides.", default_factory=getpass.getuser, show_default="you")]


# What begins so was meant to be JSON.
BEGINNINGS = ("{", "[", '"')
SHOWN = 60


def input_of(text: str, what: str = "The input") -> Any:
    """JSON or else text; from a file with @FILE, from standard input with -."""
    if text == "-":
        return json_or_text(_decoded(sys.stdin.buffer.read(LARGEST + 1), what), what)
    if text.startswith("@"):
        with Path(text[1:]).open("rb") as file:
            return json_or_text(_decoded(file.read(LARGEST + 1), what), what)
    return json_or_text(text, what)


def json_or_text(text: str, what: str = "The value") -> Any:
    """JSON; what does not look like it is text."""
    try:
        return read_json(text, what)
    except InvalidValue as error:
        if len(text) > LARGEST or text.lstrip().startswith(BEGINNINGS):
            raise typer.BadParameter(f"{what} cannot be read: {error.reason}") from error
        return text


def json_object(text: str, what: str) -> dict[str, Any]:
    """A JSON object that was typed."""
    try:
        found = read_json(text, what)
    except InvalidValue as error:
        raise typer.BadParameter(f"{what} cannot be read: {error.reason}") from error
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{what} is no JSON object: {hide_secrets(text)[:SHOWN]!r}")
    return found


def pair_of(text: str) -> tuple[str, str]:
    """`name=value`."""
    name, found, value = text.partition("=")
    if not found or not name:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, value


def number_of(text: str) -> int:
    """The number of a step."""
    if not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is not the number of a step")
    return int(text)


def _decoded(data: bytes, what: str) -> str:
    try:
        return data.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{what} cannot be read: it is no UTF-8 text") from error
