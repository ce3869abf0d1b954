"""The commands that need an app's code to work: a worker, and a look for what may hurt later."""

import asyncio
from typing import Annotated

import typer

from limpet.cli.door import command, example
from limpet.cli.health import without_risk
from limpet.cli.options import Json
from limpet.cli.output import print_json, print_text
from limpet.cli.working import serve, worker_of
from limpet.engine.duty import Worker

__all__: list[str] = []


@command.command(epilog=example("limpet worker support:app --concurrency 50"))
def worker(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:ATTRIBUTE", help="An app, an agent or a list of agents.", show_default=False),
    ],
    url: Annotated[str | None, typer.Option(help="The store, if not the app's own or LIMPET_URL.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="How many runs at once.")] = 100,
    lease: Annotated[str, typer.Option(help="How long its runs stay its own without a sign of life.")] = "10s",
    grace: Annotated[str, typer.Option(help="How long effects under way may take when it stops.")] = "10s",
    json: Annotated[bool, typer.Option("--json", help="Log an object on each line.")] = False,
) -> None:
    """Drive runs, until SIGTERM or Ctrl-C.

    Then effects under way finish within the grace, and the runs are given back; a second signal does not wait.
    """
    app = worker_of(target, url, Worker(concurrency=concurrency, lease=lease, grace=grace))
    asyncio.run(serve(app, json=json))


@command.command(epilog=example("limpet doctor support:app"))
def doctor(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:ATTRIBUTE", help="An app, an agent or a list of agents.", show_default=False),
    ],
    json: Json = False,
) -> None:
    """Look for what may hurt later: effects that no person is ever asked about. Ends with 1 if there is any."""
    worker_of(target, None, Worker())
    found = list(without_risk())
    if json:
        print_json(found)
    else:
        cure = "cure: say risk= on the tool, and approvals= on the agent"
        print_text("\n".join([*found, cure]) if found else "all is well")
    raise typer.Exit(bool(found))
