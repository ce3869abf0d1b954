"""PostgreSQL cannot store NUL: texts are stored escaped, and read back as they were."""

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from limpet.stores.postgres.text import plain_rows, safe
from tests.laws.values import law_settings

_texts = st.text(st.sampled_from("a\0\ue000\ue0010é"), max_size=4)
_cells: st.SearchStrategy[Any] = (
    st.none() | st.integers() | st.binary(max_size=3) | st.just(datetime(2026, 1, 1, tzinfo=UTC))
)
_rows = st.integers(0, 3).flatmap(
    lambda width: st.lists(st.lists(_texts | _cells, min_size=width, max_size=width).map(tuple), max_size=5)
)


@law_settings(300)
@given(rows=_rows)
def test_rows_are_read_back_as_they_were(rows: list[tuple[Any, ...]]) -> None:
    """Whatever other values their columns have, and in whichever row an escape is."""
    stored = [tuple(safe(row)) for row in rows]
    assert not any("\0" in value for row in stored for value in row if isinstance(value, str))
    assert [tuple(row) for row in plain_rows(stored)] == rows


def test_rows_without_escapes_are_not_copied() -> None:
    """They are almost all rows."""
    rows = [("a", 1, None), ("b", 2, b"\0")]
    assert plain_rows(rows) is rows
