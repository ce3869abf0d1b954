"""The form of scores at the end of a run's page: score the run or a step, or withdraw a score."""

from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from limpet.errors import InvalidArgument
from limpet.web.ui.form_values import json_or_text
from limpet.web.ui.page_context import PageContext

__all__ = ["submit_score"]


async def submit_score(page: PageContext) -> Response:
    """Score a run or a step, or withdraw the person's own score, and show the run."""
    [run] = page.ids
    form, do = page.form, page.form.get("do", "")
    step = form.get("step", "").strip()
    if step and not (step.isdecimal() and len(step) < 16):
        raise InvalidArgument(path="step", reason=f"{step[:20]!r} is not a step number")
    given: dict[str, Any] = {"run": run, "name": form.get("name", "").strip(), "step": int(step) if step else None}
    if do == "score":
        value = form.get("value", "").strip()
        given |= {"value": json_or_text(value) if value else None, "comment": form.get("comment", "").strip()}
    elif do != "unscore":
        raise InvalidArgument(path="do", reason=f"{do[:20]!r} is none of score, unscore")
    await page.ask(do, command_id=form.get("command_id"), **given)
    shown = f"?step={int(step)}" if step else ""
    return page.redirect(f"/runs/{quote(run, safe='')}{shown}#scores")
