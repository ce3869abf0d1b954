"""Escape text for PostgreSQL, which cannot store NUL: a private-use character starts an escape of NUL and of itself."""

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["plain", "plain_rows", "safe", "safe_text"]

_ESCAPE = "\ue000"
_NUL, _ITSELF = f"{_ESCAPE}0", f"{_ESCAPE}1"


def safe(values: Iterable[Any]) -> Sequence[Any]:
    """Return values as they can be stored."""
    return [safe_text(value) if isinstance(value, str) else value for value in values]


def plain(values: Iterable[Any]) -> Sequence[Any]:
    """Return the original values."""
    return [_plain(value) if isinstance(value, str) and _ESCAPE in value else value for value in values]


def plain_rows(rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    """Return rows with the original values. All texts of a column are searched together."""
    for column in zip(*rows, strict=True):
        if str in set(map(type, column)) and _ESCAPE in "".join([value for value in column if type(value) is str]):
            return [plain(row) for row in rows]
    return rows


def safe_text(text: str) -> str:
    """Return a text as it can be stored."""
    if not text.isascii() or "\0" in text:
        return text.replace(_ESCAPE, _ITSELF).replace("\0", _NUL)
    return text


def _plain(text: str) -> str:
    return text.replace(_NUL, "\0").replace(_ITSELF, _ESCAPE)
