"""The operators' page: runs that need an operator, agents without a worker, overdue runs, failures, and the workers."""

from datetime import datetime
from typing import Any

from starlette.responses import Response

from limpet.web.ui.page_context import PageContext
from limpet.web.ui.run_list import with_shown

__all__ = ["operations_page"]

# Runs of each kind that are shown, and runs that are looked at to find those that are overdue.
SHOWN, LOOKED_AT = 20, 1000


async def operations_page(page: PageContext) -> Response:
    """Show what needs an operator, each with its fix; with `check`, also what the doctor finds in order."""
    stats, now = await page.ask("stats"), await page.app.now()
    waiting = await page.ask("runs", status=["waiting"], waits_for="operator", last=SHOWN)
    failed = await page.ask("runs", status=["failed"], sort="updated", last=SHOWN)
    living = (await page.ask("runs", status=["running", "waiting", "pending"], last=LOOKED_AT))["items"]
    workers = (await page.ask("workers"))["items"]
    may_check = page.may("payloads", "maintain")
    checks = "check" in page.request.query_params and may_check
    return await page.page(
        "operations.html",
        here="operations",
        title="Operations",
        waiting=[await _with_reason(page, run) for run in waiting["items"]],
        unserved=stats["unserved"],
        overdue=[with_shown(run) for run in living if _is_overdue(run, now)][:SHOWN],
        failed=[await _with_reason(page, run) for run in failed["items"]],
        workers=[{**each, "serves": _served(each["agents"])} for each in workers],
        may_check=may_check,
        checked=checks,
        findings=await _findings(page, checks) if may_check else [],
    )


async def _findings(page: PageContext, checks: bool) -> list[Any]:
    """Return what the doctor finds: everything if it was asked for, and otherwise only what is wrong."""
    found: list[Any] = (await page.ask("doctor", last=100 if checks else 1))["items"]
    return found if checks else [each for each in found if each["level"] != "ok"]


async def _with_reason(page: PageContext, run: dict[str, Any]) -> dict[str, Any]:
    """Return a run with why it waits or failed, if the person may see that."""
    report = await page.ask("show", run=run["id"]) if page.may("payloads") else {"why": None, "error": None}
    return {"run": with_shown(run), "why": report["why"], "error": report["error"]}


def _is_overdue(run: dict[str, Any], now: datetime) -> bool:
    return run["deadline"] is not None and datetime.fromisoformat(run["deadline"]) < now


def _served(agents: dict[str, list[str]]) -> str:
    return ", ".join(f"{name} {' '.join(versions)}" for name, versions in agents.items())
