"""Commands that run processes: worker, HTTP server, MCP server; and `doctor`, which checks them and the store."""

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, cast, get_args

import msgspec
import typer

import limpet
from limpet.cli.command_group import command, example
from limpet.cli.dev import starters
from limpet.cli.lifeline import LIFELINE, hold_lifeline
from limpet.cli.load_app import (
    app_target,
    idle_app,
    load_worker,
    log_to_stderr,
    run_in_app,
    run_with_app,
    serve_until_stopped,
)
from limpet.cli.options import Json, OwnUrl, ages, new_token, own_name
from limpet.cli.output import TableLayout, print_json, print_table
from limpet.clock import SystemClock, microseconds
from limpet.compose import is_server
from limpet.engine.execution.principal import Principal, Role
from limpet.engine.worker.duties import Retention
from limpet.engine.worker.worker_settings import Worker
from limpet.errors import LimpetError, NotRemote
from limpet.service.app import App
from limpet.service.doctor import CheckOptions, check_code, run_checks
from limpet.service.findings import Finding
from limpet.service.page import Page
from limpet.service.tokens import TENANT, is_tenant

__all__: list[str] = []

Agents = Annotated[
    str | None,
    typer.Option(
        "--app", metavar="FILE|MODULE:ATTRIBUTE", help="App to load. Needed only if an agent builds its own context."
    ),
]


@command.command(epilog=example("limpet serve", "limpet serve --host 0.0.0.0 --allow-host runs.example.com"))
def serve(  # noqa: PLR0913 - all by name, and few at a time
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 8700,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Additional host name to accept, besides localhost. Repeatable."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Origin whose pages may call this server, with a token. Repeatable."),
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", envvar="LIMPET_PUBLIC_URL", help="Address of this server as callers see it, behind a proxy."
        ),
    ] = None,
    proxy: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="Proxy whose X-Forwarded headers are believed. Repeatable."),
    ] = None,
    tenant: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=URL", help="Store of another tenant; its tokens have this name. Repeatable."),
    ] = None,
    rate: Annotated[int, typer.Option(min=1, help="Requests a second of each caller.")] = 200,
    link_alone: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Person who approves by the link in a notice, without login. Repeatable."),
    ] = None,
    oidc: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Identity provider with which people log in, as TOML (docs/dashboard.md)."),
    ] = None,
    code: Agents = None,
    url: OwnUrl = None,
    json: Json = False,
) -> None:
    """Serve the HTTP API, with MCP at /mcp, until Ctrl-C.

    Clients authenticate with tokens that `limpet token create` makes, or with the token in LIMPET_TOKEN. If that is not
    set, Limpet creates a token and prints it. Traffic is not encrypted: on a shared network, put a TLS proxy in front.
    On a terminal, a link is printed that logs you in to the dashboard. Each request is logged to stderr.
    """
    known = os.environ.get("LIMPET_TOKEN", "").strip()
    if (pipe := os.environ.pop(LIFELINE, "")).isdecimal():  # `limpet dev` started this server
        hold_lifeline(int(pipe))
    token = known or new_token()

    def print_address(address: str) -> None:
        if json:
            made = {} if known else {"token": token}
            typer.echo(msgspec.json.encode({"url": address, "mcp": f"{address}/mcp", **made}).decode())
            return
        typer.echo(f"Serving on {address} (dashboard: {address}/ui, API: {address}/openapi.json, MCP: {address}/mcp)")
        if login is not None:
            typer.echo(f"log in, within ten minutes: {address}/ui/login?code={login}")
        if not known:
            typer.echo(f"token: {token} (valid until this server stops; set LIMPET_TOKEN to keep one)")

    apps = {TENANT: _read_only_app(code, url)}
    apps |= {name: _read_only_app(code, where) for name, where in _tenants(tenant or []).items()}
    login = _login_code(_read_only_app(code, url)) if sys.stdout.isatty() and not json else None
    log_to_stderr(json=json)
    logging.getLogger("mcp").setLevel(logging.WARNING)  # each request has a line already
    raise typer.Exit(
        starters["serve"](
            apps=apps,
            token=token,
            host=host,
            port=port,
            hosts=tuple(allow_host or ()),
            origins=tuple(allow_origin or ()),
            public_url=public_url,
            proxies=tuple(proxy or ()),
            rate=rate,
            link_alone=tuple(link_alone or ()),
            oidc=oidc,
            told=print_address,
        )
    )


