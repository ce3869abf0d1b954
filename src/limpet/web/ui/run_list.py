"""The list of runs: filters in the address, counts by status, how the newest runs went, and runs to select."""

from collections.abc import Mapping
from typing import Any, get_args

from starlette.responses import Response

from limpet.engine.execution.views import Status
from limpet.web.ui.page_context import PageContext
from limpet.web.ui.plots import plots_of

__all__ = ["FILTERS", "STATUSES", "filters_in", "runs_page", "with_shown"]

ON_A_PAGE = 50
STATUSES = get_args(Status)
# Filters of the list that are texts.
FILTERS = ("agent", "session", "user", "text", "waits_for", "parent", "fork_of", "conversation", "scored", "since")


async def runs_page(page: PageContext) -> Response:
    """List the runs that match the filters in the address. A person who only decides is shown the inbox."""
    if not page.may("look"):
        return page.redirect("/inbox")
    status, given = filters_in(page)
    cursor = page.request.query_params.get("cursor")
    found = await page.ask("runs", status=status, sort="updated", last=ON_A_PAGE, cursor=cursor, **given)
    stats, now = await page.ask("stats"), await page.app.now()
    return await page.page(
        "runs.html",
        here="runs",
        title="Runs",
        runs=[with_shown(each) for each in found["items"]],
        next=found["next"],
        counts={each: stats["runs"].get(each, 0) for each in STATUSES},
        status=status,
        filters=given,
        cursor=cursor,
        agents=sorted(stats["agents"]),
        plots=plots_of(await page.ask("activity", agent=given["agent"]), now),
    )


def filters_in(page: PageContext) -> tuple[list[str], dict[str, str]]:
    """Return the statuses and the other filters in the address."""
    query = page.request.query_params
    status = [each for each in query.getlist("status") if each in STATUSES]
    return status, {name: query.get(name, "") for name in FILTERS}


def with_shown(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run with what its row shows beyond the API: a bar, and what it waits for."""
    return {**run, "shown": _shown_status(run), "bar": _bar(run["position"])}


def _shown_status(run: Mapping[str, Any]) -> str:
    """Return the status that matters: a run that an operator must look at is not just waiting."""
    keys = [each["key"] for each in run["waits_for"] if each["what"] == "operator"]
    return keys[0] if keys and keys[0] in ("quarantined", "diverged", "paused") else str(run["status"])


def _bar(position: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return how far a run is, and how far it goes, if that is known."""
    if position["steps"]:
        return min(position["step"], position["steps"]), position["steps"]
    return (position["item"], position["items"]) if position["items"] and position["item"] is not None else None
