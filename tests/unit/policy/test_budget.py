"""Budgets: whether a run can afford its next step, the remaining budget, and a child's share."""

import pytest

from limpet.events import Limits, Spent
from limpet.policy.budget import Exhausted, Fits, decide, remaining, slice_of

ALL = Limits(
    max_steps=10,
    max_wall_time_ms=1000,
    max_llm_tokens=100,
    max_cost=2.0,
    max_artifact_bytes_in_context=8000,
    exhausted="ask",
)


def test_without_limits_everything_fits() -> None:
    assert decide(Limits(), Spent(steps=10**9), Spent(tokens=10**9)) == Fits()


def test_spending_far_below_the_limits_fits_without_pressure() -> None:
    assert decide(ALL, Spent(steps=1), Spent(steps=1, tokens=1)) == Fits()


def test_a_budget_can_be_used_up_completely() -> None:
    """The limit itself is allowed."""
    assert decide(Limits(max_steps=10), Spent(steps=9), Spent(steps=1)) == Fits(("max_steps",))


@pytest.mark.parametrize(
    ("limits", "spent", "reserve", "expected"),
    [
        (Limits(max_steps=10), Spent(steps=10), Spent(steps=1), Exhausted("max_steps", 10, 11, "fail")),
        (Limits(max_llm_tokens=100), Spent(tokens=60), Spent(tokens=41), Exhausted("max_llm_tokens", 100, 101, "fail")),
        (Limits(max_cost=2.0), Spent(cost=1.5), Spent(cost=1.0), Exhausted("max_cost", 2.0, 2.5, "fail")),
        (
            Limits(max_wall_time_ms=1000),
            Spent(wall_us=900_000),
            Spent(wall_us=100_500),
            Exhausted("max_wall_time_ms", 1000, 1000.5, "fail"),
        ),
        (Limits(max_steps=1, exhausted="ask"), Spent(steps=1), Spent(steps=1), Exhausted("max_steps", 1, 2, "ask")),
    ],
)
def test_exceeding_a_limit_is_exhausted(limits: Limits, spent: Spent, reserve: Spent, expected: Exhausted) -> None:
    """The result has the limit, the allowed and the wanted amount, and the consequence."""
    assert decide(limits, spent, reserve) == expected


def test_a_used_up_limit_stops_steps_that_do_not_need_it() -> None:
    assert decide(Limits(max_cost=2.0), Spent(cost=2.0)) == Exhausted("max_cost", 2.0, 2.0, "fail")


def test_a_budget_of_zero_allows_nothing() -> None:
    assert decide(Limits(max_llm_tokens=0), Spent()) == Exhausted("max_llm_tokens", 0, 0, "fail")


def test_the_first_exceeded_limit_is_named() -> None:
    """The order is that of the fields."""
    found = decide(ALL, Spent(steps=10, tokens=100, cost=2.0), Spent(steps=1))
    assert isinstance(found, Exhausted)
    assert found.limit == "max_steps"


def test_pressure_starts_at_four_fifths() -> None:
    """Each limit of which four fifths are used is named."""
    assert decide(ALL, Spent(steps=8, wall_us=799_999, tokens=79), Spent(tokens=1)) == Fits(
        ("max_steps", "max_llm_tokens")
    )


def test_the_remaining_budget_is_the_limit_minus_the_spending() -> None:
    """Times are whole milliseconds, rounded down; fields that are not amounts stay."""
    assert remaining(ALL, Spent(steps=3, wall_us=500_500, tokens=40, cost=0.5)) == Limits(
        max_steps=7,
        max_wall_time_ms=499,
        max_llm_tokens=60,
        max_cost=1.5,
        max_artifact_bytes_in_context=8000,
        exhausted="ask",
    )


def test_the_remaining_budget_is_never_negative() -> None:
    assert remaining(Limits(max_steps=1, max_cost=1.0), Spent(steps=5, cost=3.0)) == Limits(max_steps=0, max_cost=0)


def test_an_absent_limit_stays_absent() -> None:
    assert remaining(Limits(), Spent(steps=5)) == Limits()


def test_a_child_without_a_request_gets_the_remaining_budget() -> None:
    assert slice_of(ALL, None) == ALL


def test_a_child_gets_its_requested_budget() -> None:
    assert slice_of(Limits(max_steps=10, max_cost=2.0), Limits(max_steps=3, max_cost=1.0)) == Limits(
        max_steps=3, max_cost=1.0
    )


def test_a_child_never_gets_more_than_the_remaining_budget() -> None:
    """For each limit, the child gets the smaller value."""
    wanted = Limits(
        max_steps=99,
        max_wall_time_ms=9999,
        max_llm_tokens=999,
        max_cost=9.0,
        max_artifact_bytes_in_context=99999,
        exhausted="ask",
    )
    assert slice_of(ALL, wanted) == ALL


def test_a_child_is_bound_by_its_parents_other_limits() -> None:
    assert slice_of(Limits(max_steps=10), Limits(max_cost=1.0)) == Limits(max_steps=10, max_cost=1.0)


def test_a_child_has_its_own_exhausted_setting() -> None:
    assert slice_of(ALL, Limits()).exhausted == "fail"


def test_a_budget_lent_to_children_is_not_available_to_others() -> None:
    """Parallel children do not each get the whole remaining budget."""
    lent = [Limits(max_steps=6), Limits(max_steps=3, max_llm_tokens=5)]
    assert remaining(Limits(max_steps=10), Spent(), lent) == Limits(max_steps=1)
    assert remaining(Limits(max_steps=4), Spent(), lent) == Limits(max_steps=0)
