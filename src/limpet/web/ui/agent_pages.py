"""Agents: versions, contracts, how their newest runs went, and what the doctor says about their code."""

from typing import Any

from starlette.responses import Response

from limpet.errors import NotFound
from limpet.service.batch_agent import OWN
from limpet.service.doctor import check_code
from limpet.web.ui.page_context import PageContext
from limpet.web.ui.plots import plots_of

__all__ = ["agent_page", "agents_page"]

# Runs that are counted.
COUNTED = 1000


async def agents_page(page: PageContext) -> Response:
    """List the agents."""
    activity = await page.ask("activity", last=COUNTED)
    by_name = {each["agent"]: each for each in activity["agents"]}
    return await page.page(
        "agents.html",
        here="agents",
        title="Agents",
        agents=[
            {"name": name, "versions": versions, "activity": by_name.get(name)}
            for name, versions in (await _versions(page)).items()
        ],
        counted=activity["runs"],
    )


async def agent_page(page: PageContext) -> Response:
    """Show one agent."""
    [name] = page.ids
    versions = (await _versions(page)).get(name)
    if versions is None:
        raise NotFound(what="agent", id=name[:100], fix="Choose one of the agents in the list.")
    activity, now = await page.ask("activity", agent=name, last=COUNTED), await page.app.now()
    workers = (await page.ask("workers"))["items"]
    served = [each for each in page.app.serves if each.name == name]
    errors = (await page.ask("errors", agent=name, last=10))["items"] if page.may("payloads") else []
    return await page.page(
        "agent.html",
        here="agents",
        title=name,
        name=name,
        versions=versions,
        activity=next(iter(activity["agents"]), None),
        plots=plots_of(activity, now)[:2],  # requests are counted for all agents
        workers=[each for each in workers if name in each["agents"]],
        errors=errors,
        findings=[each for each in check_code(served) if each.level != "ok"] if served else None,
    )


async def _versions(page: PageContext) -> dict[str, list[Any]]:
    """Return the registered versions of each agent, by name."""
    found: dict[str, list[Any]] = {}
    for each in (await page.ask("agents"))["items"]:
        if not each["name"].startswith(OWN):
            found.setdefault(each["name"], []).append(each)
    return found
