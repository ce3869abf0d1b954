"""How long something may still take, and when a parked run must be looked at."""

import pytest

from limpet.policy.deadline import Left, Passed, decide, wake


@pytest.mark.parametrize(
    ("limits", "decision"),
    [
        ((), Left(None)),
        ((None, None), Left(None)),
        ((150,), Left(50)),
        ((None, 150, 120), Left(20)),
        ((101,), Left(1)),
        ((100,), Passed(0)),
        ((99, 500), Passed(1)),
        ((0,), Passed(100)),
    ],
)
def test_the_earliest_limit_decides(limits: tuple[int | None, ...], decision: Left | Passed) -> None:
    """At the very moment it is over."""
    assert decide(100, *limits) == decision


@pytest.mark.parametrize(
    ("times", "expected"), [((), None), ((None,), None), ((5,), 5), ((None, 7, 5, None), 5), ((0, 1), 0)]
)
def test_a_run_wakes_at_the_least_of_its_times(times: tuple[int | None, ...], expected: int | None) -> None:
    """Timers, expiries and deadline; none of them means that only somebody wakes it."""
    assert wake(*times) == expected
