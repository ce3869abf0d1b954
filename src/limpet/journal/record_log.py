"""The log of a shared record: its state at any version, and why a patch of it was refused."""

from collections.abc import Iterable
from contextlib import suppress

from limpet.errors import NotFound, RecordConflict
from limpet.events import RecordPatch, Sealed
from limpet.events import bodies as b
from limpet.ids import check_id
from limpet.state.shared_record import RecordFold, RecordState, common_units
from limpet.stores import Missed, Store
from limpet.stores.writes import RECORD

__all__ = ["conflict_of", "read_record", "record_id"]

# Maximum number of changes that a conflict names.
MOST_CHANGES = 20


def record_id(name: str) -> str:
    """Return the id of a record's stream. Raises InvalidArgument for a name that cannot be one."""
    return check_id(f"{RECORD}{check_id(name)}")


async def read_record(store: Store, name: str, version: int | None = None) -> RecordState:
    """Return a record at a version, or at its newest; one that does not exist has version 0.

    Raises NotFound for a version that the record does not have.
    """
    fold = RecordFold()
    with suppress(NotFound):
        async for event in store.log(record_id(name), upto=version):
            fold.add(event, store.decode(event))
    if version is not None and fold.version != version:
        fix = f"Pass a version from 1 to {fold.version}." if fold.version else ""
        raise NotFound(what="version", id=f"{version} of record {name}", fix=fix)
    return fold.freeze()


async def conflict_of(store: Store, name: str, sent: b.RecordPatched, missed: Missed) -> RecordConflict:
    """Return the error for a patch that a record refused because of what others wrote."""
    rows = await store.positions([record_id(name)])
    version = max((each.seq for each in rows.values()), default=0)
    changes = tuple(_changes(sent.patch, missed.events))[:MOST_CHANGES]
    return RecordConflict(record=name, read=sent.read, version=version, changes=changes)


def _changes(patch: RecordPatch, events: Iterable[Sealed]) -> Iterable[str]:
    for sealed in events:
        if isinstance(sealed.body, b.RecordPatched):
            by = f" by {sealed.body.by}" if sealed.body.by else ""
            for unit in sorted(common_units(patch, [sealed.body.patch])):
                yield f"{unit} in version {sealed.event.seq}{by}"
