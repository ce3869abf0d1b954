"""Commands to one run, from its forms: pause, resume, cancel, extend, signal, fork, revoke a standing approval."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from limpet.errors import InvalidArgument
from limpet.web.ui.form_values import json_object, json_or_text, step_number
from limpet.web.ui.page_context import PageContext
from limpet.web.ui.schema_forms import FormField, fields_of, value_of

__all__ = ["fact_fields", "submit_control"]

# Limits that a form can raise.
LIMITS = ("max_steps", "max_cost", "max_llm_tokens")
# Facts that have a field of their own in the form of a fork.
MOST_FACTS = 30


async def submit_control(page: PageContext) -> Response:
    """Send a command to a run, and show it; of a fork, show the fork."""
    [run] = page.ids
    command = page.form.get("do", "")
    if command not in CONTROLS:
        raise InvalidArgument(path="do", reason=f"{command[:20]!r} is none of {', '.join(CONTROLS)}")
    given = await CONTROLS[command](page)
    found = await page.ask(command, run=run, command_id=page.form.get("command_id"), **given)
    return page.redirect(f"/runs/{quote(found['id'], safe='')}")


def fact_fields(state: Mapping[str, Any]) -> list[FormField]:
    """Return a field for each fact of a state."""
    facts = {fact["key"]: fact["value"] for fact in state.get("known_facts", ())[:MOST_FACTS]}
    return fields_of({}, facts, prefix="fact") if facts else []


async def _resume(_: PageContext) -> dict[str, Any]:
    return {}


async def _reason(page: PageContext) -> dict[str, Any]:
    return {"reason": page.form.get("reason", "").strip()}


async def _extension(page: PageContext) -> dict[str, Any]:
    form = page.form
    limits = {name: form[name].strip() for name in LIMITS if form.get(name, "").strip()}
    return {"budget": limits or None, "deadline": form.get("deadline", "").strip(), "because": form.get("because", "")}


async def _signal(page: PageContext) -> dict[str, Any]:
    return {"name": page.form.get("name", "").strip(), "value": json_or_text(page.form.get("value", ""))}


async def _revoke(page: PageContext) -> dict[str, Any]:
    return {"grant": page.form.get("grant", ""), "because": page.form.get("because", "").strip()}


async def _fork(page: PageContext) -> dict[str, Any]:
    """Return the options of a fork: facts that were changed in the form, and further ones."""
    [run] = page.ids
    form, step = page.form, step_number(page.form.get("at"))
    further = form.get("facts", "").strip()
    facts = json_object(further, "facts") if further else {}
    if step is not None and any(name.startswith("fact.") for name in form):
        state = (await page.ask("state", run=run, before=step))["state"]
        known = {fact["key"]: fact["value"] for fact in state.get("known_facts", ())[:MOST_FACTS]}
        typed = value_of({}, form, prefix="fact", value=known)
        facts = {key: value for key, value in typed.items() if key in known and value != known[key]} | facts
    return {
        "at": step,
        "patch": {"facts": facts} if facts else None,
        "effects": form.get("effects", "ask"),
        "version": form.get("version", "").strip(),
    }


# The commands of the forms of a run, and how each form is read.
CONTROLS: Mapping[str, Callable[[PageContext], Awaitable[dict[str, Any]]]] = {
    "pause": _reason,
    "resume": _resume,
    "cancel": _reason,
    "extend": _extension,
    "signal": _signal,
    "revoke": _revoke,
    "fork": _fork,
}
