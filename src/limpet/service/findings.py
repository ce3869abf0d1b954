"""Findings of checks, and how they name runs."""

from collections.abc import Sequence
from typing import Literal

from limpet.stores import RunFilter, RunRow, Store
from limpet.view import View

__all__ = ["MANY", "NAMED", "Finding", "Level", "count_of", "names_of", "some_rows"]

Level = Literal["ok", "warn", "bad"]
# Maximum number of runs to check per status, and to name in a message.
MANY, NAMED = 1000, 3


class Finding(View, frozen=True, kw_only=True):
    """Result of one check."""

    what: str
    """Subject of the check: store, database, schema, clock, runs, workers, agents, duties, engine, rows, disk,
    tools.
    """
    level: Level
    """Severity."""
    message: str
    """The finding."""
    hint: str = ""
    """Advice on how to fix it; "" if nothing is wrong."""

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}".strip() if self.hint else self.message


async def some_rows(store: Store, status: str) -> Sequence[RunRow]:
    """Return the newest runs with a status."""
    return (await store.runs(RunFilter(status=(status,)), limit=MANY)).rows


def count_of(number: int, what: str) -> str:
    """Return a number of things as text."""
    return f"{number} {what}" if number == 1 else f"{number}{'+' if number >= MANY else ''} {what}s"


def names_of(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"
