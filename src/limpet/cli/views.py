"""Commands that look, and change nothing."""

from typing import Annotated

import typer

from limpet.cli.commands import command, example
from limpet.cli.connect import ask, ask_when
from limpet.cli.options import STORE, AgentName, Json, Last, RunId, Url
from limpet.cli.output import print_json, print_text
from limpet.cli.pages import print_runs
from limpet.cli.report import print_report
from limpet.cli.watch import print_log, watch, while_read
from limpet.engine.execution.views import Status
from limpet.service import App
from limpet.service.moments import Comparison, Diff, Moment
from limpet.service.report import Report
from limpet.service.report import report as report_on
from limpet.service.resolve import find_run

__all__: list[str] = []


@command.command(epilog=example("limpet runs --failed --last 5", "limpet runs --watch"))
def runs(  # noqa: PLR0913 - all by name, and few at a time
    *,
    status: Annotated[Status | None, typer.Option(help="Only these.", show_default=False)] = None,
    agent: AgentName = None,
    failed: Annotated[bool, typer.Option("--failed", help="The same as --status failed.")] = False,
    waiting: Annotated[bool, typer.Option("--waiting", help="The same as --status waiting.")] = False,
    last: Last = 20,
    live: Annotated[bool, typer.Option("--watch", help="Stay, and show what changes, until Ctrl-C.")] = False,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """List the newest runs."""
    wanted = {each for each in (status, "failed" if failed else None, "waiting" if waiting else None) if each}
    if len(wanted) > 1:
        raise typer.BadParameter(f"a run is not {' and '.join(sorted(wanted))} at once")
    only = next(iter(wanted), None)
    if live:
        ask(url, lambda app: while_read(watch(app, status=only, agent=agent, last=last, json=json)))
        return

    found, now = ask_when(url, lambda app: app.runs(status=only, agent=agent, last=last))
    print_json(found) if json else print_runs(found, now)


@command.command(epilog=example("limpet show ticket-42"))
def show(run: RunId, url: Url = STORE, json: Json = False) -> None:
    """Show a run on one page, and what to type next."""

    async def look(app: App) -> Report:
        return await report_on(app, (await find_run(app.store, run)).id)

    found, now = ask_when(url, look)
    print_json(found) if json else print_report(found, now)


@command.command(epilog=example("limpet log ticket-42 --follow", "limpet log ticket-42 --json | jq .kind"))
def log(
    run: RunId,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stay until the run has ended.")] = False,
    after: Annotated[int, typer.Option(min=0, help="Only what came after this event.")] = 0,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Print what happened to a run, event by event; with --json, an object on each line."""

    async def look(app: App) -> None:
        found = (await find_run(app.store, run)).id
        await while_read(print_log(app.events(found, after, follow=follow), json=json))

    ask(url, look)


@command.command(epilog=example("limpet state ticket-42 --before 6"))
def state(
    run: RunId,
    *,
    before: Annotated[int | None, typer.Option(help="Just before this step.")] = None,
    after: Annotated[int | None, typer.Option(help="As soon as this step had its result.")] = None,
    seq: Annotated[int | None, typer.Option(help="After this event.")] = None,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Show what a run knew: before or after a step, after an event, or now."""

    async def look(app: App) -> Moment:
        found = (await find_run(app.store, run)).id
        return await app.state(found, before=before, after=after, seq=seq)

    found = ask(url, look)
    print_json(found) if json else print_text(str(found))


@command.command(epilog=example("limpet diff ticket-42 6"))
def diff(
    run: RunId,
    step: Annotated[int, typer.Argument(metavar="STEP", help="Its number.", show_default=False)],
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Show what a step changed in what a run knows."""

    async def look(app: App) -> Diff:
        return await app.diff((await find_run(app.store, run)).id, step=step)

    found = ask(url, look)
    print_json(found) if json else print_text(str(found))


@command.command(epilog=example("limpet compare ticket-42 ticket-42.1"))
def compare(one: RunId, other: RunId, url: Url = STORE, json: Json = False) -> None:
    """Show where two runs went apart, and how they differ."""

    async def look(app: App) -> Comparison:
        first, second = [(await find_run(app.store, each)).id for each in (one, other)]
        return await app.compare(first, second)

    found = ask(url, look)
    print_json(found) if json else print_text(str(found))
