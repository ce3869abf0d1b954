"""Where times are drawn: in order, within the row, and with long pauses folded."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from limpet.web.ui.time_scale import TimeScale

ZERO = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return ZERO + timedelta(seconds=seconds)


def test_a_long_pause_is_folded_and_a_short_one_is_not() -> None:
    """A day between two seconds of work takes a twelfth of the row."""
    busy = [(at(0), at(1)), (at(5), at(6)), (at(86_406), at(86_407))]
    scale = TimeScale(at(0), at(86_407), busy, fold=True)
    assert scale.is_folded
    assert 10 < scale.percent(at(1)) < 15
    assert scale.percent(at(86_406)) - scale.percent(at(6)) < 10
    plain = TimeScale(at(0), at(86_407), busy, fold=False)
    assert not plain.is_folded
    assert plain.percent(at(6)) < 0.01


def test_a_run_that_only_waits_is_drawn() -> None:
    scale = TimeScale(at(0), at(3600), [], fold=True)
    assert (scale.percent(at(0)), scale.percent(at(3600))) == (0, 100)


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)).map(sorted), max_size=8),
    st.lists(st.floats(0, 1e6), min_size=2, max_size=10),
    st.booleans(),
)
def test_later_times_are_drawn_further_right(busy: list[list[float]], times: list[float], fold: bool) -> None:
    """Within the row, and back again."""
    scale = TimeScale(at(0), at(1e6), [(at(start), at(end)) for start, end in busy], fold=fold)
    places = [scale.percent(at(time)) for time in sorted(times)]
    assert places == sorted(places)
    assert all(0 <= place <= 100 for place in places)
    for time in times:
        assert abs(scale.percent(scale.time_at(scale.percent(at(time)))) - scale.percent(at(time))) < 1e-3
