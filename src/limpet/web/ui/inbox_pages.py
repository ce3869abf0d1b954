"""The inbox: requests that wait for a person, each with the three things, and how it is decided."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace
from starlette.responses import Response

from limpet.errors import AlreadyAnswered, Expired, InvalidAnswer, InvalidArgument, NotAllowed, NotFound
from limpet.service.answers import is_question
from limpet.web.ui.form_values import json_or_text
from limpet.web.ui.page_context import PageContext
from limpet.web.ui.schema_forms import fields_of, value_of

__all__ = ["inbox_page", "request_page", "submit_decision", "takes_yes_or_no", "with_fields"]

ON_A_PAGE = 50
# Runs whose standing approvals the inbox lists.
RUNS = 20
NO_FAULT: Mapping[str, Any] = {"request": "", "text": "", "form": {}}


async def inbox_page(page: PageContext) -> Response:
    """List the open requests."""
    return await _page(page, NO_FAULT)


async def _page(page: PageContext, fault: Mapping[str, Any], code: int = 200) -> Response:
    query = page.request.query_params
    found = await page.ask("inbox", to=query.get("to"), limit=ON_A_PAGE, cursor=query.get("cursor"))
    return await page.page(
        "inbox.html",
        here="inbox",
        title="Inbox",
        code=code,
        requests=[with_fields(each, fault) for each in found["items"]],
        next=found["next"],
        to=query.get("to", ""),
        decided=await _decided(page, query.get("decided")),
        grants=await _grants(page, found["items"]),
        fault=fault,
        precedents={},
    )


async def _grants(page: PageContext, requests: list[Any]) -> list[dict[str, Any]]:
    """Return the standing approvals of the runs that ask."""
    runs = list(dict.fromkeys(each["run"] for each in requests))[:RUNS] if page.may("look") else []
    return [{"run": run, **each} for run in runs for each in (await page.ask("grants", run=run))["items"]]


async def request_page(page: PageContext) -> Response:
    """Show one request, with what followed the same call in other runs; of a decided one, the decision."""
    [id] = page.ids
    return await _request_page(page, id, NO_FAULT)


async def _request_page(page: PageContext, id: str, fault: Mapping[str, Any], code: int = 200) -> Response:
    found = await page.ask("request", request=id)
    return await page.page(
        "request.html",
        here="inbox",
        title=found["question"],
        code=code,
        each=with_fields(found, fault),
        fault=fault,
        precedents={id: (await page.ask("precedents", request=id))["items"]},
        next_request=await _next(page, id),
        refused=await _refused(page, found),
    )


async def _refused(page: PageContext, request: Mapping[str, Any]) -> list[Any]:
    """Return earlier refusals of the same call in the same run, if the person may see them."""
    if request["tool"] is None or not page.may("payloads"):
        return []
    found = (await page.ask("errors", run=request["run"], last=20))["items"]
    return [each for each in found if each["tool"] == request["tool"] and each["type"].endswith("Rejected")]


async def _next(page: PageContext, id: str) -> str | None:
    """Return the oldest other request."""
    found = await page.ask("inbox", limit=2)
    return next((each["id"] for each in found["items"] if each["id"] != id), None)


def with_fields(request: Mapping[str, Any], fault: Mapping[str, Any] = NO_FAULT) -> dict[str, Any]:
    """Return a request with the fields in which a person edits its arguments, or answers it."""
    typed = fault["form"] if fault["request"] == request["id"] else {}
    is_call = request["tool"] is not None and request["kind"] == "approval"
    schema, value = (request["schema"] or {}), request["args"]
    fields = fields_of(schema if is_call else {}, value, prefix="args") if is_call and value else []
    answers = [] if is_call or request["options"] or not schema else fields_of(schema, prefix="answer")
    kept = [[replace(each, value=typed.get(each.name, each.value)) for each in some] for some in (fields, answers)]
    return {
        **request,
        "fields": kept[0],
        "answers": kept[1],
        "is_approval": takes_yes_or_no(request),
        "typed": typed,
    }


def takes_yes_or_no(request: Mapping[str, Any]) -> bool:
    """Return whether a request is decided by approving or rejecting it."""
    return request["kind"] in ("approval", "ask") and not is_question(request["kind"], request["schema"])


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
        if page.form.get("alone") == "on":
            return await _request_page(page, request, fault, 422)
        return await _page(page, fault, 422)
    except AlreadyAnswered as error:
        text = f"{error.by} decided this before you. Your decision was not recorded."
        return await _page(page, {"request": "", "text": text, "form": {}}, 409)
    except NotAllowed as error:
        return await _page(page, {"request": "", "text": f"{error.summary} {error.hint}", "form": {}}, 403)
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
            found = await page.ask("request", request=request)
            args = value_of(found["schema"] or {}, form, prefix="args", value=found["args"])
            await page.ask("approve", request=request, args=args, command_id=key)
        case "reject":
            await page.ask("reject", request=request, because=form.get("because", "").strip(), command_id=key)
        case "answer":
            await page.ask("answer", request=request, answer=await _answer(page, request), command_id=key)
        case other:
            raise InvalidArgument(path="decision", reason=f"{other[:20]!r} is no decision")


async def _answer(page: PageContext, request: str) -> Any:
    """Return an answer: one of the options, the value of a form made from the schema, or text."""
    form = page.form
    if "option" in form:
        return json_or_text(form["option"])
    found = await page.ask("request", request=request)
    if found["options"]:
        raise InvalidArgument(path="answer", reason="no option is chosen")
    if found["schema"]:
        return value_of(found["schema"], form, prefix="answer")
    return form.get("answer", "").strip()
