"""The inbox: requests that wait for a person, each with the three things, and how it is decided."""

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from limpet.errors import AlreadyAnswered, Expired, InvalidAnswer, InvalidArgument, NotFound
from limpet.web.ui.form_values import json_object, json_or_text
from limpet.web.ui.page_context import PageContext

__all__ = ["inbox_page", "submit_decision"]

ON_A_PAGE = 50
NO_FAULT = {"request": "", "text": "", "form": {}}


async def inbox_page(page: PageContext) -> Response:
    """List the open requests."""
    return await _page(page, NO_FAULT)


async def _page(page: PageContext, fault: Mapping[str, Any], code: int = 200) -> Response:
    query = page.request.query_params
    found = await page.ask("inbox", to=query.get("to"), limit=ON_A_PAGE, cursor=query.get("cursor"))
    told = await _decided(page, query.get("decided"))
    return await page.page(
        "inbox.html",
        here="inbox",
        title="Inbox",
        code=code,
        requests=found["items"],
        next=found["next"],
        to=query.get("to", ""),
        decided=told,
        fault=fault,
    )


async def _decided(page: PageContext, request: str | None) -> Any:
    """Return the request that was decided last, to say what follows."""
    if not request:
        return None
    try:
        return await page.ask("request", request=request)
    except NotFound:
        return None


async def submit_decision(page: PageContext) -> Response:
    """Decide a request. One that was decided meanwhile stays as it is, and the page says by whom."""
    [request] = page.ids
    try:
        await _decide(page, request)
    except (InvalidAnswer, InvalidArgument) as error:
        fault = {"request": request, "text": f"{error.summary} {error.hint}", "form": dict(page.form)}
        return await _page(page, fault, 422)
    except AlreadyAnswered as error:
        text = f"{error.by} decided this before you. Your decision was not recorded."
        return await _page(page, {"request": "", "text": text, "form": {}}, 409)
    except Expired as error:
        return await _page(page, {"request": "", "text": error.summary, "form": {}}, 410)
    return page.redirect(f"/inbox?decided={request}")


async def _decide(page: PageContext, request: str) -> None:
    form = page.form
    key = form.get("command_id") or None
    match form.get("decision", ""):
        case "approve":
            standing = form.get("standing") == "on"
            await page.ask("approve", request=request, standing=standing, command_id=key)
        case "edit":
            args = json_object(form.get("args", ""), "arguments")
            await page.ask("approve", request=request, args=args, command_id=key)
        case "reject":
            await page.ask("reject", request=request, because=form.get("because", "").strip(), command_id=key)
        case "answer":
            await page.ask("answer", request=request, answer=_answer(form), command_id=key)
        case other:
            raise InvalidArgument(path="decision", reason=f"{other[:20]!r} is no decision")


def _answer(form: Mapping[str, str]) -> Any:
    """Return an answer: one of the options, or JSON, or text."""
    return json_or_text(form["option"] if "option" in form else form.get("answer", "").strip())
