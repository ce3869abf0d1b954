"""Pages of one run: its steps and its state at any of them, its conversation, its log, and another run beside it."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from starlette.responses import Response

from limpet.errors import NotFound, Tampered
from limpet.service.page import number_of
from limpet.service.views import one_line
from limpet.web.ui.control_forms import fact_fields
from limpet.web.ui.form_values import step_number
from limpet.web.ui.page_context import PageContext
from limpet.web.ui.run_list import with_shown
from limpet.web.ui.waterfall_rows import waterfall_of

__all__ = ["compare_page", "conversation_page", "log_page", "run_page", "value_page"]

# Steps of a waterfall, decisions and events on a page.
STEPS, DECISIONS, EVENTS = 50, 20, 200
# A log with at most so many events is verified whenever it is shown; a longer one when asked.
VERIFIED = 1_000
# Bytes of a large value on a page.
PIECE = 100_000
# Bytes of a large value that are searched at a time, and at most.
SEARCH, SEARCHED = 2_000_000, 200_000_000
# A fact that was there from the start says no more.
NO_ORIGIN: Mapping[str, Any] = {"source": "", "step": None, "derived_from": ()}


async def run_page(page: PageContext) -> Response:
    """Show one run: what it needs, its steps, and the selected one with the state around it."""
    [run] = page.ids
    report = await page.ask("show", run=run)
    info, now = report["run"], await page.app.now()
    last = info["position"]["step"]
    selected = step_number(page.request.query_params.get("step"))
    if selected is None and last:
        is_failed = info["status"] == "failed" and report["error"] is not None
        selected = (report["error"]["step"] if is_failed else None) or last
    first = step_number(page.request.query_params.get("from")) or _window(selected or 1)
    steps = await page.ask("steps", run=run, limit=STEPS, cursor=str(first - 1))
    timeline = await page.ask("timeline", run=run, limit=STEPS, cursor=str(first - 1))
    fold = page.request.query_params.get("scale") != "true"
    is_live = info["ended"] is None and first + STEPS > last
    around = await _around(page, run, selected, last)
    selected = selected if around["detail"] is None else around["detail"]["number"]
    return await _run_page(
        page,
        "run.html",
        "steps",
        report,
        selected=selected,
        last=last,
        first=first,
        later=first + STEPS if first + STEPS <= last else None,
        earlier=max(first - STEPS, 1) if first > 1 else None,
        waterfall=waterfall_of(steps["items"], timeline["items"], now, is_live=is_live, fold=fold),
        fold=fold,
        decisions=(await page.ask("decisions", run=run, last=DECISIONS))["items"][::-1],
        grants=(await page.ask("grants", run=run))["items"],
        facts=_facts(around["after"]["state"]),
        fact_fields=fact_fields((around["before"] or around["after"])["state"]),
        **around,
    )


def _window(step: int) -> int:
    """Return the first step of the part of the waterfall that has a step."""
    return (step - 1) // STEPS * STEPS + 1


async def _run_page(page: PageContext, template: str, tab: str, report: Mapping[str, Any], **more: Any) -> Response:
    """Return a page with the head that all pages of a run have."""
    info, lineage = report["run"], await page.ask("lineage", run=report["run"]["id"])
    relatives = [each for each in lineage["runs"] if each["id"] != info["id"]]
    state = more.get("after") or {}
    return await page.page(
        template,
        here="runs",
        title=info["id"],
        tab=tab,
        report=report,
        run=with_shown(info),
        relatives=relatives,
        forks=[each for each in relatives if each["relation"] == "fork"],
        spent=state.get("spent", {}),
        limits=(state.get("state") or {}).get("budget"),
        **{"selected": None, "fact_fields": [], **more},
    )


async def _around(page: PageContext, run: str, step: int | None, last: int) -> dict[str, Any]:
    """Return the selected step, the states before it and until the next one, and what changed between them.

    A step that was refused has no events of its own: then the last step is returned.
    """
    for number in (step, last) if step is not None else ():
        try:
            return {
                "detail": await page.ask("step", run=run, step=number),
                "before": await page.ask("state", run=run, before=number),
                "after": await _after(page, run, number, last),
                "diff": await page.ask("diff", run=run, step=number),
            }
        except NotFound:
            pass
    return {"detail": None, "before": None, "after": await page.ask("state", run=run), "diff": None}


async def _after(page: PageContext, run: str, step: int, last: int) -> Any:
    """Return the state before the next step, with what the agent noted after a step; of the last one, the state now."""
    if step < last:
        with suppress(NotFound):
            return await page.ask("state", run=run, before=step + 1)
    return await page.ask("state", run=run)


def _facts(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the facts of a state, each with those that rest on it."""
    facts: Sequence[Mapping[str, Any]] = [{**NO_ORIGIN, **fact} for fact in state.get("known_facts", ())]
    return [
        {**fact, "supports": [each["key"] for each in facts if fact["key"] in each["derived_from"]]} for fact in facts
    ]


