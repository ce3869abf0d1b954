"""Verify a stored log against its own hashes, and against its row."""

from collections.abc import Sequence

from limpet.errors import Tampered
from limpet.events import START, Event, Head, verify
from limpet.events import bodies as b
from limpet.state import Fold
from limpet.state.patch import changes_plan
from limpet.stores import Store

__all__ = ["check_late", "check_position", "verify_run"]


async def verify_run(store: Store, run: str) -> Head:
    """Return the head of an intact log. Raises Tampered for the first event that is not intact.

    A truncated tail, or a completely rewritten log, is detected only by comparison with a head that was saved
    elsewhere.
    """
    row = await store.get(run)
    head, fence, anchor = START, 0, b""
    while page := await _page(store, run, head.seq):
        head, fence = verify(page, head, fence), page[-1].fence
        if page[0].seq <= row.seq <= head.seq:
            anchor = page[row.seq - page[0].seq].hash
    if head.seq < row.seq:
        raise Tampered(run=run, seq=head.seq + 1, reason=f"the event is missing, but its row ends at event {row.seq}")
    if anchor != row.hash:
        raise Tampered(run=run, seq=row.seq, reason="the hash differs from that in its row")
    if head.seq > row.seq and head.seq > (now := await store.get(run)).seq:  # Events and row commit together.
        raise Tampered(run=run, seq=now.seq + 1, reason="its row says that the log ends before this event")
    return head


async def check_position(store: Store, run: str) -> None:
    """Raise Tampered if a run's row has another position than its log: another step, or another item of the plan.

    Each patch records the position after it, and the row copies that. Patches of version 1 do not; a run with one of
    them is not checked.
    """
    row = await store.get(run)
    if row.type != "run":
        return
    building = Fold()
    async for event in store.log(run, upto=row.seq):
        body = store.decode(event)
        if isinstance(body, b.StatePatched) and body.items is None and changes_plan(body.patch):
            return
        building.add(event, body)
    found = building.freeze().position
    stored, folded = (row.step, row.steps, row.item, row.items), (found.step, found.steps, found.item, found.items)
    if stored != folded:
        reason = f"rows do not match the log (run: the position is {stored!r}, but the log has {folded!r})"
        raise Tampered(run=run, seq=row.seq, reason=reason)


async def check_late(store: Store, run: str) -> None:
    """Raise Tampered for a late event that was not sealed to an event of the log, or to another late event."""
    late = [each.event for each in await store.late(run)]
    for event in late:
        before = [each for each in late if each.seq == event.seq - 1]
        if event.seq > 1:
            before += await store.read(run, after=event.seq - 2, limit=1)
        if not any(_follows(event, each) for each in before):
            raise Tampered(run=run, seq=event.seq, reason="a late event does not match the log")


def _follows(event: Event, before: Event) -> bool:
    try:
        verify([event], before.head, before.fence)
    except Tampered:
        return False
    return True


async def _page(store: Store, run: str, after: int) -> Sequence[Event]:
    """Return the next events. If they cannot be read together, read one at a time, up to the unreadable one."""
    try:
        return await store.read(run, after=after)
    except UnicodeError:
        pass
    try:
        return await store.read(run, after=after, limit=1)
    except UnicodeError as error:
        raise Tampered(run=run, seq=after + 1, reason=f"cannot be read ({error})") from error