def _login_code(app: App) -> str | None:
    """Return the code of a login link for the person at this terminal, who can read the store anyway."""

    async def make(opened: App) -> str:
        roles: list[Role] = ["operator", "approver", "auditor", "admin"]
        return (await opened.create_login(own_name() or "operator", roles=roles, expires="1d", by=own_name())).code

    try:
        return run_in_app(app, make)
    except LimpetError:
        return None  # the store can only be read, or is not there: serving says so


def _tenants(given: Sequence[str]) -> dict[str, str]:
    """Return the URLs of tenants by name."""
    found: dict[str, str] = {}
    for each in given:
        name, is_pair, where = each.partition("=")
        if not is_pair or not where or not is_tenant(name) or name in (TENANT, *found):
            raise typer.BadParameter(
                f"{each!r} is not NAME=URL with a new name of a-z, 0-9 and -", param_hint="--tenant"
            )
        found[name] = where
    return found


@command.command(epilog=example("limpet mcp", "limpet mcp --role operator --url postgresql://…"))
def mcp(
    role: Annotated[
        list[str] | None,
        typer.Option(help=f"Role of the client: {', '.join(get_args(Role))}. Repeatable. Default: viewer."),
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Group that you belong to, for requests. Repeatable.")
    ] = None,
    code: Agents = None,
    url: OwnUrl = None,
    json: Annotated[bool, typer.Option("--json", help="Print errors as JSON.")] = False,  # noqa: ARG001 - see `error_options`
) -> None:
    """Serve MCP over stdin and stdout, for a client that starts this command.

    The client is a viewer unless --role says more: it sees runs without their data, and no tool that changes one. An
    auditor reads all data, and an operator starts and controls runs. Only you approve, in a form of your client.
    """
    if unknown := [each for each in role or [] if each not in get_args(Role)]:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(get_args(Role))}", param_hint="--role")
    if sys.stdin.isatty():
        typer.echo(
            "Waiting for an MCP client on stdin. Configure a client to start this command (docs/serving.md).", err=True
        )
    app = _read_only_app(code, url)
    roles = cast("list[Role]", role or ["viewer"])
    local = Principal(name=own_name(), door="mcp", roles=tuple(roles), groups=tuple(group or ()))
    raise typer.Exit(starters["mcp"](app=app, local=local))


def _read_only_app(code: str | None, url: str | None) -> App:
    """Return the app to query: it executes no runs and creates no store. Raises NotRemote for another server."""
    if url is not None and is_server(url):
        raise NotRemote(what="serving another server")
    with redirect_stdout(sys.stderr):  # stdout is for replies; a module may print when it is imported
        app = limpet.open(url, worker=False) if code is None else idle_app(code, url)
    return app.replace(creates_store=False)


FINDINGS = TableLayout(narrow={"finding": 30}, left_out=(), wraps=("finding",))