async def _saw(page: PageContext, run: str, step: int) -> dict[str, Any]:
    """Return what a model saw, with the fields that its messages do not have."""
    found: dict[str, Any] = await page.ask("prompt", run=run, step=step)
    messages = [{"text": "", "calls": [], "tool": "", **each} for each in found["prompt"]["messages"]]
    return {**found, "messages": messages, "tools": found["prompt"].get("tools", [])}


async def log_page(page: PageContext) -> Response:
    """Show the events of a run, the newest page first, and whether they are what was written."""
    [run] = page.ids
    report = await page.ask("show", run=run)
    last = report["run"]["position"]["seq"]
    given = page.request.query_params.get("cursor")
    after = max(0, last - EVENTS) if given is None else number_of(given) or 0
    found = await page.ask("log", run=run, limit=EVENTS, cursor=str(after))
    is_asked = last <= VERIFIED or "verify" in page.request.query_params
    return await _run_page(
        page,
        "log.html",
        "log",
        report,
        events=[{**event, "line": one_line(event["body"])} for event in found["items"]],
        earlier=None if after == 0 else max(0, after - EVENTS),
        later=found["next"],
        verified=await _verified(page, run) if is_asked else None,
    )


async def _verified(page: PageContext, run: str) -> dict[str, Any]:
    """Return what a verification found: the number of events, or the fault."""
    try:
        return {"events": (await page.ask("verify", run=run))["events"], "fault": None}
    except Tampered as fault:
        return {"events": 0, "fault": fault}


async def conversation_page(page: PageContext) -> Response:
    """Show the messages of a run's conversation, and what the model saw before one of its replies."""
    [run] = page.ids
    query = page.request.query_params
    report = await page.ask("show", run=run)
    talk = report["run"]["conversation"]
    step, whole = step_number(query.get("saw")), "whole" in query
    return await _run_page(
        page,
        "conversation.html",
        "conversation",
        report,
        talk=talk,
        whole=whole,
        messages=await messages_of(page, talk, whole=whole),
        saw=None if step is None else await _saw(page, run, step),
    )


async def messages_of(page: PageContext, talk: str, *, whole: bool) -> dict[str, Any]:
    """Return a page of the messages of a conversation; none if it has not begun."""
    try:
        found: dict[str, Any] = await page.ask(
            "messages", conversation=talk, whole=whole, last=EVENTS, cursor=page.request.query_params.get("cursor")
        )
    except NotFound:
        return {"items": [], "next": None}
    return found


async def compare_page(page: PageContext) -> Response:
    """Show two runs side by side, with their first difference."""
    [one] = page.ids
    report = await page.ask("show", run=one)
    other = page.request.query_params.get("with", "").strip()
    if not other:
        return await _run_page(page, "compare.html", "compare", report, other=None, comparison=None, sections=[])
    comparison = await page.ask("compare", one=one, other=other)
    sections: dict[str, list[Any]] = {}
    for change in comparison["changes"]:
        sections.setdefault(PARTS.get(change["part"], "What they know in the end"), []).append(change)
    return await _run_page(
        page,
        "compare.html",
        "compare",
        report,
        other=with_shown(await page.ask("info", run=other)),
        comparison=comparison,
        sections=sorted(sections.items(), key=lambda each: ORDER.index(each[0])),
    )


ORDER = ("What they did", "What they know in the end", "What they spent", "How they ended")
# Headings of the kinds of differences; all others are parts of the state.
PARTS = {
    **dict.fromkeys(("step", "decision", "request", "run", "signal"), ORDER[0]),
    "spent": ORDER[2],
    "outcome": ORDER[3],
}


async def value_page(page: PageContext) -> Response:
    """Show a piece of a large value."""
    run, blob = page.ids
    query = page.request.query_params
    start, find = number_of(query.get("start")) or 0, query.get("find", "")
    report = await page.ask("show", run=run)
    how: dict[str, Any] = {
        "run": run,
        "blob": blob,
        "raw": "raw" in page.session.who.rights,
    }  # a value above 16 MB is shown only raw
    found = await _found_at(page, how, find, start) if find else None
    piece = await page.ask("value", start=start if found is None else found, limit=PIECE, **how)
    return await _run_page(page, "value.html", "steps", report, piece=piece, size=PIECE, find=find, found=found)


async def _found_at(page: PageContext, how: Mapping[str, Any], find: str, start: int) -> int | None:
    """Return the offset of the next place after `start` that has a text, in bytes; None if there is none."""
    wanted, before, at = find.encode(), b"", start
    for _ in range(SEARCHED // SEARCH):
        piece = await page.ask("value", start=at, limit=SEARCH, **how)
        text = before + piece["text"].encode()
        place = text.find(wanted, 1 if at == start and not before else 0)
        if place >= 0:
            return int(at - len(before) + place)
        if piece["next"] is None:
            return None
        before, at = text[-len(wanted) :], piece["next"]
    return None
