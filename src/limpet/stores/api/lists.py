"""Lists: runs, requests, scores, streams and contracts, by filter and by page."""

from collections.abc import Collection, Mapping, Sequence

from limpet.stores import writes
from limpet.stores.api.base import LARGEST_PAGE, StoreBase, check_page
from limpet.stores.row_encryption import (
    hide_filter,
    hide_score_filter,
    reveal_contract,
    reveal_request,
    reveal_row,
    reveal_score,
)
from limpet.stores.rows import (
    ContractRow,
    Place,
    RequestFilter,
    RequestRow,
    RowPage,
    RunFilter,
    RunRow,
    ScoreFilter,
    ScoreRow,
)
from limpet.stores.search import row_contains

__all__ = ["Lists"]

EVERYTHING = RunFilter()
OPEN = RequestFilter()
ALL_SCORES = ScoreFilter()


class Lists(StoreBase):
    """Lists of a store."""

    async def runs(self, where: RunFilter = EVERYTHING, *, before: int | None = None, limit: int = 50) -> RowPage:
        """Return matching runs, newest first; pass a page's `next` as `before` for the next page."""
        check_page(limit)
        wanted = hide_filter(self.codec, where)
        page = await self._ask(lambda: self._backend.runs(wanted, before, limit))
        rows = tuple(reveal_row(self.codec, row) for row in page.rows)
        if where.text is None or not self.codec.is_private:
            return RowPage(rows, page.next)
        found = [row for row in rows if row_contains(row, where.text)]  # Hidden text is searched here.
        while len(found) < limit and page.next is not None:
            start = page.next
            page = await self._ask(lambda: self._backend.runs(wanted, start, limit))  # noqa: B023
            found += [row for each in page.rows if row_contains(row := reveal_row(self.codec, each), where.text)]
        more = page.next is not None or len(found) > limit
        return RowPage(tuple(found[:limit]), found[limit - 1].number if more and len(found) >= limit else None)

    async def latest_runs(
        self, where: RunFilter = EVERYTHING, *, before: Place | None = None, limit: int = 50
    ) -> list[RunRow]:
        """Return matching runs, those with the newest last event first. To continue, pass the last run's `place`.

        A run that goes on while pages are read moves to the beginning of the list, and later pages do not have it.
        """
        check_page(limit)
        wanted, found = hide_filter(self.codec, where), list[RunRow]()
        while True:
            start = before
            page = await self._ask(lambda: self._backend.latest(wanted, start, limit))  # noqa: B023
            rows = [reveal_row(self.codec, row) for row in page]
            is_hidden = where.text is not None and self.codec.is_private  # Hidden text is searched here.
            found += [row for row in rows if not is_hidden or row_contains(row, where.text or "")]
            if len(found) >= limit or len(rows) < limit:
                return found[:limit]
            before = rows[-1].place

    async def count(self, where: RunFilter = EVERYTHING) -> int:
        """Return the number of matching runs."""
        if where.text is not None and self.codec.is_private:
            total, page = 0, await self.runs(where, limit=LARGEST_PAGE)
            while page.next is not None:
                total, page = total + len(page.rows), await self.runs(where, before=page.next, limit=LARGEST_PAGE)
            return total + len(page.rows)
        wanted = hide_filter(self.codec, where)
        return await self._ask(lambda: self._backend.count(wanted))

    async def counts(self) -> Mapping[tuple[str, str], int]:
        """Return the number of runs by (agent, status), from counters."""
        return await self._ask(self._backend.counts)

    async def requests(self, where: RequestFilter = OPEN, *, limit: int = LARGEST_PAGE) -> list[RequestRow]:
        """Return matching requests, oldest first."""
        check_page(limit, LARGEST_PAGE + 1)  # one more, to find out whether there are more
        found = await self._ask(lambda: self._backend.requests(where, limit))
        return [reveal_request(self.codec, row) for row in found]

    async def count_requests(self) -> int:
        """Return the number of open requests."""
        return await self._ask(self._backend.count_requests)

    async def scores(self, where: ScoreFilter = ALL_SCORES, *, limit: int = LARGEST_PAGE) -> list[ScoreRow]:
        """Return matching scores, newest first. To continue, pass time, run and sequence of the last as `before`."""
        check_page(limit, LARGEST_PAGE + 1)  # one more, to find out whether there are more
        wanted = hide_score_filter(self.codec, where)
        found = await self._ask(lambda: self._backend.scores(wanted, limit))
        return [reveal_score(self.codec, row) for row in found]

    async def streams(self, *, after: int = 0, limit: int = LARGEST_PAGE) -> list[tuple[int, str]]:
        """Return the numbers and ids of all runs and conversations, in order; pass the last number as `after` to
        continue.
        """
        check_page(limit)
        return await self._ask(lambda: self._backend.streams(after, limit))

    async def contracts(self, agent: str | None = None) -> list[ContractRow]:
        """Return the contracts of an agent, or of all agents, ordered by agent, time of saving, and version."""
        return await self._ask(lambda: self._contracts(agent))

    async def save_contracts(
        self, rows: Sequence[ContractRow], *, again: Collection[tuple[str, str]] = frozenset()
    ) -> None:
        """Save the contracts of agents, by agent and version. One with an unchanged hash is not written again.

        Those in `again` are written anyway: an older version that is deployed again becomes the newest.
        """
        for row in rows:
            writes.check_contract(row)
        if rows:
            await self._submit(writes.SaveContracts(rows=tuple(rows), again=frozenset(again)))

    def _contracts(self, agent: str | None) -> list[ContractRow]:
        rows = [reveal_contract(self.codec, row) for row in self._backend.contracts(agent)]
        return sorted(rows, key=lambda row: (row.agent, row.saved, row.version))
