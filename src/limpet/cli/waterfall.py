"""A waterfall chart of steps and waits, scaled to the width of the terminal."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from limpet.cli.output import STYLES, about, clean
from limpet.service.steps import StepInfo, describe_failure
from limpet.service.timeline import Span, TimelineRow

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

__all__ = ["waterfall"]

# Number of newest steps shown; `limpet steps` has all.
MOST = 20
# In columns: width without a terminal, minimum and maximum width of bars, minimum width of names.
WIDTH, SHORTEST, LONGEST, NAME = 80, 8, 40, 12
# Columns for duration, status and attempts, with the spaces between.
BESIDE = 7 + 2 + 9 + 4 + 2


class Ink(NamedTuple):
    """Characters to draw bars with."""

    work: str
    failed: str
    unknown: str
    waits: str
    cut: str


BLOCKS, LETTERS = Ink("█", "▒", "?", "·", "…"), Ink("#", "x", "?", ".", "~")


class Row(Struct, frozen=True, kw_only=True):
    """A row of the chart: a step, or a wait of the whole run."""

    number: str
    name: str
    status: str
    attempts: int
    spans: Sequence[Span]
    below: tuple[str, ...] = ()


class Scale(Struct, frozen=True, kw_only=True):
    """Mapping from times to columns."""

    start: datetime
    end: datetime
    width: int
    ink: Ink

    def bar(self, spans: Sequence[Span]) -> str:
        """Draw spans as a bar. Work is drawn over waits, and takes at least one column."""
        cells = [" "] * self.width
        for span in sorted(spans, key=lambda each: each.how != "waits"):
            first = max(min(self._column(span.start), self.width - 1), 0)
            last = min(max(self._column(span.end or self.end), first + 1), self.width)
            cells[first:last] = self._ink(span) * (last - first)
        return "".join(cells)

    def seen(self, spans: Sequence[Span]) -> bool:
        """Return whether a span is open or at least one column long."""
        column = (self.end - self.start) / (self.width or LONGEST)
        return any(span.end is None or span.end - span.start >= column for span in spans)

    def _column(self, time: datetime) -> int:
        return round((time - self.start) * self.width / max(self.end - self.start, timedelta(microseconds=1)))

    def _ink(self, span: Span) -> str:
        inks = {"waits": self.ink.waits, "failed": self.ink.failed, "unknown": self.ink.unknown}
        return inks.get(span.how, self.ink.work)


def waterfall(
    steps: Sequence[StepInfo], lines: Sequence[TimelineRow], now: datetime, out: "Console", *, earlier: int = 0
) -> Iterator["Text"]:
    """Return a line for each of the newest steps and each noticeable wait, with errors below it.

    `earlier` is the number of steps before these.
    """
    from rich.text import Text  # noqa: PLC0415 - slow to import

    hidden, steps = earlier + max(len(steps) - MOST, 0), steps[-MOST:]
    since = steps[0].started if hidden else min([now, *(line.start for line in lines)])
    drawn = [line for line in lines if (line.end or now) >= since]
    ink = LETTERS if out.options.ascii_only else BLOCKS
    scale = Scale(
        start=max(min((line.start for line in drawn), default=now), since),
        end=max((line.end or now for line in drawn), default=now),
        width=_bar_width(out),
        ink=ink,
    )
    if hidden:
        yield Text(f"{ink.cut} {hidden} steps before these")
    rows = [*_rows(steps, drawn, scale)]
    if not rows:
        return
    took = about(scale.end - scale.start, exact=True)
    doubt = f"  {ink.unknown} unknown" if any(span.how == "unknown" for row in rows for span in row.spans) else ""
    yield Text(f"{took} in all: {ink.work} work  {ink.failed} failed{doubt}  {ink.waits} waits")
    names = _name_width(out, rows)
    digits = max(len(row.number) for row in rows)
    for row in rows:
        yield _drawn(row, scale, names, digits)
        for text in row.below:
            yield _cut(f"{' ' * (digits + 2)}{clean(text)}", out.width, ink)


def _rows(steps: Sequence[StepInfo], lines: Sequence[TimelineRow], scale: Scale) -> Iterator[Row]:
    spans = {line.number: line.spans for line in lines if line.number is not None}
    waits = [line for line in lines if line.number is None and scale.seen(line.spans)]
    rows = [(step.started, _step(step, spans.get(step.number, ()))) for step in steps]
    rows += [(line.start, _wait(line)) for line in waits]
    yield from (row for _, row in sorted(rows, key=lambda each: each[0]))


def _step(step: StepInfo, spans: Sequence[Span]) -> Row:
    error = "" if step.error is None else describe_failure(step.error)
    if not error and step.status == "unknown":
        error = f"no answer: {step.attempts[-1].reason}"
    if step.status == "unknown" and step.key:
        error = f"{error.removesuffix('.')}; idempotency key {step.key}"
    below = tuple(each for each in (step.note if step.status == "running" else "", error) if each)
    return Row(
        number=str(step.number),
        name=step.name,
        status=step.status,
        attempts=step.attempt_count,
        spans=spans,
        below=below,
    )


def _wait(line: TimelineRow) -> Row:
    status = "waits" if line.end is None else ""
    return Row(number="", name=f"waits: {line.name}", status=status, attempts=1, spans=line.spans)


def _drawn(row: Row, scale: Scale, names: int, digits: int) -> "Text":
    from rich.text import Text  # noqa: PLC0415

    cut = _end_of if row.number else _cut
    name = cut(clean(row.name), names, scale.ink)
    name.pad_right(names - name.cell_len)
    took = ""
    if row.spans:
        took = about((row.spans[-1].end or scale.end) - row.spans[0].start, exact=True)
        took = f"<{took}" if row.spans[0].at_most else took
    tries = f" ×{row.attempts}" if row.attempts > 1 else ""
    bar = f"  {scale.bar(row.spans)}" if scale.width else ""
    style = STYLES.get(row.status, "dim" if not row.number else "")
    text = Text(f"{row.number:>{digits}}  ").append_text(name)
    text.append(bar, style=style).append(f"  {took:>6}  ").append(row.status, style=style).append(tries)
    text.rstrip()
    return text


def _end_of(name: str, width: int, ink: Ink) -> "Text":
    """Truncate a name to a width in columns: its end says which step it is, its start only in which scope."""
    from rich.text import Text  # noqa: PLC0415

    found = Text(name)
    while found.cell_len > width - (len(found) < len(name)):
        found = found[1:]
    return found if len(found) == len(name) else Text(ink.cut).append_text(found)


def _cut(text: str, width: int, ink: Ink) -> "Text":
    """Truncate text to a width in columns, with a mark where it was cut."""
    from rich.text import Text  # noqa: PLC0415

    found = Text(text)
    if found.cell_len > width:
        found.truncate(width - 1)
        found.append(ink.cut)
    return found


def _bar_width(out: "Console") -> int:
    """Return the width of bars: half of the free space, or 0 if that is too narrow."""
    width = out.width if out.is_terminal else WIDTH
    left = min((width - BESIDE) // 2, LONGEST)
    return left if left >= max(SHORTEST, NAME) else 0


def _name_width(out: "Console", rows: Sequence[Row]) -> int:
    from rich.cells import cell_len  # noqa: PLC0415

    longest = max(cell_len(clean(row.name)) for row in rows)
    if not out.is_terminal:
        return longest
    digits = max(len(row.number) for row in rows) + 2
    bar = _bar_width(out)
    return min(longest, max(out.width - digits - BESIDE - (bar + 2 if bar else 0), NAME))
