"""Bare loops on the databases that stores are kept in, durable, with rows like ours: what we are measured beside."""

from collections.abc import Callable
from typing import NamedTuple

from limpet.clock import SystemClock

__all__ = ["DATA", "DIGEST", "RUNS", "Baseline"]

DATA, DIGEST = b"x" * 950, bytes(32)
# How many rows go into a batch, one of each run.
RUNS = 200


class Baseline(NamedTuple):
    """Rows in a table of their own, committed one by one or many at once; each call has its own number."""

    single: Callable[[int], object]
    batch: Callable[[int], object]

    def per_commit(self, first: int, count: int) -> float:
        """Microseconds for one durable commit of one row."""
        return _taken(self.single, first, count) / count

    def rows_per_second(self, first: int, count: int) -> float:
        """Rows a second, in commits of a batch."""
        return count * RUNS / (_taken(self.batch, first, count) / 10**6)


def _taken(commit: Callable[[int], object], first: int, count: int) -> int:
    clock = SystemClock()
    begun = clock.ticks()
    for seq in range(first, first + count):
        commit(seq)
    return max(clock.ticks() - begun, 1)
