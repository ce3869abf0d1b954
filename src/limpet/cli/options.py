"""Options and arguments that many commands share: their types, completion, and parsing of values."""

import asyncio
import getpass
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import limpet
from limpet.clock import SystemClock
from limpet.compose import DEFAULT_URL
from limpet.errors import InvalidValue, LimpetError
from limpet.ids import RandomIds
from limpet.redaction import hide_secrets
from limpet.service.app import App
from limpet.service.json_body import LARGEST, read_json

__all__ = [
    "BY",
    "STORE",
    "AgentName",
    "By",
    "Code",
    "CommandId",
    "ConversationId",
    "Cursor",
    "Json",
    "Last",
    "NoBrowser",
    "OwnUrl",
    "RequestId",
    "RunId",
    "Since",
    "Url",
    "ages",
    "complete_agent",
    "complete_conversation",
    "complete_request",
    "complete_run",
    "input_of",
    "json_object",
    "json_or_text",
    "new_token",
    "number_of",
    "own_name",
    "pair_of",
    "sender",
    "text_of",
]

# Bits of a token.
BITS = 256
# Seconds to wait for completions before giving up.
PATIENCE = 1.0
MOST = 100


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the id of one of the newest runs."""

    async def look(app: App) -> list[str]:
        return [each.id for each in await app.runs(last=MOST)]

    return _offered(ctx, incomplete, look)


def complete_request(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the id of an open request."""

    async def look(app: App) -> list[str]:
        return [each.id for each in await app.inbox(limit=MOST)]

    return _offered(ctx, incomplete, look)


def complete_conversation(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the id of one of the newest conversations."""

    async def look(app: App) -> list[str]:
        return [each.id for each in await app.conversations()]

    return _offered(ctx, incomplete, look)


def complete_agent(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of an agent."""

    async def look(app: App) -> list[str]:
        return sorted({agent.name for agent in await app.agents()})

    return _offered(ctx, incomplete, look)


def _offered(ctx: Any, incomplete: str, look: Callable[[App], Awaitable[list[str]]]) -> list[str]:
    url = ctx.params.get("url") or os.environ.get("LIMPET_URL")
    os.environ["LIMPET_PATIENCE"] = f"{PATIENCE}s"  # this process only completes

    async def ask() -> list[str]:
        async with limpet.open(url, worker=False).replace(creates_store=False) as app:
            return await look(app)

    async def in_time() -> list[str]:
        return await asyncio.wait_for(ask(), PATIENCE)

    try:
        return [each for each in asyncio.run(in_time()) if each.startswith(incomplete)]
    except (LimpetError, OSError, TimeoutError):
        return []  # the shell owns the line, so an error cannot be shown


STORE = DEFAULT_URL
Url = Annotated[
    str,
    typer.Option(
        envvar="LIMPET_URL",
        help="Store URL: sqlite:///file.db or postgresql://…, or https://… of a server, with LIMPET_TOKEN.",
    ),
]
CommandId = Annotated[
    str | None,
    typer.Option(
        help="Your id of this command. Repeating it with the same content has no further effect.", show_default=False
    ),
]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Only print the link, and open no browser.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, including errors.")]
RunId = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Run id, or a unique prefix.", show_default=False, autocompletion=complete_run),
]
RequestId = Annotated[
    str,
    typer.Argument(
        metavar="REQUEST",
        help="Request id from `limpet inbox`, or a unique prefix.",
        show_default=False,
        autocompletion=complete_request,
    ),
]
ConversationId = Annotated[
    str,
    typer.Argument(
        metavar="CONVERSATION",
        help="Conversation id, or a unique prefix.",
        show_default=False,
        autocompletion=complete_conversation,
    ),
]
AgentName = Annotated[
    str | None,
    typer.Option("--agent", help="Only runs of this agent.", show_default=False, autocompletion=complete_agent),
]
Since = Annotated[str | None, typer.Option(help="Only the last period, such as 7d.", show_default=False)]
Last = Annotated[int, typer.Option(min=1, max=1000, help="Maximum number; the newest are shown.")]
Cursor = Annotated[str | None, typer.Option(help="Where to read on: `next` of the page before.", show_default=False)]
Code = Annotated[
    str | None,
    typer.Option(
        "--app",
        envvar="LIMPET_APP",
        help="App to load, as MODULE:ATTRIBUTE or a file. Default: [tool.limpet] app in pyproject.toml.",
    ),
]
OwnUrl = Annotated[
    str | None, typer.Option(envvar="LIMPET_URL", help="Store URL; overrides the app's own.", show_default=False)
]


def own_name() -> str:
    """Return the name of the user who types the command; "" if the system has none, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


BY = typer.Option(help="Who sends it, which is recorded.", default_factory=lambda: None, show_default="you")
By = Annotated[str | None, BY]


async def sender(app: App, by: str | None) -> str:
    """Return who sends a command: the given name, else the owner of the token, else the user who types."""
    return by or (await app.whoami()).name or own_name()


# Text that starts like this was meant as JSON, so a syntax error is reported instead of taking it as text.
BEGINNINGS = ("{", "[", '"')
SHOWN = 60


def input_of(text: str, what: str = "The input") -> Any:
    """Parse a value as JSON, or take it as text; @FILE reads a file, - reads stdin."""
    return json_or_text(text_of(text, what), what)


def text_of(text: str, what: str) -> str:
    """Return an argument as text; @FILE reads a file, - reads stdin."""
    if text == "-":
        return _decoded(sys.stdin.buffer.read(LARGEST + 1), what)
    if text.startswith("@"):
        with Path(text[1:]).open("rb") as file:
            return _decoded(file.read(LARGEST + 1), what)
    return text


def json_or_text(text: str, what: str = "The value") -> Any:
    """Parse a value as JSON, or take it as text if it does not look like JSON."""
    try:
        return read_json(text, what)
    except InvalidValue as error:
        if len(text) > LARGEST or text.lstrip().startswith(BEGINNINGS):
            raise typer.BadParameter(f"{what} is invalid: {error.reason}") from error
        return text


def json_object(text: str, what: str) -> dict[str, Any]:
    """Parse a JSON object."""
    try:
        found = read_json(text, what)
    except InvalidValue as error:
        raise typer.BadParameter(f"{what} is invalid: {error.reason}") from error
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{what} is not a JSON object: {hide_secrets(text)[:SHOWN]!r}")
    return found


def pair_of(text: str) -> tuple[str, str]:
    """Split `name=value`."""
    name, found, value = text.partition("=")
    if not found or not name:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, value


def number_of(text: str) -> int:
    """Parse the number of a step."""
    if not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is not a step number")
    return int(text)


def _decoded(data: bytes, what: str) -> str:
    try:
        return data.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{what} is not UTF-8 text") from error


def ages(given: list[str]) -> dict[str, str | None]:
    """Parse options NAME=AGE; the age `forever` is None."""
    return {name: None if age == "forever" else age for name, age in map(pair_of, given)}


def new_token() -> str:
    """Return a token of a server that lives as long as its process."""
    return f"limpet_{RandomIds(SystemClock()).bits(BITS):0{BITS // 4}x}"
