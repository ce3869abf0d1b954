"""Output of the demo: plain lines, a progress bar on a terminal, and input from the keyboard."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from limpet.clock import Duration, SystemClock, microseconds
from limpet.redaction import hide_secrets

__all__ = ["Stage", "has_keyboard"]

INDENT = 3


class Stage:
    """Prints the demo, with pauses for the reader."""

    def __init__(self, console: Console, pause: Duration) -> None:
        self.console = console
        self._pause = microseconds(pause)
        self._clock = SystemClock()
        self._began = self._clock.ticks()
        self._progress: Progress | None = None
        self._chapters = 0

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return (self._clock.ticks() - self._began) / 10**6

    async def rest(self, times: int = 1) -> None:
        """Pause, so that the last line can be read."""
        if self._pause:
            await self._clock.sleep(self._pause * times)

    def chapter(self, title: str) -> None:
        """Print the heading of a part."""
        self._chapters += 1
        self.console.print()
        for each in Text(f"{self._chapters}. {title}", style="bold").wrap(self.console, self.console.width):
            each.rstrip()
            self.console.print(each)

    def line(self, text: str, style: str = "", more: int = 0) -> None:
        """Print a line, indented; long lines wrap with the same indent."""
        plain = _plain(text)
        indent = INDENT + more + len(plain) - len(plain.lstrip())
        for each in Text(plain.strip(), style=style).wrap(self.console, max(self.console.width - indent, 10)):
            each.rstrip()
            self.console.print(Text(" " * indent) + each)

    def lines(self, text: object, style: str = "") -> None:
        """Print several lines."""
        for each in str(text).splitlines():
            self.line(each, style)

    def pairs(self, rows: list[tuple[str, str]]) -> None:
        """Print names with their values."""
        widest = max(len(name) for name, _ in rows) + 2
        for name, value in rows:
            width = max(self.console.width - INDENT - widest, 10)
            for number, each in enumerate(Text(_plain(value)).wrap(self.console, width)):
                each.rstrip()
                head = Text(" " * INDENT + f"{'' if number else name:{widest}}", style="cyan")
                self.console.print(head + each)

    def table(self, head: list[str], rows: list[list[str]]) -> None:
        """Print a small table of names and numbers."""
        widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
        for row in (head, *rows):
            numbers = (f"{each:>{width}}" for each, width in zip(row[1:], widths[1:], strict=True))
            self.line("  ".join([f"{row[0]:{widths[0]}}", *numbers]), "dim" if row is head else "")

    def command(self, text: str) -> None:
        """Print a command to type, without wrapping it."""
        self.console.print(Text(" " * INDENT + text, style="cyan"), soft_wrap=True)

    async def typed(self, within: Duration) -> str | None:
        """Read a line from the keyboard; return None after a timeout."""
        self.console.print(Text(" " * INDENT + "> "), end="")
        found = await _typed_line(within)
        if found is None:
            self.console.print()
        return found

    @contextmanager
    def bar(self, total: int) -> Iterator[None]:
        """Show a progress bar with the current step below the lines, until the block ends."""
        if not self.console.is_terminal:
            yield
            return
        columns = (TextColumn("  "), SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=18))
        with Progress(*columns, console=self.console, transient=True) as self._progress:
            self._progress.add_task("", total=total)
            yield
        self._progress = None

    def at(self, number: int) -> None:
        """Move the bar to a step."""
        if self._progress is not None:
            for task in self._progress.tasks:
                self._progress.update(task.id, completed=number, description=f"step {number} of {task.total:.0f}")


def has_keyboard() -> bool:
    """Return whether there is a keyboard."""
    return sys.stdin is not None and sys.stdin.isatty()


async def _typed_line(within: Duration) -> str | None:
    """Read a line from the keyboard; return None after a timeout."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin, ready.set)
    try:
        async with asyncio.timeout(microseconds(within) / 10**6):
            await ready.wait()
        return sys.stdin.readline() or None
    except TimeoutError:
        return None
    finally:
        loop.remove_reader(sys.stdin)


def _plain(text: str) -> str:
    """Return text without control characters: text from runs is not trusted."""
    return "".join(each if each.isprintable() else " " for each in hide_secrets(text))
