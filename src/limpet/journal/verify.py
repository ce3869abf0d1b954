"""Checking a stored log against its own hashes, and against the row that lists show."""

from collections.abc import Sequence

from limpet.errors import Tampered
from limpet.events import START, Event, Head, verify
from limpet.stores import Store

__all__ = ["check_late", "verify_run"]


async def verify_run(store: Store, run: str) -> Head:
    """The head of an intact log; raises Tampered with the first event that is not intact.

    A tail that was cut off, or a log that was rewritten whole, is found only against a head that was kept elsewhere.
    """
    row = await store.get(run)
    head, fence, anchor = START, 0, b""
    while page := await _page(store, run, head.seq):
        head, fence = verify(page, head, fence), page[-1].fence
        if page[0].seq <= row.seq <= head.seq:
            anchor = page[row.seq - page[0].seq].hash
    if head.seq < row.seq:
        raise Tampered(run=run, seq=head.seq + 1, reason=f"it is not there, and its row says that {row.seq} are")
    if anchor != row.hash:
        raise Tampered(run=run, seq=row.seq, reason="it is not the one that its row says")
    if head.seq > row.seq and head.seq > (now := await store.get(run)).seq:  # events come with their row, or not at all
        raise Tampered(run=run, seq=now.seq + 1, reason="its row says that the log ends before it")
    return head


async def check_late(store: Store, run: str) -> None:
    """What came too late was sealed to an event of the log, or to another that came too late; raises Tampered."""
    late = [each.event for each in await store.late(run)]
    for event in late:
        before = [each for each in late if each.seq == event.seq - 1]
        if event.seq > 1:
            before += await store.read(run, after=event.seq - 2, limit=1)
        if not any(_follows(event, each) for each in before):
            raise Tampered(run=run, seq=event.seq, reason="what came too late for it is not what was kept")


def _follows(event: Event, before: Event) -> bool:
    try:
        verify([event], before.head, before.fence)
    except Tampered:
        return False
    return True


async def _page(store: Store, run: str, after: int) -> Sequence[Event]:
    """The next events; if they cannot be read together, one at a time, up to the one that cannot be read at all."""
    try:
        return await store.read(run, after=after)
    except UnicodeError:
        pass
    try:
        return await store.read(run, after=after, limit=1)
    except UnicodeError as error:
        raise Tampered(run=run, seq=after + 1, reason=f"it cannot be read ({error})") from error
