"""Shared records for clients: a list of them, and what each version changed."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UnsetType

from limpet.errors import NotFound
from limpet.events import Event
from limpet.events import bodies as b
from limpet.journal import record_id
from limpet.service.page import Page, number_of
from limpet.state.shared_record import RecordFold, RecordState, RecordUnit, units
from limpet.stores import RunFilter, RunRow, Store
from limpet.stores.writes import RECORD
from limpet.times import to_datetime
from limpet.view import View

__all__ = ["RecordInfo", "RecordUpdate", "UnitChange", "record_changes", "record_row", "records_page"]


class RecordInfo(View, frozen=True, kw_only=True):
    """Summary of a shared record, for lists."""

    name: str
    """Name of the record."""
    version: int
    """Its newest version."""
    created: datetime
    """When it was first patched."""
    updated: datetime
    """When it was last patched."""


class UnitChange(View, frozen=True, kw_only=True):
    """A change of one part of a shared record."""

    part: str
    """`fact`, `question`, `plan` or `data`."""
    key: str
    """Key of the fact or value, or id of the question; empty for the plan."""
    before: Any
    """Value before, null if there was none."""
    after: Any
    """Value after, null if it was removed."""


class RecordUpdate(View, frozen=True, kw_only=True):
    """A patch of a shared record: who made it, and what it changed."""

    version: int
    """Version of the record after the patch."""
    read: int
    """Version that its writer had read."""
    by: str
    """Name of the person or service; if `via` is "run", the id of the run."""
    via: str
    """The interface through which it was sent."""
    step: int | None
    """The step of that run."""
    time: datetime
    """When it was made."""
    changes: list[UnitChange]
    """Changes of the record's parts."""


def info_of(row: RunRow) -> RecordInfo:
    """Return the summary of a record."""
    name = row.id.removeprefix(RECORD)
    return RecordInfo(name=name, version=row.seq, created=to_datetime(row.created), updated=to_datetime(row.time))


async def record_row(store: Store, name: str) -> RunRow:
    """Return the row of a record. Raises NotFound, with the first patch as a hint."""
    try:
        return await store.get(record_id(name))
    except NotFound:
        fix = f"""Its first patch creates it: `limpet patch-record {name} --read 0 --facts '{{"key": "value"}}'`."""
        raise NotFound(what="record", id=name, fix=fix) from None


async def records_page(store: Store, limit: int, cursor: str | None) -> Page[RecordInfo]:
    """List the newest records."""
    found = await store.runs(RunFilter(type="record"), before=number_of(cursor), limit=limit)
    return Page([info_of(row) for row in found.rows], None if found.next is None else str(found.next))


async def record_changes(store: Store, name: str, since: int, until: int | None, limit: int) -> Page[RecordUpdate]:
    """List the patches of a record after a version, in order."""
    await record_row(store, name)
    fold, found = RecordFold(), list[RecordUpdate]()
    async for event in store.log(record_id(name), upto=until):
        body, before = store.decode(event), fold.freeze() if event.seq > since else RecordState()
        fold.add(event, body)
        if event.seq > since and isinstance(body, b.RecordPatched):
            found.append(_update(event, body, before, fold.freeze()))
            if len(found) > limit:
                break
    return Page.cut(found, limit, lambda each: each.version)


def _update(event: Event, body: b.RecordPatched, before: RecordState, after: RecordState) -> RecordUpdate:
    return RecordUpdate(
        version=event.seq,
        read=body.read,
        by=body.by,
        via=body.via,
        step=body.number,
        time=to_datetime(event.time),
        changes=[*_changes(body, before, after)],
    )


def _changes(body: b.RecordPatched, before: RecordState, after: RecordState) -> Iterator[UnitChange]:
    for unit in sorted(units(body.patch)):
        yield UnitChange(part=unit.part, key=unit.key, before=_value(before, unit), after=_value(after, unit))


def _value(state: RecordState, unit: RecordUnit) -> Any:
    """Return the value of a part of a record, or None."""
    match unit.part:
        case "fact":
            found: Any = next((each.value for each in state.known_facts if each.key == unit.key), msgspec.UNSET)
        case "question":
            asked = next((each for each in state.questions if each.id == unit.key), None)
            return None if asked is None else {"question": asked.question, "answer": asked.answer}
        case "plan":
            return [{"item": each.item, "status": each.status} for each in state.items] or None
        case _:
            found = state.data.get(unit.key, msgspec.UNSET)
    return None if isinstance(found, UnsetType) else msgspec.json.decode(found)
