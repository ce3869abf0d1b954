"""Shared records: a list, and one record at any of its versions, with who changed what."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from limpet.service.page import number_of
from limpet.web.ui.page_context import PageContext
from limpet.web.ui.rendering import SHORT, pretty

__all__ = ["record_page", "records_page"]

ON_A_PAGE = 50
# Versions of a history on a page.
VERSIONS = 20
# Items of each part of a record that are shown, unless all are asked for.
MOST = 200
# Characters before the first difference of two long values.
BEFORE = 60


async def records_page(page: PageContext) -> Response:
    """List the records, the newest first."""
    cursor = page.request.query_params.get("cursor")
    found = await page.ask("records", last=ON_A_PAGE, cursor=cursor)
    return await page.page(
        "records.html", here="records", title="Records", records=found["items"], next=found["next"], cursor=cursor
    )


async def record_page(page: PageContext) -> Response:
    """Show one record at its newest version, or at another one, and its history."""
    [name] = page.ids
    query = page.request.query_params
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
