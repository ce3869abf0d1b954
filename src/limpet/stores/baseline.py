"""Plain insert loops on the same databases, durable and with similar rows, as a baseline for benchmarks."""

from collections.abc import Callable
from typing import NamedTuple

from limpet.clock import SystemClock

__all__ = ["DATA", "DIGEST", "RUNS", "Baseline"]

DATA, DIGEST = b"x" * 950, bytes(32)
# Rows per batch, one for each run.
RUNS = 200


class Baseline(NamedTuple):
    """Rows in a separate table, committed one by one or in batches. Each call has its own sequence number."""

    single: Callable[[int], object]
    batch: Callable[[int], object]

    def per_commit(self, first: int, count: int) -> float:
        """Return the microseconds per durable commit of one row."""
        return _taken(self.single, first, count) / count

    def rows_per_second(self, first: int, count: int) -> float:
        """Return the rows per second in batched commits."""
        return count * RUNS / (_taken(self.batch, first, count) / 10**6)


def _taken(commit: Callable[[int], object], first: int, count: int) -> int:
    clock = SystemClock()
    begun = clock.ticks()
    for seq in range(first, first + count):
        commit(seq)
    return max(clock.ticks() - begun, 1)
