"""Pages of runs: the list with its filters, and one run with its steps and its state at any of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, get_args
from urllib.parse import quote

from starlette.responses import Response

from limpet.engine.execution.views import Status
from limpet.errors import InvalidArgument, NotFound
from limpet.service.page import number_of
from limpet.service.views import one_line
from limpet.web.ui.form_values import json_object, json_or_text
from limpet.web.ui.page_context import PageContext

__all__ = ["log_page", "run_page", "runs_page", "submit_control", "with_shown"]

ON_A_PAGE = 50
STATUSES = get_args(Status)
# Filters of the list that are texts.
FILTERS = ("agent", "session", "user", "text", "waits_for", "parent", "since")
# Events on a page of the log.
EVENTS = 200


async def runs_page(page: PageContext) -> Response:
    """List the runs that match the filters in the address."""
    query = page.request.query_params
    status = [each for each in query.getlist("status") if each in STATUSES]
    given = {name: query.get(name, "") for name in FILTERS}
    cursor = query.get("cursor")
    found = await page.ask("runs", status=status, sort="updated", last=ON_A_PAGE, cursor=cursor, **given)
    stats = await page.ask("stats")
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
    )


def with_shown(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run with what its row shows beyond the API: a bar, and what it waits for."""
    return {**run, "shown": _shown_status(run), "bar": _bar(run["position"])}


def _shown_status(run: Mapping[str, Any]) -> str:
    """Return the status that matters: a run that an operator must look at is not just waiting."""
    keys = [each["key"] for each in run["waits_for"] if each["what"] == "operator"]
    return keys[0] if keys and keys[0] in ("quarantined", "diverged") else str(run["status"])


def _bar(position: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return how far a run is, and how far it goes, if that is known."""
    if position["steps"]:
        return min(position["step"], position["steps"]), position["steps"]
    return (position["item"], position["items"]) if position["items"] and position["item"] is not None else None


async def run_page(page: PageContext) -> Response:
    """Show one run: what it needs, its steps, and the selected one with the state around it."""
    [run] = page.ids
    report = await page.ask("show", run=run)
    selected = _number(page.request.query_params.get("step"))
    last = report["run"]["position"]["step"]
    if selected is None and last:
        selected = (report["error"] or {}).get("step") or last
    more = await _selected(page, run, selected)
    return await page.page(
        "run.html",
        here="runs",
        title=run,
        report=report,
        run=with_shown(report["run"]),
        selected=selected,
        last=last,
        rows=[*_tracks(report["timeline"], await page.app.now())],
        **more,
    )


async def _selected(page: PageContext, run: str, step: int | None) -> dict[str, Any]:
    """Return the selected step, the states before and after it, and what it changed."""
    if step is None:
        return {"detail": None, "before": None, "after": await page.ask("state", run=run), "diff": None}
    try:
        detail = await page.ask("step", run=run, step=step)
    except NotFound:
        return {"detail": None, "before": None, "after": await page.ask("state", run=run), "diff": None}
    return {
        "detail": detail,
        "before": await page.ask("state", run=run, before=step),
        "after": await page.ask("state", run=run, after=step),
        "diff": await page.ask("diff", run=run, step=step),
    }


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or not 1 <= int(text[:18]) < 2**53:
        raise InvalidArgument(path="step", reason=f"{text[:20]!r} is not a step number")
    return int(text)


def _tracks(timeline: Sequence[Mapping[str, Any]], now: datetime) -> Iterator[dict[str, Any]]:
    """Yield the rows of a waterfall, with the spans of each in percent of the whole."""
    if not timeline:
        return
    begins = min(_at(row["spans"][0]["start"]) for row in timeline)
    ends = max(_at(span["end"]) if span["end"] else now for row in timeline for span in row["spans"])
    whole = max((ends - begins).total_seconds(), 0.001)
    for row in timeline:
        spans = []
        for span in row["spans"]:
            start, end = _at(span["start"]), _at(span["end"]) if span["end"] else now
            left = (start - begins).total_seconds() / whole * 100
            width = max((end - start).total_seconds() / whole * 100, 0.4)
            spans.append({"how": span["how"], "x": round(left, 2), "width": round(min(width, 100 - left), 2)})
        yield {**row, "spans": spans, "start": row["spans"][0]["start"], "end": row["spans"][-1]["end"]}


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def log_page(page: PageContext) -> Response:
    """Show the events of a run, the newest page first."""
    [run] = page.ids
    info = await page.ask("info", run=run)
    last = info["position"]["seq"]
    given = page.request.query_params.get("cursor")
    after = max(0, last - EVENTS) if given is None else number_of(given) or 0
    found = await page.ask("log", run=run, limit=EVENTS, cursor=str(after))
    return await page.page(
        "log.html",
        here="runs",
        title=f"Log of {run}",
        run=with_shown(info),
        events=[{**event, "line": one_line(event["body"])} for event in found["items"]],
        earlier=None if after == 0 else max(0, after - EVENTS),
        later=found["next"],
    )


async def submit_control(page: PageContext) -> Response:
    """Send a command to a run, and show it; of a fork, show the fork."""
    [run] = page.ids
    command = page.form.get("do", "")
    if command not in CONTROLS:
        raise InvalidArgument(path="do", reason=f"{command[:20]!r} is none of {', '.join(CONTROLS)}")
    found = await page.ask(command, run=run, command_id=page.form.get("command_id"), **CONTROLS[command](page.form))
    return page.redirect(f"/runs/{quote(found['id'], safe='')}")


def _nothing(_: Mapping[str, str]) -> dict[str, Any]:
    return {}


def _reason(form: Mapping[str, str]) -> dict[str, Any]:
    return {"reason": form.get("reason", "").strip()}


def _extension(form: Mapping[str, str]) -> dict[str, Any]:
    limits = {name: form[name].strip() for name in LIMITS if form.get(name, "").strip()}
    return {"budget": limits or None, "deadline": form.get("deadline", "").strip(), "because": form.get("because", "")}


def _signal(form: Mapping[str, str]) -> dict[str, Any]:
    return {"name": form.get("name", "").strip(), "value": json_or_text(form.get("value", ""))}


def _fork(form: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of a fork. The facts of the form replace those of the run."""
    facts = json_object(form.get("facts", ""), "facts") if form.get("facts", "").strip() else None
    step = _number(form.get("at"))
    return {"at": step, "patch": None if not facts else {"facts": facts}, "effects": form.get("effects", "ask")}


# Limits that a form can raise.
LIMITS = ("max_steps", "max_cost", "max_llm_tokens")
# The commands of the buttons of a run, and how their forms are read.
CONTROLS: Mapping[str, Callable[[Mapping[str, str]], dict[str, Any]]] = {
    "pause": _nothing,
    "resume": _nothing,
    "cancel": _reason,
    "extend": _extension,
    "signal": _signal,
    "fork": _fork,
}
