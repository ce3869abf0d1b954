"""The operators' page: runs that need an operator, agents without a worker, failures, and the workers."""

from typing import Any

from starlette.responses import Response

from limpet.web.ui.page_context import PageContext
from limpet.web.ui.run_pages import with_shown

__all__ = ["operations_page"]

# Runs of each kind that are shown.
SHOWN = 20


async def operations_page(page: PageContext) -> Response:
    """Show what needs an operator, each with its fix."""
    stats = await page.ask("stats")
    waiting = await page.ask("runs", status=["waiting"], waits_for="operator", last=SHOWN)
    failed = await page.ask("runs", status=["failed"], sort="updated", last=SHOWN)
    workers = await page.ask("workers")
    return await page.page(
        "operations.html",
        here="operations",
        title="Operations",
        waiting=[await _with_reason(page, run) for run in waiting["items"]],
        unserved=stats["unserved"],
        failed=failed["items"],
        workers=[{**each, "serves": _served(each["agents"])} for each in workers["items"]],
    )


async def _with_reason(page: PageContext, run: dict[str, Any]) -> dict[str, Any]:
    """Return a run with why it waits, if the person may see that."""
    why = (await page.ask("show", run=run["id"]))["why"] if page.may("payloads") else None
    return {"run": with_shown(run), "why": why}


def _served(agents: dict[str, list[str]]) -> str:
    return ", ".join(f"{name} {' '.join(versions)}" for name, versions in agents.items())
