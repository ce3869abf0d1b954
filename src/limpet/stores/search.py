"""Looking for words in rows, where a database cannot do it."""

from limpet.stores.rows import RunRow

__all__ = ["says"]

_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def says(row: RunRow, text: str) -> bool:
    """Whether a row's id, agent, goal or a label's value contains a text, in any case of ASCII letters."""
    wanted = text.translate(_LOWER)
    return any(wanted in each.translate(_LOWER) for each in (row.id, row.agent, row.goal, *row.labels.values()))
