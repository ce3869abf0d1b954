"""One command to many runs: those that are selected, or all that match a filter. A person confirms it first."""

from typing import Any, get_args
from urllib.parse import quote

from starlette.responses import Response

from limpet.errors import InvalidArgument
from limpet.service.batch_agent import BatchCommand
from limpet.web.ui.page_context import PageContext
from limpet.web.ui.run_list import FILTERS, STATUSES, filters_in

__all__ = ["confirm_all", "confirm_selected", "submit_batch"]

COMMANDS = get_args(BatchCommand)
# Filters that a batch has, beside the status.
MATCHED = ("agent", "session", "user", "text", "since")
# Prefix of the names of the checkboxes.
SELECTED = "run."


async def confirm_selected(page: PageContext) -> Response:
    """Ask whether the selected runs shall get a command."""
    runs = _selected(page)
    if not runs:
        raise InvalidArgument(path="runs", reason="none is selected", fix="Select some runs, or filter them.")
    return await _confirm(page, page.form.get("do", ""), runs=runs)


async def confirm_all(page: PageContext) -> Response:
    """Ask whether all runs that match the filters in the address shall get a command."""
    status, given = filters_in(page)
    more = [name for name in FILTERS if given[name] and name not in MATCHED]
    if more:
        raise InvalidArgument(path=more[0], reason="a batch has no such filter", fix="Select the runs one by one.")
    filters = {name: given[name] for name in MATCHED if given[name]}
    return await _confirm(page, page.request.query_params.get("do", ""), status=status, filters=filters)


async def _confirm(
    page: PageContext,
    command: str,
    *,
    runs: list[str] | None = None,
    status: list[str] | None = None,
    filters: dict[str, str] | None = None,
) -> Response:
    if command not in COMMANDS:
        raise InvalidArgument(path="do", reason=f"{command[:20]!r} is none of {', '.join(COMMANDS)}")
    return await page.page(
        "batch.html",
        here="runs",
        title=f"{command.capitalize()} runs",
        command=command,
        runs=runs or [],
        status=status or [],
        filters=filters or {},
    )


async def submit_batch(page: PageContext) -> Response:
    """Start the batch, and show it: it is a run, too."""
    form = page.form
    given: dict[str, Any] = {name: form.get(name, "") for name in MATCHED}
    given["status"] = [each for each in STATUSES if form.get(f"status.{each}") == "on"]
    started = await page.ask(
        "batch",
        command=form.get("do", ""),
        runs=_selected(page),
        reason=form.get("reason", "").strip(),
        id=form.get("id", ""),
        **given,
    )
    return page.redirect(f"/runs/{quote(started['id'], safe='')}")


def _selected(page: PageContext) -> list[str]:
    return [name.removeprefix(SELECTED) for name in page.form if name.startswith(SELECTED)]
