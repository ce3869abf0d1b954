"""Text search in rows, where a database cannot do it."""

from limpet.stores.rows import RunRow

__all__ = ["lowered", "row_contains"]

_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def row_contains(row: RunRow, text: str) -> bool:
    """Return whether a row's id, agent, goal or a label's value contains a text, ignoring the case of ASCII letters."""
    wanted = lowered(text)
    return any(wanted in lowered(each) for each in (row.id, row.agent, row.goal, *row.labels.values()))


def lowered(text: str) -> str:
    """Return a text with ASCII letters in lower case; other letters stay."""
    return text.translate(_LOWER)
