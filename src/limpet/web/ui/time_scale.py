"""Where times are drawn: long pauses in which a run only waited are folded to a fixed width."""

from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

__all__ = ["TimeScale"]

# Pauses from this length on are folded, each to this share of the time in between.
LONG = timedelta(seconds=10)
FOLDED = 0.08


class _Piece(NamedTuple):
    """A period that is drawn with one scale."""

    start: datetime
    end: datetime
    width: float
    is_folded: bool


class TimeScale:
    """Maps times to percent of a row."""

    def __init__(self, begins: datetime, ends: datetime, busy: Sequence[tuple[datetime, datetime]], *, fold: bool):
        self._pieces = [*_pieces(begins, max(ends, begins + timedelta(milliseconds=1)), busy, fold=fold)]
        self._starts = [piece.start for piece in self._pieces]
        self._lefts = [sum(piece.width for piece in self._pieces[:place]) for place in range(len(self._pieces) + 1)]

    @property
    def is_folded(self) -> bool:
        """Whether a pause is folded."""
        return any(piece.is_folded for piece in self._pieces)

    def percent(self, time: datetime) -> float:
        """Return where a time is drawn."""
        place = min(max(bisect_right(self._starts, time) - 1, 0), len(self._pieces) - 1)
        piece = self._pieces[place]
        share = min(max((time - piece.start) / (piece.end - piece.start), 0), 1)
        return (self._lefts[place] + share * piece.width) / self._lefts[-1] * 100

    def time_at(self, percent: float) -> datetime:
        """Return the time that is drawn at a place."""
        wanted = percent / 100 * self._lefts[-1]
        place = min(max(bisect_right(self._lefts, wanted) - 1, 0), len(self._pieces) - 1)
        piece = self._pieces[place]
        return piece.start + (piece.end - piece.start) * min(max((wanted - self._lefts[place]) / piece.width, 0), 1)


def _pieces(begins: datetime, ends: datetime, busy: Sequence[tuple[datetime, datetime]], *, fold: bool) -> list[_Piece]:
    """Return the periods between the ends of long pauses, in order."""
    pauses: list[tuple[datetime, datetime]] = []
    last = begins
    for start, end in sorted(busy) if fold else ():
        if start - last >= LONG:
            pauses.append((last, start))
        last = max(last, end)
    if fold and ends - last >= LONG:
        pauses.append((last, ends))
    shown = (ends - begins - sum((end - start for start, end in pauses), timedelta())).total_seconds()
    width = max(shown * FOLDED, 0.001)
    found, at = list[_Piece](), begins
    for start, end in pauses:
        if start > at:
            found.append(_Piece(at, start, (start - at).total_seconds(), is_folded=False))
        found.append(_Piece(start, end, width, is_folded=True))
        at = end
    if ends > at:
        found.append(_Piece(at, ends, (ends - at).total_seconds(), is_folded=False))
    return found
