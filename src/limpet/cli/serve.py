"""The commands that open other doors: over HTTP, and for agents over MCP. Nothing can be changed through them."""

import asyncio
import os
import sys
from contextlib import redirect_stdout
from typing import Annotated

import msgspec
import typer

import limpet
from limpet.cli.commands import command, example
from limpet.cli.dev import starters
from limpet.cli.load_app import app_target, idle_app, load_worker, serve_until_stopped
from limpet.cli.options import Json, OwnUrl
from limpet.cli.output import TableLayout, print_json, print_table
from limpet.clock import SystemClock, microseconds
from limpet.engine.worker.worker import Worker
from limpet.ids import RandomIds
from limpet.service import App
from limpet.service.doctor import CheckOptions, Finding, run_checks, without_risk

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
    return app.replace(creates_store=False)


FINDINGS = TableLayout(narrow={"finding": 30}, left_out=(), wraps=("finding",))


@command.command(epilog=example("limpet worker support:app --concurrency 50"))
def worker(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:ATTRIBUTE]",
            envvar="LIMPET_APP",
            help="An app, an agent or a list of agents, else [tool.limpet] app in pyproject.toml.",
            show_default=False,
        ),
    ] = None,
    url: Annotated[str | None, typer.Option(help="The store, if not the app's own or LIMPET_URL.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="How many runs at once.")] = 100,
    lease: Annotated[str, typer.Option(help="How long its runs stay its own without a sign of life.")] = "10s",
    grace: Annotated[str, typer.Option(help="How long effects under way may take when it stops.")] = "10s",
    json: Annotated[bool, typer.Option("--json", help="Log an object on each line.")] = False,
) -> None:
    """Drive runs, until SIGTERM or Ctrl-C.

    Then effects under way finish within the grace, and the runs are given back; a second signal does not wait.
    """
    app = load_worker(app_target(target, ""), url, Worker(concurrency=concurrency, lease=lease, grace=grace))
    asyncio.run(serve_until_stopped(app, json=json))


@command.command(epilog=example("limpet doctor", "limpet doctor support:app --url sqlite:///limpet.db --fix"))
def doctor(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:ATTRIBUTE]", help="Look at the code, too: an app, an agent or a list of agents."
        ),
    ] = None,
    *,
    fix: Annotated[bool, typer.Option("--fix", help="Make rows and counters anew that do not fit the logs.")] = False,
    last: Annotated[
        int, typer.Option(min=1, max=1000, help="How many of the newest runs are held against their logs.")
    ] = 100,
    stuck: Annotated[str, typer.Option(help="How long a run may be ready before it is stuck.")] = "10m",
    url: OwnUrl = None,
    json: Json = False,
) -> None:
    """Look for what hurts, or may: the store, its clock, runs that are stuck, who serves what; and say the cure.

    Ends with 1 if anything is bad.
    """
    needed = target is None or url is not None
    wanted = CheckOptions(last=last, stuck=microseconds(stuck), fix=fix, needed=needed)
    store = limpet.open_store(url) if target is None else load_worker(target, url, Worker()).store
    found = asyncio.run(run_checks(store, SystemClock(), wanted))
    if target is not None:
        found += [*without_risk()] or [Finding(what="tools", level="ok", message="all effects declare a risk")]
    if json:
        print_json(found)
    else:
        print_table([_line(each) for each in found], FINDINGS, none="")
    raise typer.Exit(any(each.level == "bad" for each in found))


def _line(found: Finding) -> dict[str, str]:
    return {"level": found.level, "what": found.what, "finding": str(found)}