@command.command(epilog=example("limpet worker support:app --concurrency 50"))
def worker(  # noqa: PLR0913 - all by name, and few at a time
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE|MODULE:ATTRIBUTE]",
            envvar="LIMPET_APP",
            help="File with an app or agents; or an app, agent or list of agents as MODULE:ATTRIBUTE. "
            "Default: [tool.limpet] app in pyproject.toml.",
            show_default=False,
        ),
    ] = None,
    *,
    url: Annotated[str | None, typer.Option(help="Store URL; overrides the app's own and LIMPET_URL.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Number of concurrent runs.")] = 100,
    lease: Annotated[
        str, typer.Option(help="Time without a renewal after which other workers take over its runs.")
    ] = "10s",
    grace: Annotated[str, typer.Option(help="Time that running effects get to finish on shutdown.")] = "10s",
    keep: Annotated[
        str | None, typer.Option(metavar="AGE", help="Delete runs this long after their end, such as 30d.")
    ] = None,
    keep_status: Annotated[
        list[str] | None,
        typer.Option(metavar="STATUS=AGE", help="Another age for a status, or `forever`. Repeatable."),
    ] = None,
    keep_agent: Annotated[
        list[str] | None, typer.Option(metavar="AGENT=AGE", help="Another age for an agent. Repeatable.")
    ] = None,
    archive: Annotated[Path | None, typer.Option(help="Folder to export each run to before deleting it.")] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE", help="Drive the runs of this engine: temporal://HOST:PORT/NAMESPACE, temporal, builtin."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Log one JSON object per line.")] = False,
) -> None:
    """Run a worker until SIGTERM or Ctrl-C.

    On the first signal, the worker stops claiming runs, lets running effects finish within the grace period, and
    releases its runs to other workers. A second signal stops it immediately.

    With --keep, the workers of a store delete runs that ended long ago, one worker at a time.

    With --engine temporal, the worker drives the runs that Temporal gives it, and no others. Its address is the one in
    LIMPET_ENGINE, else temporal://127.0.0.1:7233/default. Without --engine, the worker has the engine of the app, that
    in LIMPET_ENGINE, or `builtin`: it claims runs itself.
    """
    if keep is None and (keep_status or keep_agent or archive):
        raise typer.BadParameter("--keep-status, --keep-agent and --archive need --keep AGE")
    rule = keep and Retention(
        older_than=keep, by_status=ages(keep_status or []), by_agent=ages(keep_agent or []), archive=archive
    )
    settings = Worker(concurrency=concurrency, lease=lease, grace=grace, keep=rule or None, relaxed_gc=True)
    app = load_worker(app_target(target, ""), url, settings, engine)
    logging.getLogger("temporalio").setLevel(logging.WARNING)
    asyncio.run(serve_until_stopped(app, json=json))


@command.command(epilog=example("limpet doctor", "limpet doctor support:app --url sqlite:///limpet.db --fix"))
def doctor(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[FILE|MODULE:ATTRIBUTE]", help="Also check this app, agent or list of agents."),
    ] = None,
    *,
    fix: Annotated[bool, typer.Option("--fix", help="Rebuild rows and counters that do not match the logs.")] = False,
    last: Annotated[int, typer.Option(min=1, max=1000, help="Number of newest runs to compare with their logs.")] = 100,
    stuck: Annotated[str, typer.Option(help="Report runs that have been ready for longer than this.")] = "10m",
    url: OwnUrl = None,
    json: Json = False,
) -> None:
    """Check the store, its clock, stuck runs and workers, and suggest fixes.

    With an app, also list what its tools and agents leave open: timeouts, retries, deadlines, verify and compensate
    functions, each with the code to add.

    Exits with 1 if a check fails.
    """
    if url is not None and is_server(url):
        if fix:
            raise NotRemote(what="doctor --fix")
        app = None if target is None else idle_app(target, url)
        found = [*run_with_app(url, lambda remote: remote.doctor(last=last, stuck=stuck))]
    else:
        needed = target is None or url is not None
        app = None if target is None else load_worker(target, url, Worker())
        checked = limpet.open(url, worker=False) if app is None else app
        wanted = CheckOptions(
            last=last,
            stuck=microseconds(stuck),
            fix=fix,
            needed=needed,
            url=checked.address,
            engine=checked.engine,
        )
        found = asyncio.run(run_checks(checked.store, SystemClock(), wanted))
    if app is not None:
        found += check_code(app.serves)
    if json:
        print_json(Page(found))
    else:
        print_table([_line(each) for each in found], FINDINGS, none="")
    raise typer.Exit(any(each.level == "bad" for each in found))


def _line(found: Finding) -> dict[str, str]:
    return {"level": found.level, "what": found.what, "finding": str(found)}
