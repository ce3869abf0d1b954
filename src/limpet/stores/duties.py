"""Duties: work that one worker at a time does for the whole store, now and then. The store's clock decides.

A worker takes a duty that is due, keeps its lease while it works, and ends it. If the worker dies, another takes the
duty when the lease has expired.
"""

from msgspec.structs import replace

from limpet.stores import writes
from limpet.stores.row_encryption import hide_duty
from limpet.stores.rows import DutyRow
from limpet.stores.transaction import Transaction

__all__ = ["end", "keep", "take"]


def take(tx: Transaction, op: writes.TakeDuty) -> writes.DutyTurn:
    """Take a duty if it is due and free."""
    row, now = tx.tables.duty(op.duty), tx.tables.now()
    if row.worker not in (None, op.worker) and row.lease_until > now:
        return writes.DutyTurn(taken=False, wait=min(row.lease_until - now, op.lease))
    if row.done is not None and 0 <= now - row.done < op.every:
        return writes.DutyTurn(taken=False, wait=row.done + op.every - now)
    tx.tables.save_duty(replace(row, every=op.every, worker=op.worker, lease_until=now + op.lease))
    return writes.DutyTurn(taken=True, wait=0)


def keep(tx: Transaction, op: writes.KeepDuty) -> bool:
    """Renew the lease of a duty; return whether the worker still holds it."""
    row = tx.tables.duty(op.duty)
    if row.worker != op.worker:
        return False
    tx.tables.save_duty(replace(row, lease_until=tx.tables.now() + op.lease))
    return True


def end(tx: Transaction, op: writes.EndDuty) -> bool:
    """Release a duty, as done or not; return whether the worker still held it."""
    row = tx.tables.duty(op.duty)
    if row.worker != op.worker:
        return False
    tx.tables.save_duty(_ended(tx, row, op))
    return True


def _ended(tx: Transaction, row: DutyRow, op: writes.EndDuty) -> DutyRow:
    free = replace(row, worker=None, lease_until=0)
    if op.is_done:
        return replace(free, done=tx.tables.now(), done_by=op.worker, error="")
    return hide_duty(tx.codec, replace(free, error=op.error)) if op.error else free
