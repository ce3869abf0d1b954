"""Start a run from a form that is made from its agent's contract, or again with the input of another run."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from msgspec.structs import replace
from starlette.responses import Response

from limpet.errors import LimpetError, NotFound
from limpet.web.replies import status_of
from limpet.web.ui.page_context import PageContext
from limpet.web.ui.schema_forms import MISSING, FormField, fields_of, value_of

__all__ = ["start_page", "submit_start"]

# What a run can be started with, beside its input.
OPTIONS = ("id", "session", "user", "goal", "deadline")


async def start_page(page: PageContext) -> Response:
    """Show the form for an agent; with `from`, filled in as another run was started."""
    query = page.request.query_params
    source = query.get("from", "")
    return await _page(page, query.get("agent", ""), source, fault=None)


async def _page(page: PageContext, agent: str, source: str, *, fault: LimpetError | None) -> Response:
    agents = [each for each in (await page.ask("agents"))["items"] if not each["name"].startswith("limpet.")]
    value, options = MISSING, dict.fromkeys(OPTIONS, "")
    if source:
        info, given = await page.ask("info", run=source), await page.ask("input", run=source)
        agent, value = info["agent"], given["input"]
        options |= {"session": info["session"] or "", "user": info["user"] or ""}
    found = _newest(agents, agent)
    fields = [] if found is None else fields_of(found["contract"]["input"], value, prefix="input")
    if fault is not None:
        fields = [_kept(field, page.form) for field in fields]
        options = {name: page.form.get(name, "") for name in OPTIONS}
    return await page.page(
        "start.html",
        here="runs",
        title="Start a run",
        code=200 if fault is None else status_of(fault),
        agents=list(dict.fromkeys(each["name"] for each in agents)),
        agent=found,
        source=source,
        fields=fields,
        options=options,
        fault=fault,
    )


async def submit_start(page: PageContext) -> Response:
    """Start a run, and show it. A fault is shown at the form, with what was typed."""
    form = page.form
    agent, source = form.get("agent", ""), form.get("from", "")
    try:
        agents = (await page.ask("agents"))["items"]
        found = _newest(agents, agent)
        if found is None:
            raise NotFound(what="agent", id=agent[:100], fix="Choose one of the agents in the list.")
        value = (await page.ask("input", run=source))["input"] if source else MISSING
        input = value_of(found["contract"]["input"], form, prefix="input", value=value)
        options = {name: form.get(name, "").strip() for name in OPTIONS}
        options["id"] = options["id"] or form.get("new_id", "")
        started = await page.ask("start", agent=agent, input=input, **options)
    except LimpetError as error:
        return await _page(page, agent, source, fault=error)
    return page.redirect(f"/runs/{quote(started['id'], safe='')}")


def _newest(agents: list[Any], name: str) -> Any:
    """Return an agent: the version that a live worker serves, or else the last one registered."""
    known = [each for each in agents if each["name"] == name]
    return max(known, key=lambda each: each["is_served"], default=None)


def _kept(field: FormField, form: Mapping[str, str]) -> FormField:
    """Return a field with what was typed."""
    return replace(field, value=form.get(field.name, ""))
