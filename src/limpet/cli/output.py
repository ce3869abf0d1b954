"""What commands print: JSON, or text for people, in colour where a terminal wants it; nothing that looks secret."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from limpet.redaction import say, say_value
from limpet.service.json_views import as_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

__all__ = [
    "STYLES",
    "cell",
    "clean",
    "console",
    "print_json",
    "print_line",
    "print_pairs",
    "print_text",
    "table",
]

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
# Where nobody looks, no line is broken.
WIDE = 10_000


def print_json(value: Any) -> None:
    """As JSON, indented."""
    plain = say_value(as_json(value))
    typer.echo(msgspec.json.format(msgspec.json.encode(plain), indent=2).decode())


def print_line(value: Any) -> None:
    """As JSON, on one line."""
    typer.echo(msgspec.json.encode(say_value(as_json(value))).decode())


def print_text(text: str) -> None:
    """Lines for people, without anything that a terminal would obey."""
    for line in say(text).splitlines():
        typer.echo(clean(line))


def console() -> "Console":
    """Where text goes: plain, unless there is a terminal that can do more and NO_COLOR is not set."""
    from rich.console import Console  # noqa: PLC0415 - it takes 100 ms, and only those who look need it

    found = Console()
    is_plain = found.no_color or not found.is_terminal or found.is_dumb_terminal
    out = Console(
        color_system=None if is_plain else "auto",
        width=None if found.is_terminal else WIDE,
        highlight=False,
        markup=False,
        emoji=False,
    )
    out.on_broken_pipe = _nobody_reads  # type: ignore[method-assign]
    return out


def _nobody_reads() -> None:
    """It is told as for everything else that is printed."""
    raise BrokenPipeError


def table(*columns: str) -> "Table":
    """A small table without lines."""
    from rich.table import Table  # noqa: PLC0415

    return Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


def print_pairs(out: "Console", rows: Iterable[tuple[str, str]]) -> None:
    """Names, and what there is to say of each."""
    found = table("", "")
    found.show_header = False
    for name, value in rows:
        found.add_row(name, cell(value))
    out.print(found)


def cell(value: str) -> "Text":
    """A cell of a table; a status in its colour."""
    from rich.text import Text  # noqa: PLC0415

    return Text(clean(value), style=STYLES.get(value, ""))


def clean(text: object) -> str:
    """One line, without anything that a terminal would obey: what runs say is not to be trusted."""
    return "".join(each if each.isprintable() else " " for each in say(str(text)))
