"""A plot of the main figures as SVG: two panels of bars, drawn without a plotting library."""

from collections.abc import Iterable, Sequence
from html import escape
from math import log10
from typing import NamedTuple

from bench.results import Measured, Results

__all__ = ["plot"]

WIDTH, PANEL, LABELS, BAR, GAP, TOP = 920, 460, 168, 15, 6, 62
COLOURS = {"bare": "#9aa3ad", "Limpet": "#0b7285", "peer": "#e8a33d"}
FONT = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"


class Bar(NamedTuple):
    """A bar with its label and spread."""

    label: str
    found: Measured
    colour: str


class Panel(NamedTuple):
    """One diagram."""

    title: str
    note: str
    workload: str
    figure: str
    logarithmic: bool


PANELS = (
    Panel("One run: µs a step", "less is better; logarithmic scale", "one", "step", logarithmic=True),
    Panel("Many runs at once: steps per second", "more is better", "many", "steps", logarithmic=False),
)
# Without the engine, bars would be so long that all others were short; the tables have them.
LEFT_OUT = ("bare batches", "bare commits between work", "Limpet's store")


def plot(results: Results) -> str:
    """Return the plot. Without figures it has only its titles."""
    panels = [(panel, [*_bars(results, panel)]) for panel in PANELS]
    rows = max((len(bars) for _, bars in panels), default=0)
    height = TOP + max(rows, 1) * (BAR + GAP) + 34
    body = [part for place, (panel, bars) in enumerate(panels) for part in _panel(panel, bars, place * PANEL)]
    facts = ", ".join(results.environment.get(name, "") for name in ("Processor", "File system") if results.environment)
    foot = f"Medians, with the smallest and largest value; results of 1 KB, durable commits. {facts}"
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' role='img' {FONT}>",
            "<title>Steps of Limpet and its peers</title>",
            f"<rect width='{WIDTH}' height='{height}' fill='#ffffff' rx='6'/>",
            *body,
            _text(16, height - 12, foot, size=11, colour="#6b7280"),
            "</svg>",
            "",
        ]
    )


def _bars(results: Results, panel: Panel) -> Iterable[Bar]:
    for on in ("SQLite", "PostgreSQL"):
        for row in results.rows(panel.workload):
            found = results.measured(row, panel.figure)
            if row.on == on and found is not None and row.who not in LEFT_OUT:
                colour = COLOURS.get(row.who.split(",")[0].split()[0], COLOURS["peer"])
                yield Bar(f"{row.who} · {on}", found, colour)


def _panel(panel: Panel, bars: Sequence[Bar], left: int) -> Iterable[str]:
    yield _text(left + 16, 26, panel.title, size=15, weight=600)
    yield _text(left + 16, 44, panel.note, size=11, colour="#6b7280")
    if not bars:
        return
    start, room = left + LABELS, PANEL - LABELS - 74
    low = min(bar.found.low for bar in bars)
    high = max(bar.found.high for bar in bars)
    for place, bar in enumerate(bars):
        top = TOP + place * (BAR + GAP)

        def at(value: float) -> float:
            return start + room * _share(value, low, high, logarithmic=panel.logarithmic)

        end, middle = at(bar.found.median), top + BAR / 2
        yield _text(start - 6, top + BAR - 3, bar.label, size=11, anchor="end")
        yield f"<rect x='{start}' y='{top}' width='{end - start:.1f}' height='{BAR}' fill='{bar.colour}' rx='2'/>"
        if len(bar.found.values) > 1:
            yield (
                f"<path d='M{at(bar.found.low):.1f} {middle}H{at(bar.found.high):.1f}' "
                "stroke='#1f2933' stroke-width='1.2'/>"
            )
        yield _text(max(end, at(bar.found.high)) + 5, top + BAR - 3, f"{bar.found.median:,.0f}", size=11)


def _share(value: float, low: float, high: float, *, logarithmic: bool) -> float:
    """Return the length of a bar, as a share of the room."""
    if not logarithmic:
        return value / high
    floor = low / 2
    return log10(value / floor) / log10(high / floor)


def _text(  # noqa: PLR0913 - keyword-only
    x: float, y: float, text: str, *, size: int, colour: str = "#1f2933", weight: int = 400, anchor: str = "start"
) -> str:
    how = f"font-size='{size}' fill='{colour}' font-weight='{weight}' text-anchor='{anchor}'"
    return f"<text x='{x:.1f}' y='{y:.1f}' {how}>{escape(text)}</text>"
