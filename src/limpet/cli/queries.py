"""Commands with live views: the list of runs, and the log of a run."""

from typing import Annotated, Literal, get_args

import typer

from limpet.cli.command_group import command, example
from limpet.cli.load_app import run_with_app, run_with_time
from limpet.cli.options import STORE, AgentName, Cursor, Json, Last, RunId, Url, complete_conversation, complete_run
from limpet.cli.output import print_json, print_text
from limpet.cli.pages import print_runs
from limpet.cli.watch import print_log, watch, while_read
from limpet.engine.execution.views import RunInfo, Status, WaitKind
from limpet.service.app import App
from limpet.service.page import Page

__all__: list[str] = []

STATUSES = get_args(Status)


@command.command(epilog=example("limpet runs --failed --last 5", "limpet runs --watch"))
def runs(  # noqa: PLR0913 - all by name, and few at a time
    *,
    status: Annotated[
        list[str] | None,
        typer.Option(
            metavar=f"[{'|'.join(STATUSES)}]",
            help="Only runs with this status. Repeatable.",
            autocompletion=lambda: STATUSES,
            show_default=False,
        ),
    ] = None,
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
    parent: Annotated[
        str | None,
        typer.Option(help="Only runs that this run called.", autocompletion=complete_run, show_default=False),
    ] = None,
    fork_of: Annotated[
        str | None, typer.Option(help="Only forks of this run.", autocompletion=complete_run, show_default=False)
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Only runs with this label. Repeatable.", show_default=False),
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="Text in the id, agent, goal or a label's value.", show_default=False)
    ] = None,
    scored: Annotated[
        str | None,
        typer.Option(help="Only runs with such a score: quality, quality<0.5, correct=false.", show_default=False),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Created since then: 7d before now, or a time.", show_default=False)
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Created before then: 1d before now, or a time.", show_default=False)
    ] = None,
    sort: Annotated[
        Literal["created", "updated"], typer.Option(help="Time that orders the list, the newest first.")
    ] = "created",
    failed: Annotated[bool, typer.Option("--failed", help="Same as --status failed.")] = False,
    waiting: Annotated[bool, typer.Option("--waiting", help="Same as --status waiting.")] = False,
    last: Last = 20,
    cursor: Cursor = None,
    live: Annotated[bool, typer.Option("--watch", help="Keep showing changes until Ctrl-C.")] = False,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """List the newest runs."""
    shorthands = {"failed": failed, "waiting": waiting}
    statuses = [*(status or ()), *(name for name, is_wanted in shorthands.items() if is_wanted)]
    for each in statuses:
        if each not in STATUSES:
            raise typer.BadParameter(f"{each!r} is not one of {', '.join(STATUSES)}.", param_hint="'--status'")

    async def list_runs(app: App) -> Page[RunInfo]:
        talk = None if conversation is None else await app.find("conversation", conversation)
        return await app.runs(
            status=statuses,
            waits_for=waits_for,
            agent=agent,
            session=session,
            user=user,
            conversation=talk,
            parent=parent if parent is None else await app.find("run", parent),
            fork_of=fork_of if fork_of is None else await app.find("run", fork_of),
            labels=label or (),
            text=text,
            scored=scored,
            since=since,
            until=until,
            sort=sort,
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
        found = await app.find("run", run)
        await while_read(print_log(app.events(found, after, follow=follow), json=json))

    run_with_app(url, look)
