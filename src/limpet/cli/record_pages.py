"""Print shared records for people: a record with its writers, and who changed what."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from limpet.cli.output import TableLayout, about, print_table, print_text
from limpet.engine.run.shared_records import SharedRecord
from limpet.redaction import hide_secrets_in
from limpet.service.page import Page
from limpet.service.records import RecordInfo, RecordUpdate, UnitChange

__all__ = ["RECORD_RENDERERS"]

# Maximum length of a value; the JSON has all.
LONGEST = 200
RECORDS = TableLayout(narrow={"record": 12}, left_out=("created",))


def _records(found: Page[RecordInfo], now: datetime, _: Mapping[str, Any]) -> None:
    rows = [_row(each, now) for each in found]
    print_table(rows, RECORDS, none="no shared records; their first patch creates them: `limpet patch-record`")
    _print_more(found)


def _row(each: RecordInfo, now: datetime) -> dict[str, str]:
    return {
        "record": each.name,
        "version": str(each.version),
        "age": about(now - each.updated),
        "created": about(now - each.created),
    }


def _record(found: SharedRecord, now: datetime, _: Mapping[str, Any]) -> None:
    print_text("\n".join(_lines(found, now)))


def _patched(found: SharedRecord, _: datetime, __: Mapping[str, Any]) -> None:
    print_text(f"Patched {found.name}: it has version {found.version} now.")


def _lines(found: SharedRecord, now: datetime) -> Iterator[str]:
    yield f"{found.name}, version {found.version}"
    yield from _part("facts", (_fact(each, now) for each in found.known_facts))
    plan = zip(found.plan, found.plan_status, strict=True)
    yield from _part("plan", (f"{number}. {item} ({status})" for number, (item, status) in enumerate(plan, 1)))
    yield from _part("questions", (_question(each) for each in found.questions))
    yield from _part("data", (f"{key}: {_shown(value)}" for key, value in found.data.items()))


def _part(title: str, lines: Iterator[str]) -> Iterator[str]:
    found = list(lines)
    if found:
        yield f"\n{title}"
        yield from (f"  {line}" for line in found)


def _fact(each: Any, now: datetime) -> str:
    step = "" if each.step is None else f", step {each.step}"
    source = f", from {each.source}" if each.source else ""
    return f"{each.key}: {_shown(each.value)} (by {each.by or 'unknown'}{step}, {about(now - each.time)} ago{source})"


def _question(each: Any) -> str:
    answer = "open" if each.answer is None else f"{each.answer} (by {each.answered_by or 'unknown'})"
    return f"{each.id}: {each.question} → {answer}"


def _changes(found: Page[RecordUpdate], now: datetime, _: Mapping[str, Any]) -> None:
    for each in found:
        step = "" if each.step is None else f", step {each.step}"
        print_text(f"version {each.version}, by {each.by or 'unknown'}{step}, {about(now - each.time)} ago")
        for change in each.changes:
            for line in _plan_changes(change) if change.part == "plan" else (_change(change),):
                print_text(f"  {line}")
    if not found:
        print_text("no changes")
    _print_more(found)


def _plan_changes(each: UnitChange) -> Iterator[str]:
    """Yield what changed in a plan, item by item."""
    before = {item["item"]: item["status"] for item in each.before or ()}
    after = {item["item"]: item["status"] for item in each.after or ()}
    yield from (f"plan: {item} removed" for item in before if item not in after)
    for item, status in after.items():
        if before.get(item) != status:
            yield f"plan: {item} {status}" + (f", was {before[item]}" if item in before else "")
    if [item for item in before if item in after] != [item for item in after if item in before]:
        yield f"plan: in another order: {', '.join(after)}"


def _change(each: UnitChange) -> str:
    name = f"{each.part} {each.key}".rstrip()
    if each.after is None:
        return f"{name}: removed, was {_shown(each.before)}"
    was = "" if each.before is None else f", was {_shown(each.before)}"
    return f"{name}: {_shown(each.after)}{was}"


def _shown(value: Any) -> str:
    text = msgspec.json.encode(hide_secrets_in(value), enc_hook=str).decode()
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _print_more(found: Page[Any]) -> None:
    if found.next is not None:
        print_text(f"more: --cursor {found.next}")


RECORD_RENDERERS: Mapping[str, Callable[[Any, datetime, Mapping[str, Any]], None]] = {
    "records": _records,
    "record": _record,
    "record_changes": _changes,
    "patch_record": _patched,
}
