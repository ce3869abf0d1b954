"""The log of a shared record: its state at any version, and why a patch of it was refused.

States that were read are kept in memory, so that the next reader folds only what was written since. They are used only
if the store's log continues them: each event that follows is checked against the hash of the one before.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple
from weakref import WeakKeyDictionary

from limpet.errors import NotFound, RecordConflict, Tampered
from limpet.events import START, Head, RecordPatch, Sealed, verify
from limpet.events import bodies as b
from limpet.ids import check_id
from limpet.state.shared_record import RecordFold, RecordState, common_units
from limpet.stores import Missed, Store
from limpet.stores.writes import RECORD

__all__ = ["conflict_of", "read_record", "record_id"]

# Maximum number of changes that a conflict names.
MOST_CHANGES = 20
# Number of records of a store that are kept in memory, and of their newest versions that were read.
MOST_RECORDS, MOST_VERSIONS = 100, 16


def record_id(name: str) -> str:
    """Return the id of a record's stream. Raises InvalidArgument for a name that cannot be one."""
    return check_id(f"{RECORD}{check_id(name)}")


async def read_record(store: Store, name: str, version: int | None = None) -> RecordState:
    """Return a record at a version, or at its newest; one that does not exist has version 0.

    Raises NotFound for a version that the record does not have.
    """
    kept = _kept_states(store, record_id(name))
    fitting = [each for each in kept if version is None or each.head.seq <= version]
    known = max(fitting, key=lambda each: each.head.seq, default=_NONE)
    try:
        found = await _read_on(store, record_id(name), known, version)
    except Tampered:
        if known is _NONE:
            raise
        kept.clear()  # it is another log
        found = await _read_on(store, record_id(name), _NONE, version)
    if version is not None and found.head.seq != version:
        fix = f"Pass a version from 1 to {found.head.seq}." if found.head.seq else ""
        raise NotFound(what=f"version {version} of record", id=name, fix=fix)
    if found is not known:
        kept.append(found)
    return found.state


class _Known(NamedTuple):
    """A state of a record, and the event after which it is."""

    head: Head
    state: RecordState


_NONE = _Known(START, RecordState())
_states: WeakKeyDictionary[Store, OrderedDict[str, deque[_Known]]] = WeakKeyDictionary()


def _kept_states(store: Store, id: str) -> deque[_Known]:
    """Return the states of a record that are kept in memory."""
    records = _states.setdefault(store, OrderedDict())
    kept = records.setdefault(id, deque(maxlen=MOST_VERSIONS))
    records.move_to_end(id)
    if len(records) > MOST_RECORDS:
        records.popitem(last=False)
    return kept


async def _read_on(store: Store, id: str, known: _Known, version: int | None) -> _Known:
    """Fold what follows a state, up to a version. Raises Tampered if it does not follow."""
    fold, head, is_known = RecordFold(known.state), known.head, known is _NONE
    with suppress(NotFound):
        async for event in store.log(id, after=max(head.seq - 1, 0), upto=version):
            if event.seq > head.seq:
                head = verify((event,), head)
                fold.add(event, store.decode(event))
            else:
                is_known = event.hash == head.hash
    if not is_known:
        raise Tampered(run=id, seq=head.seq, reason="the log is not the one that was read before")
    return known if head == known.head else _Known(head, fold.freeze())


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
