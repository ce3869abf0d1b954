"""The rows of a waterfall: steps with their attempts, and waits, each with the places where they are drawn."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from limpet.web.ui.rendering import age
from limpet.web.ui.time_scale import TimeScale

__all__ = ["Waterfall", "waterfall_of"]

# Smallest width of a bar, in percent.
THINNEST = 0.4
TICKS = (0.0, 25.0, 50.0, 75.0)
Row = Mapping[str, Any]


class Waterfall(Struct, frozen=True, kw_only=True):
    """Rows of a waterfall."""

    rows: list[dict[str, Any]]
    ticks: list[tuple[float, str]]
    """Labels of the axis: percent and text."""
    is_folded: bool
    """Whether long pauses are folded."""
    worked: str
    """How long steps worked, and in which time."""


def waterfall_of(
    steps: Sequence[Row], timeline: Sequence[Row], now: datetime, *, is_live: bool, fold: bool = True
) -> Waterfall:
    """Return the rows for some steps, those that are shared with an origin first, then the timeline in its order."""
    by_number = {step["number"]: step for step in steps}
    drawn = {row["number"] for row in timeline}
    shared = [
        {"number": step["number"], "name": step["name"], "spans": []} for step in steps if step["number"] not in drawn
    ]
    rows = [row for row in (*shared, *timeline) if row["number"] is None or row["number"] in by_number]
    spans = [span for row in rows for span in row["spans"]]
    if not spans:
        return Waterfall(rows=[_bare(row, by_number) for row in rows], ticks=[], is_folded=False, worked="")
    busy = [(_at(span["start"]), _end(span, now)) for span in spans if span["how"] != "waits"]
    begins = min(_at(span["start"]) for span in spans)
    ends = max(_end(span, now) for span in spans)
    scale = TimeScale(begins, now if is_live else ends, busy, fold=fold)
    return Waterfall(
        rows=[_drawn(row, by_number, scale, now) for row in rows],
        ticks=[*_ticks(scale)],
        is_folded=scale.is_folded,
        worked=f"{age(_union(busy))} of work in {age(ends - begins)}",
    )


def _bare(row: Row, steps: Mapping[int, Row]) -> dict[str, Any]:
    return {**row, "step": steps.get(row["number"]), "spans": [], "took": "", "says": "shared with its origin"}


def _drawn(row: Row, steps: Mapping[int, Row], scale: TimeScale, now: datetime) -> dict[str, Any]:
    if not row["spans"]:
        return _bare(row, steps)
    spans = [_span(span, scale, now) for span in row["spans"]]
    took = age(_end(row["spans"][-1], now) - _at(row["spans"][0]["start"]))
    tried = [span["how"] for span in row["spans"] if span["how"] != "waits"]
    says = f"waits, {took}" if not tried else f"{', '.join(tried)}, {took}"
    return {**row, "step": steps.get(row["number"]), "spans": spans, "took": took, "says": says}


def _span(span: Row, scale: TimeScale, now: datetime) -> dict[str, Any]:
    left, right = scale.percent(_at(span["start"])), scale.percent(_end(span, now))
    width = min(max(right - left, THINNEST), 100 - left) if left < 100 else THINNEST
    left = min(left, 100 - THINNEST)
    return {"how": span["how"], "x": round(left, 2), "width": round(width, 2), "end": round(left + width, 2)}


def _ticks(scale: TimeScale) -> Iterator[tuple[float, str]]:
    begins, said = scale.time_at(0), set[str]()
    for percent in TICKS:
        time = scale.time_at(percent)
        text = f"{time:%H:%M:%S}" if percent == 0 else f"+{age(time - begins)}"
        if text not in said:
            yield percent, text
        said.add(text)


def _union(busy: Sequence[tuple[datetime, datetime]]) -> timedelta:
    """Return how long at least one of some periods lasted."""
    whole, last = timedelta(), None
    for start, end in sorted(busy):
        if last is None or end > last:
            whole += end - (start if last is None else max(start, last))
            last = end
    return whole


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _end(span: Row, now: datetime) -> datetime:
    return now if span["end"] is None else _at(span["end"])
