"""The commands that open other doors: over HTTP, and for agents over MCP. Nothing can be changed through them."""

import os
import sys
from contextlib import redirect_stdout
from typing import Annotated

import msgspec
import typer

import limpet
from limpet.cli.commands import command, example
from limpet.cli.dev import starters
from limpet.cli.load_app import idle_app
from limpet.cli.options import Json, OwnUrl
from limpet.clock import SystemClock
from limpet.ids import RandomIds
from limpet.service import App

__all__: list[str] = []

BITS = 256
Agents = Annotated[
    str | None, typer.Option("--app", metavar="MODULE:ATTRIBUTE", help="The code, if agents choose what models see.")
]


@command.command(epilog=example("limpet serve", "limpet serve --host 0.0.0.0 --allow-host runs.example.com"))
def serve(
    *,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8700,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A name that this server has, beside localhost.")
    ] = None,
    code: Agents = None,
    url: OwnUrl = None,
    json: Json = False,
) -> None:
    """Answer questions about runs over HTTP, and over MCP at /mcp, until Ctrl-C; nothing can be changed through it.

    Whoever asks needs the token: that in LIMPET_TOKEN, else one that is made now and printed. There is no encryption:
    where others can listen, put a proxy with TLS before it.
    """
    known = os.environ.get("LIMPET_TOKEN", "").strip()
    token = known or f"limpet_{RandomIds(SystemClock()).bits(BITS):0{BITS // 4}x}"

    def told(address: str) -> None:
        if json:
            made = {} if known else {"token": token}
            typer.echo(msgspec.json.encode({"url": address, "mcp": f"{address}/mcp", **made}).decode())
            return
        typer.echo(f"{address} answers; {address}/openapi.json says what, {address}/mcp is for agents")
        if not known:
            typer.echo(f"token: {token} (until this ends; LIMPET_TOKEN keeps one)")

    names = tuple(allow_host or ())
    raise typer.Exit(
        starters["serve"](app=_looking(code, url), token=token, host=host, port=port, hosts=names, told=told)
    )


@command.command(epilog=example("limpet mcp", "limpet mcp --url postgresql://…"))
def mcp(
    code: Agents = None,
    url: OwnUrl = None,
    json: Annotated[bool, typer.Option("--json", help="Errors as JSON.")] = False,  # noqa: ARG001 - see `listening`
) -> None:
    """Answer questions about runs for an agent that starts this as an MCP server; nothing can be changed through it."""
    if sys.stdin.isatty():
        typer.echo("waiting for an MCP client on standard input: name this command to one (docs/serving.md)", err=True)
    raise typer.Exit(starters["mcp"](app=_looking(code, url)))


def _looking(code: str | None, url: str | None) -> App:
    """The app that is asked: it drives nothing, and makes no store."""
    with redirect_stdout(sys.stderr):  # what a module says when it is loaded is no answer
        app = limpet.open(url, worker=False) if code is None else idle_app(code, url)
    return app.but(makes=False)
