"""Whether a run can afford what it is about to do, what is left, and what a child gets of it."""

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
    """Nobody set a budget."""
    assert decide(Limits(), Spent(steps=10**9), Spent(tokens=10**9)) == Fits()


def test_what_is_far_from_its_limits_fits_without_pressure() -> None:
    """Nothing to say."""
    assert decide(ALL, Spent(steps=1), Spent(steps=1, tokens=1)) == Fits()


def test_the_last_of_a_budget_may_be_used() -> None:
    """Up to the limit, and including it."""
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
def test_what_would_pass_a_limit_is_exhausted(
    limits: Limits, spent: Spent, reserve: Spent, expected: Exhausted
) -> None:
    """The limit, how much is allowed, how much is wanted, and what then."""
    assert decide(limits, spent, reserve) == expected


def test_a_limit_that_is_used_up_stops_even_what_needs_none_of_it() -> None:
    """Nothing may start when time or money is gone."""
    assert decide(Limits(max_cost=2.0), Spent(cost=2.0)) == Exhausted("max_cost", 2.0, 2.0, "fail")


def test_a_budget_of_nothing_allows_nothing() -> None:
    """Zero is a limit too."""
    assert decide(Limits(max_llm_tokens=0), Spent()) == Exhausted("max_llm_tokens", 0, 0, "fail")


def test_the_first_limit_that_is_passed_is_named() -> None:
    """In the order of the fields."""
    found = decide(ALL, Spent(steps=10, tokens=100, cost=2.0), Spent(steps=1))
    assert isinstance(found, Exhausted)
    assert found.limit == "max_steps"


def test_pressure_begins_at_four_fifths() -> None:
    """Each limit of which so much is used is named."""
    assert decide(ALL, Spent(steps=8, wall_us=799_999, tokens=79), Spent(tokens=1)) == Fits(
        ("max_steps", "max_llm_tokens")
    )


def test_what_is_left_is_the_limit_less_what_was_spent() -> None:
    """Times are whole milliseconds, rounded down; what is no quantity stays."""
    assert remaining(ALL, Spent(steps=3, wall_us=500_500, tokens=40, cost=0.5)) == Limits(
        max_steps=7,
        max_wall_time_ms=499,
        max_llm_tokens=60,
        max_cost=1.5,
        max_artifact_bytes_in_context=8000,
        exhausted="ask",
    )


def test_less_than_nothing_is_not_left() -> None:
    """A limit that was passed leaves zero."""
    assert remaining(Limits(max_steps=1, max_cost=1.0), Spent(steps=5, cost=3.0)) == Limits(max_steps=0, max_cost=0)


def test_what_was_not_limited_is_not_limited_afterwards() -> None:
    """No limit less something is no limit."""
    assert remaining(Limits(), Spent(steps=5)) == Limits()


def test_a_child_that_asks_for_nothing_gets_what_is_left() -> None:
    """It shares its parent's limits."""
    assert slice_of(ALL, None) == ALL


def test_a_child_gets_what_it_asks_for() -> None:
    """Less than is left is fine."""
    assert slice_of(Limits(max_steps=10, max_cost=2.0), Limits(max_steps=3, max_cost=1.0)) == Limits(
        max_steps=3, max_cost=1.0
    )


def test_a_child_never_gets_more_than_is_left() -> None:
    """Of every limit the smaller."""
    wanted = Limits(
        max_steps=99,
        max_wall_time_ms=9999,
        max_llm_tokens=999,
        max_cost=9.0,
        max_artifact_bytes_in_context=99999,
        exhausted="ask",
    )
    assert slice_of(ALL, wanted) == ALL


def test_a_child_is_bound_by_a_limit_it_did_not_ask_for() -> None:
    """What its parent may not, it may not."""
    assert slice_of(Limits(max_steps=10), Limits(max_cost=1.0)) == Limits(max_steps=10, max_cost=1.0)


def test_a_child_says_itself_what_follows_when_its_share_is_used_up() -> None:
    """Fail or ask is the child's own."""
    assert slice_of(ALL, Limits()).exhausted == "fail"


def test_what_is_lent_to_children_is_not_there_for_others() -> None:
    """Until they return; parallel children do not each get everything."""
    lent = [Limits(max_steps=6), Limits(max_steps=3, max_llm_tokens=5)]
    assert remaining(Limits(max_steps=10), Spent(), lent) == Limits(max_steps=1)
    assert remaining(Limits(max_steps=4), Spent(), lent) == Limits(max_steps=0)
