"""Changes: the events of all streams in one order, and notice of new ones."""

from collections.abc import Sequence

from limpet.errors import InvalidArgument
from limpet.stores.api.base import LARGEST_PAGE, StoreBase, check_page
from limpet.stores.rows import Feed, Recent
from limpet.stores.watch import Watch

__all__ = ["Changes"]

SCANNED = 10_000
"""Events to examine at a time when searching for some kinds."""


class Changes(StoreBase):
    """Changes in a store."""

    async def feed(self, after: str = "", *, limit: int = LARGEST_PAGE) -> Feed:
        """Return events of all streams after a cursor, each exactly once and none missed; continue from the page's
        `next`.
        """
        check_page(limit)
        try:
            return await self._ask(lambda: self._feed(after, limit))
        except ValueError as error:
            raise InvalidArgument(path="after", reason=f"{after!r} is not a cursor that this store returned") from error

    async def recent(self, kinds: Sequence[str], *, before: str = "", scan: int = SCANNED) -> Recent:
        """Return events of some kinds among the latest of all, newest first; continue before the page's `next`."""
        try:
            return await self._ask(lambda: self._recent(before, kinds, scan))
        except ValueError as error:
            raise InvalidArgument(
                path="before", reason=f"{before!r} is not a cursor that this store returned"
            ) from error

    async def feed_end(self) -> str:
        """Return the cursor after which a feed has only events that are written from now on."""
        return await self._ask(self._backend.feed_end)

    def watch(self) -> Watch:
        """Watch for changes, including those of other processes. Use `with`."""
        return Watch(self._watching)

    def _feed(self, after: str, limit: int) -> Feed:
        page = self._backend.feed(after, limit)
        self._known(page.events)
        return page

    def _recent(self, before: str, kinds: Sequence[str], scan: int) -> Recent:
        page = self._backend.recent(before, kinds, scan)
        self._known(page.events)
        return page
