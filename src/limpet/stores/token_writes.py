"""Access tokens: add, revoke, and record that one is used. The store's clock decides."""

from msgspec.structs import replace

from limpet.errors import IdConflict
from limpet.stores import writes
from limpet.stores.row_encryption import hide_revoker, hide_token
from limpet.stores.rows import TokenRow
from limpet.stores.transaction import Transaction

__all__ = ["add", "revoke", "use"]


def add(tx: Transaction, op: writes.AddToken) -> TokenRow:
    """Store a new token, created now. Raises IdConflict if its id is known."""
    row = replace(op.row, created=tx.tables.now())
    if not tx.tables.add_token(hide_token(tx.codec, row)):
        raise IdConflict(what="token", id=row.id, reason="by another token")
    return row


def revoke(tx: Transaction, op: writes.RevokeToken) -> bool:
    """Revoke a token. Return False if there is none, or it was revoked before: the first time stands."""
    found = tx.tables.token(op.token)
    if found is None or found.revoked is not None:
        return False
    tx.tables.save_token(replace(found, revoked=tx.tables.now(), revoked_by=hide_revoker(tx.codec, op.token, op.by)))
    return True


def use(tx: Transaction, op: writes.UseToken) -> bool:
    """Record that a token is used, unless that was recorded less than `every` ago."""
    row, now = tx.tables.token(op.token), tx.tables.now()
    if row is None or (row.last_used is not None and 0 <= now - row.last_used < op.every):
        return False
    tx.tables.save_token(replace(row, last_used=now))
    return True
