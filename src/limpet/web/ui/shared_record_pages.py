"""Shared records: a list, one record at any of its versions with who changed what, and forms that patch it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from starlette.responses import Response

from limpet.errors import InvalidArgument, LimpetError, RecordConflict
from limpet.service.page import number_of
from limpet.web.replies import status_of
from limpet.web.ui.form_values import json_or_text
from limpet.web.ui.page_context import PageContext
from limpet.web.ui.rendering import SHORT, pretty

__all__ = ["record_page", "records_page", "submit_new_record", "submit_record"]

ON_A_PAGE = 50
# Versions of a history on a page.
VERSIONS = 20
# Items of each part of a record that are shown, unless all are asked for.
MOST = 200
# Characters before the first difference of two long values.
BEFORE = 60
STATUSES = ("pending", "doing", "done", "skipped")
# Fields of the forms, except for those that say which form it is.
FIELDS = ("record", "part", "key", "value", "source", "item", "status", "plan", "question", "text")


async def records_page(page: PageContext) -> Response:
    """List the records, the newest first."""
    return await _list(page, page.request.query_params.get("cursor"))


async def _list(page: PageContext, cursor: str | None = None, fault: LimpetError | None = None) -> Response:
    found = await page.ask("records", last=ON_A_PAGE, cursor=cursor)
    return await page.page(
        "records.html",
        here="records",
        title="Records",
        records=found["items"],
        next=found["next"],
        cursor=cursor,
        code=200 if fault is None else status_of(fault),
        fault=fault,
        typed=_typed(page, fault),
    )


async def record_page(page: PageContext) -> Response:
    """Show one record at its newest version, or at another one, and its history."""
    return await _shown(page, page.request.query_params)


async def submit_new_record(page: PageContext) -> Response:
    """Create a record with its first patch, and show it. A fault is shown with what the person typed."""
    try:
        return await _patched(page, _filled(page.form, "record"), 0, ())
    except LimpetError as error:
        return await _list(page, fault=error)


async def submit_record(page: PageContext) -> Response:
    """Patch a record from the version that the form was made with, and show it.

    After a fault, such as a conflict, show the newest version with what the person sent.
    """
    [name] = page.ids
    plan: Sequence[PlanLine] = ()
    try:
        read = _version(page.form.get("read", ""))
        plan = await _plan_at(page, name, read)
        return await _patched(page, name, read, plan)
    except LimpetError as error:
        return await _shown(page, {}, error, [*_sent(page.form, plan)])


class PlanLine(NamedTuple):
    """An item of a plan."""

    shown: str
    """On one line, and redacted."""
    item: str


async def _plan_at(page: PageContext, name: str, version: int) -> Sequence[PlanLine]:
    """Return the plan that a form was made with: what the form shows of an item need not be the item."""
    shown = await page.ask("record", record=name, version=version)
    record = await page.app.record(name, version=version)
    return [PlanLine(_in_a_line(text), item) for text, item in zip(shown["plan"], record.plan, strict=True)]


def _in_a_line(text: str) -> str:
    return " ".join(text.split())


async def _patched(page: PageContext, name: str, read: int, plan: Sequence[PlanLine]) -> Response:
    command = page.form.get("do", "")
    if command not in PATCHES:
        raise InvalidArgument(path="do", reason=f"{command[:20]!r} is none of {', '.join(PATCHES)}")
    change = PATCHES[command](page.form, plan)
    await page.ask("patch_record", record=name, read=read, command_id=page.form.get("command_id"), **change)
    return page.redirect(f"/records/{quote(name, safe='')}")


def _typed(page: PageContext, fault: LimpetError | None) -> dict[str, str]:
    """Return what the forms show in their fields: what was typed, after a fault."""
    return {name: page.form.get(name, "") if fault is not None else "" for name in ("do", *FIELDS)}


def _sent(form: Mapping[str, str], plan: Sequence[PlanLine]) -> Iterator[tuple[str, str]]:
    """Yield what a person sent, field by field, so that nothing is lost if a form no longer has a place for it."""
    for name in FIELDS:
        text = form.get(name, "").strip()
        if name == "item" and _is_place(text, plan):
            text = plan[int(text)].shown
        if text:
            yield name, text


def _version(text: str) -> int:
    """Return the version that a form was made with. Raises InvalidArgument."""
    if not text.isdecimal() or len(text) > 15:
        raise InvalidArgument(path="read", reason=f"{text[:20]!r} is not a version")
    return int(text)


def _entry(form: Mapping[str, str], _: Sequence[PlanLine]) -> dict[str, Any]:
    """Return a patch that sets a fact, or a value of the data."""
    entry = {_filled(form, "key"): json_or_text(form.get("value", ""))}
    if form.get("part") == "data":
        return {"data": entry}
    return {"facts": entry, "source": form.get("source", "").strip()}


def _removal(form: Mapping[str, str], _: Sequence[PlanLine]) -> dict[str, Any]:
    """Return a patch that removes a fact, or a value of the data."""
    return {"unset" if form.get("part") == "data" else "retract": [_filled(form, "key")]}


def _new_plan(form: Mapping[str, str], plan: Sequence[PlanLine]) -> dict[str, Any]:
    """Return a patch with a new plan, one item in each line. A line that shows an item of the old plan is that item."""
    left = list(plan)
    items = []
    for line in filter(None, map(_in_a_line, form.get("plan", "").splitlines())):
        known = next((each for each in left if each.shown == line), None)
        if known is not None:
            left.remove(known)
        items.append(line if known is None else known.item)
    return {"plan": items}


def _revision(form: Mapping[str, str], plan: Sequence[PlanLine]) -> dict[str, Any]:
    """Return a patch of an item's status. The form has the item's place in the plan."""
    place = form.get("item", "")
    if not _is_place(place, plan):
        raise InvalidArgument(path="item", reason=f"{place[:20]!r} is no place in the plan")
    return {"revise": {plan[int(place)].item: form.get("status", "")}}


def _is_place(text: str, plan: Sequence[PlanLine]) -> bool:
    return text.isdecimal() and len(text) < 10 and int(text) < len(plan)


def _filled(form: Mapping[str, str], name: str) -> str:
    """Return a field without spaces around it. Raises InvalidArgument if it is empty."""
    found = form.get(name, "").strip()
    if not found:
        raise InvalidArgument(path=name, reason="is empty")
    return found


# The patches of the forms of a record, and how each form is read.
PATCHES: Mapping[str, Callable[[Mapping[str, str], Sequence[PlanLine]], dict[str, Any]]] = {
    "set": _entry,
    "remove": _removal,
    "replan": _new_plan,
    "revise": _revision,
    "ask": lambda form, _: {"questions": {_filled(form, "question"): _filled(form, "text")}},
    "answer": lambda form, _: {"answered": {_filled(form, "question"): _filled(form, "text")}},
    "close": lambda form, _: {"close": [_filled(form, "question")]},
}


async def _shown(
    page: PageContext,
    query: Mapping[str, str],
    fault: LimpetError | None = None,
    sent: Sequence[tuple[str, str]] = (),
) -> Response:
    [name] = page.ids
    newest = await page.ask("record", record=name)
    last = newest["version"]
    record = await page.ask("record", record=name, version=query["version"]) if query.get("version") else newest
    version, whole = record["version"], "whole" in query
    given = number_of(query.get("cursor") or None)
    until = _last_shown(version, last) if given is None else min(max(given, 2), last)
    return await page.page(
        "record.html",
        here="records",
        title=name if version == last else f"{name}, version {version}",
        name=name,
        version=version,
        last=last,
        given_version=version if query.get("version") else None,
        whole=whole,
        parts=_parts(record, None if whole else MOST),
        updates=await _history(page, name, until),
        older=until - VERSIONS if until - VERSIONS > 1 else None,
        newer=min(until + VERSIONS, last) if until < last else None,
        cursor=given,
        code=200 if fault is None else status_of(fault),
        fault=fault,
        is_conflict=isinstance(fault, RecordConflict),
        sent=sent,
        typed=_typed(page, fault),
        plan_lines=[_in_a_line(each) for each in record["plan"]],
        open_questions=[each for each in record["questions"] if each["answer"] is None],
        statuses=STATUSES,
    )


def _last_shown(version: int, last: int) -> int:
    """Return the first version of a history that has a version: the newest one, if it is on the same page."""
    return last if last - version < VERSIONS else max(version, 2)


def _parts(record: Mapping[str, Any], most: int | None) -> dict[str, Any]:
    """Return the parts of a record, the newest facts first, each with the number of all its items."""
    facts, questions, data = record["known_facts"][::-1], record["questions"], [*record["data"].items()]
    return {
        "facts": facts[:most],
        "fact_count": len(facts),
        "keys": {each["key"] for each in facts[:most]},
        "questions": questions[:most],
        "question_count": len(questions),
        "data": data[:most],
        "data_count": len(data),
        "plan": {"plan": record["plan"][:most], "plan_status": record["plan_status"][:most]},
        "plan_count": len(record["plan"]),
        "is_cut": most is not None and max(map(len, (facts, questions, data, record["plan"]))) > most,
    }


async def _history(page: PageContext, name: str, until: int) -> list[dict[str, Any]]:
    """Return the patches up to a version, the newest first, each with the lines that show its changes."""
    found: list[Any] = []
    cursor = None
    while True:  # large patches come in several pages
        some = await page.ask(
            "record_changes", record=name, since=max(until - VERSIONS, 0), until=until, limit=VERSIONS, cursor=cursor
        )
        found += some["items"]
        cursor = some["next"]
        if cursor is None:
            return [
                {**each, "lines": [line for change in each["changes"] for line in _lines(change)]}
                for each in reversed(found)
            ]


def _lines(change: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what a change removed and added, as classes and texts. Long values begin shortly before they differ."""
    part, key, before, after = change["part"], change["key"], change["before"], change["after"]
    if part == "plan":
        yield from _plan_lines(before or [], after or [])
        return
    label = f"{part} {key}: "
    if before is None and after is None:
        yield "same", f"{label}null"
        return
    old, new = (_text(part, each) for each in (before, after))
    if before is not None:
        yield "del", label + _from_difference(old, new)
    if after is not None:
        yield "add", label + _from_difference(new, old)


