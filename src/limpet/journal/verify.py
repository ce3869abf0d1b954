"""Checking a stored log against its own hashes, and against the row that lists show."""

from limpet.errors import Tampered
from limpet.events import START, Head, verify
from limpet.stores import Store

__all__ = ["verify_run"]


async def verify_run(store: Store, run: str) -> Head:
    """The head of an intact log; raises Tampered with the first event that is not intact.

    A tail that was cut off, or a log that was rewritten whole, is found only against a head that was kept elsewhere.
    """
    row = await store.get(run)
    head, fence = START, 0
    while page := await store.read(run, after=head.seq):
        head, fence = verify(page, head, fence), page[-1].fence
    if (head.seq, head.hash) != (row.seq, row.hash) and head.seq <= row.seq:
        raise Tampered(run=run, seq=row.seq, reason="the log does not end where its row says")
    return head
