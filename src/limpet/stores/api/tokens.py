"""Access tokens: the callers that may use the store over HTTP, by the hash of their token."""

from limpet.clock import SECOND
from limpet.ids import check_id
from limpet.stores import writes
from limpet.stores.api.base import LARGEST_PAGE, StoreBase, check_page
from limpet.stores.row_encryption import reveal_token
from limpet.stores.rows import TokenRow

__all__ = ["Tokens"]

# Time between two records that a token is used, in microseconds.
USE_EVERY = 60 * SECOND


class Tokens(StoreBase):
    """Access tokens of a store."""

    async def add_token(self, row: TokenRow) -> TokenRow:
        """Store a new token, and return its row with the time. Raises IdConflict if its id is known."""
        check_id(row.id)
        return await self._submit(writes.AddToken(row=row))

    async def token(self, token: str) -> TokenRow | None:
        """Return a token's row by its id, or None."""
        row = await self._ask(lambda: self._backend.read_token(token))
        return None if row is None else reveal_token(self.codec, row)

    async def tokens(self, *, before: tuple[int, str] | None = None, limit: int = LARGEST_PAGE) -> list[TokenRow]:
        """Return tokens, newest first, without sessions and login codes; pass the time and the id of the last one as
        `before` to continue.
        """
        check_page(limit, LARGEST_PAGE + 1)  # one more, to find out whether there are more
        rows = await self._ask(lambda: self._backend.read_tokens(before, limit))
        return [reveal_token(self.codec, row) for row in rows]

    async def revoke_token(self, token: str, by: str) -> bool:
        """Revoke a token now. Returns False if there is none, or it was revoked before."""
        return await self._submit(writes.RevokeToken(token=token, by=by))

    async def drop_sessions(self, before: int) -> None:
        """Delete sessions and login codes that expired before a time."""
        await self._submit(writes.DropSessions(before=before))

    async def use_token(self, token: str) -> bool:
        """Record that a token is used now, at most once a minute. Returns whether this was recorded."""
        return await self._submit(writes.UseToken(token=token, every=USE_EVERY))
