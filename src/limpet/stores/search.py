"""Filters and text search of rows, where a database cannot do it."""

from limpet.stores.rows import RunFilter, RunRow, ScoreCondition, ScoreRow

__all__ = ["lowered", "row_contains", "row_matches", "score_fits"]

_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def row_matches(row: RunRow, where: RunFilter) -> bool:
    """Return whether a row matches a filter, except for its condition on scores."""
    wanted = (
        (where.agent, row.agent),
        (where.session, row.session),
        (where.user, row.user),
        (where.parent, row.parent),
        (where.origin, row.origin),
        (where.conversation, row.conversation),
    )
    return (
        row.type == where.type
        and (not where.status or row.status in where.status)
        and (where.waits is None or any(wait.startswith(f"{where.waits}:") for wait in row.waits))
        and all(want is None or want == have for want, have in wanted)
        and where.labels.items() <= row.labels.items()
        and (where.created_from is None or row.created >= where.created_from)
        and (where.created_before is None or row.created < where.created_before)
        and (where.text is None or row_contains(row, where.text))
    )


def row_contains(row: RunRow, text: str) -> bool:
    """Return whether a row's id, agent, goal or a label's value contains a text, ignoring the case of ASCII letters."""
    wanted = lowered(text)
    return any(wanted in lowered(each) for each in (row.id, row.agent, row.goal, *row.labels.values()))


def score_fits(row: ScoreRow, wanted: ScoreCondition) -> bool:
    """Return whether a score meets a condition."""
    if row.name != wanted.name:
        return False
    if wanted.text is not None:
        return row.text == wanted.text
    if wanted.least is None or wanted.most is None:
        return True
    return row.number is not None and wanted.least <= row.number <= wanted.most


def lowered(text: str) -> str:
    """Return a text with ASCII letters in lower case; other letters stay."""
    return text.translate(_LOWER)
