"""Commands with live views: the list of runs, and the log of a run."""

from typing import Annotated

import typer

from limpet.cli.command_group import command, example
from limpet.cli.load_app import run_with_app, run_with_time
from limpet.cli.options import STORE, AgentName, Cursor, Json, Last, RunId, Url, complete_conversation
from limpet.cli.output import print_json, print_text
from limpet.cli.pages import print_runs
from limpet.cli.watch import print_log, watch, while_read
from limpet.engine.execution.views import RunInfo, Status, WaitKind
from limpet.service.app import App
from limpet.service.page import Page
from limpet.service.resolve import find_conversation, find_run

__all__: list[str] = []


@command.command(epilog=example("limpet runs --failed --last 5", "limpet runs --watch"))
def runs(  # noqa: PLR0913 - all by name, and few at a time
    *,
    status: Annotated[Status | None, typer.Option(help="Only runs with this status.", show_default=False)] = None,
    waits_for: Annotated[
        WaitKind | None, typer.Option(help="Only runs that wait for this.", show_default=False)
    ] = None,
    agent: AgentName = None,
    session: Annotated[str | None, typer.Option(help="Only this session.", show_default=False)] = None,
    user: Annotated[str | None, typer.Option(help="Only this user.", show_default=False)] = None,
    conversation: Annotated[
        str | None,
        typer.Option(
            help="Only this conversation. A unique prefix is enough.",
            autocompletion=complete_conversation,
            show_default=False,
        ),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Same as --status failed.")] = False,
    waiting: Annotated[bool, typer.Option("--waiting", help="Same as --status waiting.")] = False,
    last: Last = 20,
    cursor: Cursor = None,
    live: Annotated[bool, typer.Option("--watch", help="Keep showing changes until Ctrl-C.")] = False,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """List the newest runs."""
    wanted = {each for each in (status, "failed" if failed else None, "waiting" if waiting else None) if each}
    if len(wanted) > 1:
        raise typer.BadParameter(f"pass only one of {' and '.join(sorted(wanted))}")
    only: Status | None = next(iter(wanted), None)

    async def list_runs(app: App) -> Page[RunInfo]:
        talk = None if conversation is None else await find_conversation(app.store, conversation)
        return await app.runs(
            status=only,
            waits_for=waits_for,
            agent=agent,
            session=session,
            user=user,
            conversation=talk,
            last=last,
            cursor=cursor,
        )

    if live:
        run_with_app(url, lambda app: while_read(watch(app, lambda: list_runs(app), json=json)))
        return

    found, now = run_with_time(url, list_runs)
    if json:
        print_json(found)
        return
    print_runs(found, now)
    if found.next is not None:
        print_text(f"more: --cursor {found.next}")


@command.command(epilog=example("limpet log ticket-42 --follow", "limpet log ticket-42 --json | jq .kind"))
def log(
    run: RunId,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the run has ended.")] = False,
    after: Annotated[int, typer.Option(min=0, help="Only events after this sequence number.")] = 0,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """Print the events of a run; with --json, one object per line."""

    async def look(app: App) -> None:
        found = (await find_run(app.store, run)).id
        await while_read(print_log(app.events(found, after, follow=follow), json=json))

    run_with_app(url, look)
