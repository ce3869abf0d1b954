"""Quarantine: the size of groups of suspects, when a run is quarantined, and its pause."""

import pytest

from limpet.clock import SECOND
from limpet.policy.quarantine import MAX_FRUITLESS, group_size, is_poison, pause_before_retry


@pytest.mark.parametrize(
    ("suspects", "deaths", "size"), [(300, 2, 75), (300, 3, 18), (300, 4, 4), (300, 5, 1), (3, 2, 1), (1, 9, 1)]
)
def test_groups_of_suspects_shrink_with_each_death(suspects: int, deaths: int, size: int) -> None:
    """Each death divides the group by four; a group has at least one run."""
    assert group_size(suspects, deaths) == size


@pytest.mark.parametrize(
    ("solo", "quarantines", "poison"), [(2, 0, False), (3, 0, True), (3, 1, False), (4, 1, True), (5, 2, True)]
)
def test_three_deaths_alone_quarantine_a_run_and_one_more_on_parole(solo: int, quarantines: int, poison: bool) -> None:
    """A parole is one attempt."""
    assert is_poison(solo, quarantines) is poison


def test_the_pause_doubles_up_to_five_minutes() -> None:
    pauses = [pause_before_retry(times) // SECOND for times in range(1, MAX_FRUITLESS + 3)]
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert pause_before_retry(10_000) == 300 * SECOND
