"""Command `audit`: list the audit log, or export it."""

from pathlib import Path
from typing import Annotated

import typer

from limpet.cli.command_group import command, example
from limpet.cli.load_app import run_with_app, run_with_time
from limpet.cli.options import STORE, Cursor, Json, Since, Url, own_name
from limpet.cli.output import TableLayout, about, bar, print_json, print_table, print_text
from limpet.service.app import App
from limpet.service.audit import AuditInfo
from limpet.service.page import Page

__all__: list[str] = []

LAYOUT = TableLayout(narrow={"subject": 12, "who": 8, "from": 8}, left_out=("from", "door", "age"))


@command.command(
    rich_help_panel="Audit",
    epilog=example("limpet audit --who ann --since 7d", "limpet audit --export audit.jsonl"),
)
def audit(  # noqa: PLR0913 - all by name, and few at a time
    *,
    who: Annotated[str | None, typer.Option(help="Only this caller.", show_default=False)] = None,
    action: Annotated[
        str | None, typer.Option(help="Only this operation or action, such as token.created.", show_default=False)
    ] = None,
    outcome: Annotated[
        str | None, typer.Option(help="Only `done`, or an error code such as not_permitted.", show_default=False)
    ] = None,
    since: Since = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of events.")] = 50,
    cursor: Cursor = None,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the whole audit log to a file, as JSON lines.", show_default=False),
    ] = None,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """List what callers did, and what they were refused, the newest first. With --export, write all of it to a file.

    `limpet verify FILE` checks the hashes in an exported file.
    """
    if export is not None:
        if any(each is not None for each in (who, action, outcome, since, cursor)):
            raise typer.BadParameter("--export writes the whole log; pass no filter")
        _export(export, url, json)
        return

    async def look(app: App) -> Page[AuditInfo]:
        return await app.audit(who=who, action=action, outcome=outcome, since=since, limit=limit, cursor=cursor)

    found, now = run_with_time(url, look)
    if json:
        print_json(found)
        return
    rows = [
        {
            "age": about(now - each.time),
            "who": each.who,
            "door": each.door,
            "from": each.address,
            "action": each.action if each.count == 1 else f"{each.action} ×{each.count}",
            "subject": each.subject,
            "outcome": each.outcome,
        }
        for each in found
    ]
    print_table(rows, LAYOUT, none="No audit events.")
    if found.next is not None:
        print_text(f"more: --cursor {found.next}")


def _export(path: Path, url: str, json: bool) -> None:
    async def write(app: App) -> int:
        with bar("audit"):
            return await app.export_audit(path, by=own_name())

    events = run_with_app(url, write)
    print_json({"path": str(path), "events": events}) if json else print_text(f"Exported {events} events to {path}.")
