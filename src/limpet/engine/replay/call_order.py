"""Which recorded calls the code makes before a recorded result returns, so that branches take turns as they did. Pure.

Branches that share something (a pool of workers that take items from a queue) depend on more than the order of results:
a branch that gets its result at once, on replay, takes the next item before the others have taken their first. So a
result returns only after the calls of other branches that were made before the next call of its own branch. The log
does not say which of these calls the result caused, so a result waits for them only briefly (see `ReturnOrder`).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable
from itertools import groupby, islice
from typing import NamedTuple

from limpet.engine.replay.history import Record, scope_of

__all__ = ["CallOrder"]

# A branch without a further call: what other branches called later may have come before the result, too.
ENDLESS = 1 << 62
# Calls that are looked at for one result.
FARTHEST = 1_000


class _Call(NamedTuple):
    """A recorded call."""

    seq: int
    scope: str
    end: int | None
    before: int
    """The last end in the same scope before this call; 0 if there is none."""
    until: int
    """The first call in the same scope after this one's end."""


class CallOrder:
    """The recorded calls that the code has not made yet in one execution."""

    def __init__(self, records: Collection[Record]) -> None:
        self.has_branches = len({scope_of(each.name) for each in records}) > 1
        """Whether there are calls in several scopes."""
        if not self.has_branches:
            return
        ordered = sorted(_in_scopes(sorted((scope_of(each.name), each.seq, each.end) for each in records)))
        self._not_made = ordered[::-1]
        self._made: set[int] = set()
        self._by_end = {each.end: each for each in ordered if each.end is not None}

    def note_made(self, seq: int) -> None:
        """Note that the code makes a recorded call."""
        if self.has_branches:
            self._made.add(seq)

    def is_early(self, end: int) -> bool:
        """Return whether other branches made calls before this result returned that they have not made yet."""
        returning = self._by_end.get(end) if self.has_branches else None
        if returning is None:
            return False
        not_made, made = self._not_made, self._made
        while not_made and not_made[-1].seq in made:
            made.discard(not_made.pop().seq)
        for each in islice(reversed(not_made), FARTHEST):
            if each.seq >= returning.until:
                return False
            # A scope inside of this one that has had no result may have been entered because of this one.
            is_other = each.scope != returning.scope and (each.before or not each.scope.startswith(returning.scope))
            if (each.seq < end or (is_other and each.before < end)) and each.seq not in made:
                return True
        return False

    def give_up(self, end: int) -> None:
        """Wait no more for calls that were recorded before an end: the code has not made them, and may never do so."""
        if self.has_branches:
            while self._not_made and self._not_made[-1].seq < end:
                self._made.discard(self._not_made.pop().seq)


def _in_scopes(calls: Iterable[tuple[str, int, int | None]]) -> Iterable[_Call]:
    for scope, group in groupby(calls, key=lambda each: each[0]):
        inside = list(group)
        seqs = [seq for _, seq, _ in inside]
        ends = sorted(end for _, _, end in inside if end is not None)
        for _, seq, end in inside:
            earlier = bisect_left(ends, seq)
            later = len(seqs) if end is None else bisect_right(seqs, end)
            yield _Call(
                seq, scope, end, ends[earlier - 1] if earlier else 0, seqs[later] if later < len(seqs) else ENDLESS
            )
