"""Output of commands: JSON, text, tables and progress bars. Secrets are redacted, control characters removed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import typer
from msgspec import Struct

from limpet.redaction import hide_secrets, hide_secrets_in
from limpet.service.json_values import as_json
from limpet.service.operation import bounded
from limpet.service.page import Page
from limpet.service.progress import report_progress_to
from limpet.times import format_time

__all__ = [
    "STYLES",
    "TableLayout",
    "about",
    "bar",
    "cell",
    "clean",
    "console",
    "fit_table",
    "print_data",
    "print_json",
    "print_line",
    "print_pairs",
    "print_table",
    "print_text",
    "table",
    "until",
]

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


STYLES = {
    "completed": "green",
    "failed": "red",
    "unknown": "red",
    "cancelled": "dim",
    "undone": "dim",
    "waiting": "yellow",
    "retrying": "yellow",
    "running": "cyan",
    "ok": "green",
    "warn": "yellow",
    "bad": "red",
}
# Width without a terminal: no line is wrapped.
WIDE = 10_000


def print_json(value: Any) -> None:
    """Print a value as indented JSON, of limited size."""
    print_data(bounded(hide_secrets_in(as_json(value)), is_page=isinstance(value, Page)))


def print_data(plain: Any) -> None:
    """Print JSON data that is already redacted, indented."""
    typer.echo(msgspec.json.format(msgspec.json.encode(plain, enc_hook=str), indent=2).decode())


def print_line(value: Any) -> None:
    """Print a value as JSON on one line."""
    typer.echo(msgspec.json.encode(hide_secrets_in(as_json(value))).decode())


def print_text(text: str) -> None:
    """Print text without control characters."""
    for line in hide_secrets(text).splitlines():
        typer.echo(clean(line))


def console() -> "Console":
    """Return the console: with colour only on a capable terminal without NO_COLOR."""
    from rich.console import Console  # noqa: PLC0415 - importing it takes 100 ms

    found = Console()
    is_plain = found.no_color or not found.is_terminal or found.is_dumb_terminal
    out = Console(
        color_system=None if is_plain else "auto",
        width=None if found.is_terminal else WIDE,
        highlight=False,
        markup=False,
        emoji=False,
    )
    out.on_broken_pipe = _broken_pipe  # type: ignore[method-assign]
    return out


def _broken_pipe() -> None:
    """Raise the same error as other output would."""
    raise BrokenPipeError


def table(*columns: str) -> "Table":
    """Return an empty table without borders."""
    from rich.table import Table  # noqa: PLC0415

    return Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


def print_pairs(out: "Console", rows: Iterable[tuple[str, str]]) -> None:
    """Print names with their values, aligned."""
    found = table("", "")
    found.show_header = False
    for name, value in rows:
        found.add_row(name, cell(value))
    out.print(found)


def cell(value: str) -> "Text":
    """Return a table cell; a status gets its colour."""
    from rich.text import Text  # noqa: PLC0415

    return Text(clean(value), style=STYLES.get(value, ""))


def clean(text: object) -> str:
    """Return text on one line without control characters: text from runs is not trusted."""
    return "".join(each if each.isprintable() else " " for each in hide_secrets(str(text)))


if TYPE_CHECKING:
    from rich.table import Table


Row = Mapping[str, str]
# Spaces after each column.
GAP = 2


class TableLayout(Struct, frozen=True, kw_only=True):
    """How a table is fitted into a narrow terminal."""

    narrow: Mapping[str, int]
    """Minimum width of each shrinkable column, in the order in which they shrink."""
    left_out: Sequence[str]
    """Columns to drop if that is not enough, in this order."""
    wraps: Sequence[str] = ()
    """Columns whose text is wrapped; others are truncated."""


def print_table(rows: Sequence[Row], shape: TableLayout, *, none: str) -> None:
    """Print the rows as a table, or `none` if there are no rows."""
    out = console()
    out.print(fit_table(rows, out.width, shape) if rows else none)


def fit_table(rows: Sequence[Row], width: int, shape: TableLayout) -> "Table":
    """Return a table of the columns that fit."""
    cells = [{name: cell(value) for name, value in row.items()} for row in rows]
    natural = {name: max(len(name), *(row[name].cell_len for row in cells)) for name in cells[0]}
    widths = _fitting(natural, width, shape)
    found = table(*widths)
    for column, (name, each) in zip(found.columns, widths.items(), strict=True):
        column.width = each
        column.no_wrap = name not in shape.wraps
        column.overflow = "ellipsis" if column.no_wrap else "fold"
    found.columns[0].no_wrap, found.columns[0].overflow = False, "fold"
    for row in cells:
        found.add_row(*(row[name] for name in widths))
    return found


def _fitting(natural: Mapping[str, int], width: int, shape: TableLayout) -> dict[str, int]:
    """Return the width of each column that fits."""
    names = list(natural)
    for gone in (None, *shape.left_out):
        names = [name for name in names if name != gone]
        widths = {name: natural[name] for name in names}
        for name in (name for name in shape.narrow if name in widths):
            excess = _whole(widths) - width
            widths[name] = max(widths[name] - max(excess, 0), min(widths[name], shape.narrow[name]))
        if _whole(widths) <= width:
            return widths
    rest = {name: each for name, each in widths.items() if name != names[0]}
    return {names[0]: max(width - _whole(rest) - GAP, 1), **rest}


def _whole(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + GAP * len(widths)


_UNITS = (("d", 86400), ("h", 3600), ("m", 60))


def until(time: datetime | None) -> str:
    """Return " until TIME", or "" for None."""
    return "" if time is None else f" until {format_time(time)}"


def about(duration: timedelta, *, exact: bool = False) -> str:
    """Return a duration in its largest unit; `exact` includes fractions of a second."""
    seconds = max(duration.total_seconds(), 0)
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    if not exact or seconds >= 10:
        return f"{int(seconds)}s"
    return f"{seconds:.1f}s" if seconds >= 1 else f"{round(seconds * 1000)}ms"


@contextmanager
def bar(what: str) -> Iterator[None]:
    """Show a progress bar for the work inside, on stderr and only on a terminal."""
    from rich.console import Console  # noqa: PLC0415 - slow to import
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415

    err = Console(stderr=True, highlight=False, markup=False)
    seen = err.is_terminal and not err.is_dumb_terminal
    shown = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        console=err,
        transient=True,
        disable=not seen,
    )
    with shown:
        task = shown.add_task(what, total=None)

        def update(done: int, total: int | None = None) -> None:
            shown.update(task, completed=done, total=total)

        with report_progress_to(update):
            yield
