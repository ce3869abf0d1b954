"""The commands for whoever runs Limpet: a worker, and a look for what hurts or may."""

import asyncio
from typing import Annotated

import typer

import limpet
from limpet.cli.commands import command, example
from limpet.cli.load_app import code_of, serve, worker_of
from limpet.cli.options import Json, OwnUrl
from limpet.cli.output import print_json
from limpet.cli.tables import Shape, print_table
from limpet.clock import SystemClock, microseconds
from limpet.engine.worker.worker import Worker
from limpet.service.doctor import Examination, Finding, examine, without_risk

__all__: list[str] = []

FINDINGS = Shape(narrow={"says": 30}, left_out=(), wraps=("says",))


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
    app = worker_of(code_of(target, ""), url, Worker(concurrency=concurrency, lease=lease, grace=grace))
    asyncio.run(serve(app, json=json))


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
    wanted = Examination(last=last, stuck=microseconds(stuck), fix=fix, needed=needed)
    store = limpet.open_store(url) if target is None else worker_of(target, url, Worker()).store
    found = asyncio.run(examine(store, SystemClock(), wanted))
    if target is not None:
        found += [*without_risk()] or [Finding(what="tools", level="ok", says="all effects say their risk")]
    if json:
        print_json(found)
    else:
        print_table([_line(each) for each in found], FINDINGS, none="")
    raise typer.Exit(any(each.level == "bad" for each in found))


def _line(found: Finding) -> dict[str, str]:
    return {"level": found.level, "what": found.what, "says": str(found)}
