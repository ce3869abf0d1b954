"""Command `scores`: list the scores of runs and steps, or print them as a dataset."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Annotated

import typer

from limpet.cli.command_group import command, example
from limpet.cli.load_app import run_with_app, run_with_time
from limpet.cli.options import STORE, AgentName, Cursor, Json, Last, Since, Url, complete_run
from limpet.cli.output import TableLayout, about, clean, print_json, print_line, print_table, print_text
from limpet.cli.watch import while_read
from limpet.service.app import App
from limpet.service.page import Page
from limpet.service.scores import ScoreInfo, value_text

__all__: list[str] = []

LAYOUT = TableLayout(narrow={"comment": 12, "run": 8, "by": 6}, left_out=("agent", "age"))
# Number of scores that are read at a time for a dataset.
PAGE = 100


@command.command(
    rich_help_panel="Score runs",
    epilog=example("limpet scores --name quality --since 7d", "limpet scores --dataset > scores.jsonl"),
)
def scores(  # noqa: PLR0913 - all by name, and few at a time
    *,
    run: Annotated[
        str | None,
        typer.Option(help="Only this run. A unique prefix is enough.", autocompletion=complete_run, show_default=False),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Only scores of this name.", show_default=False)] = None,
    who: Annotated[str | None, typer.Option(help="Only scores by this person or service.", show_default=False)] = None,
    agent: AgentName = None,
    since: Since = None,
    dataset: Annotated[
        bool,
        typer.Option("--dataset", help="Print all of them as JSON lines, with the input and output of run or step."),
    ] = False,
    last: Last = 20,
    cursor: Cursor = None,
    url: Url = STORE,
    json: Json = False,
) -> None:
    """List the scores of runs and steps, the newest first. With --dataset, print one JSON line for each."""

    async def look(app: App, cursor: str | None = cursor, last: int = last) -> Page[ScoreInfo]:
        id = None if run is None else await app.find("run", run)
        return await app.scores(
            run=id, name=name, who=who, agent=agent, since=since, dataset=dataset, last=last, cursor=cursor
        )

    if dataset:
        run_with_app(url, lambda app: while_read(_print_lines(partial(look, app, last=PAGE), cursor)))
        return
    found, now = run_with_time(url, look)
    if json:
        print_json(found)
        return
    print_table([_row(each, now) for each in found], LAYOUT, none="No scores.")
    if found.next is not None:
        print_text(f"more: --cursor {found.next}")


async def _print_lines(read: Callable[[str | None], Awaitable[Page[ScoreInfo]]], cursor: str | None) -> None:
    page = Page[ScoreInfo](next=cursor)
    while True:
        page = await read(page.next)
        for each in page:
            print_line(each)
        if page.next is None:
            return


def _row(score: ScoreInfo, now: datetime) -> dict[str, str]:
    return {
        "run": score.run,
        "agent": score.agent,
        "step": str(score.step or ""),
        "name": clean(score.name),
        "value": "" if score.value is None else clean(value_text(score.value)),
        "by": clean(score.by),
        "age": about(now - score.time),
        "comment": clean(score.comment),
    }
