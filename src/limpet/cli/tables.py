"""Tables that fit the terminal: columns become narrow, then some are left out; what comes first is never cut."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limpet.cli.output import cell, console, table

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Shape", "fitted", "print_table"]

Row = Mapping[str, str]
# Behind each column.
GAP = 2


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How a table gives way where there is little room."""

    narrow: Mapping[str, int]
    """How narrow columns may become, in the order in which they do."""
    left_out: Sequence[str]
    """Which columns go then, in this order."""
    wraps: Sequence[str] = ()
    """Columns whose text goes on in the next line; others are cut."""


def print_table(rows: Sequence[Row], shape: Shape, *, none: str) -> None:
    """A line for each row, as wide as the terminal; a sentence if there are none."""
    out = console()
    out.print(fitted(rows, out.width, shape) if rows else none)


def fitted(rows: Sequence[Row], width: int, shape: Shape) -> "Table":
    """A table with the columns that find room."""
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


def _fitting(natural: Mapping[str, int], width: int, shape: Shape) -> dict[str, int]:
    """How wide each column is; those that find no room are left out."""
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