def _text(part: str, value: Any) -> str:
    """Return a value as a line says it."""
    if value is None:
        return ""
    if part == "question":
        return value["question"] if value["answer"] is None else f"{value['question']} Answer: {value['answer']}"
    return pretty(value)


def _plan_lines(before: Sequence[Mapping[str, str]], after: Sequence[Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the items that were removed, added or got another status; both plans if only their order differs."""
    old, new = ({each["item"]: each["status"] for each in plan} for plan in (before, after))
    changed = [item for item in {**old, **new} if old.get(item) != new.get(item)]
    if not changed:
        yield "del", "plan: " + _from_difference(", ".join(old), ", ".join(new))
        yield "add", "plan: " + _from_difference(", ".join(new), ", ".join(old))
    for item in changed[:MOST]:
        if item in old:
            yield "del", f"plan: {item}, {old[item]}"
        if item in new:
            yield "add", f"plan: {item}, {new[item]}"
    if len(changed) > MOST:
        yield "same", f"and {len(changed) - MOST} more items of the plan"


def _from_difference(text: str, other: str) -> str:
    """Return a text; of a long one, a piece that begins shortly before the first difference from another text."""
    if len(text) <= SHORT:
        return text
    pairs = enumerate(zip(text, other, strict=False))
    differs = next((place for place, (one, two) in pairs if one != two), min(len(text), len(other)))
    start = max(differs - BEFORE, 0)
    piece = text[start : start + SHORT]
    return f"{'…' if start else ''}{piece}{'…' if start + SHORT < len(text) else ''}"
