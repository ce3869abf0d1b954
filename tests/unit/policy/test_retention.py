"""What may be thrown away, and when."""

from typing import Any

import pytest

from limpet.errors import InvalidArgument
from limpet.policy.retention import Drop, Keep, KeepRule, decide_run, snapshots_to_drop, snapshots_to_thin
from limpet.state import Status

DAY = 86400 * 10**6
RULE = KeepRule(older_than="30d", by_status={"failed": "90d"}, by_agent={"audit": "365d"})


def decision(**more: Any) -> Keep | Drop:
    """Whether a run that ended at day 0 may go at day 100."""
    given: dict[str, Any] = {"now": 100 * DAY, "agent": "support", "status": "completed", "ended": 0} | more
    return decide_run(given.pop("rule", RULE), **given)


@pytest.mark.parametrize("status", ["pending", "running", "waiting"])
def test_a_run_that_has_not_ended_is_kept(status: Status) -> None:
    """However old it is."""
    assert decision(status=status, ended=None) == Keep(f"status is {status}")


def test_a_run_that_was_resumed_is_kept() -> None:
    """It ended once, and goes on now."""
    assert decision(status="running", ended=0) == Keep("status is running")


def test_a_run_without_an_end_is_kept() -> None:
    """Nothing is thrown away on a guess."""
    assert decision(ended=None) == Keep("status is completed")


def test_some_are_kept_for_ever() -> None:
    """By status or by agent."""
    assert decision(rule=KeepRule(older_than="1d", by_status={"completed": None})) == Keep("kept permanently")
    assert decision(rule=KeepRule(older_than="1d", by_agent={"support": None})) == Keep("kept permanently")


def test_a_rule_that_cannot_be_is_refused() -> None:
    """Before anything is looked at."""
    with pytest.raises(InvalidArgument):
        KeepRule(older_than="1d", by_status={"waiting": "1d"})
    with pytest.raises(InvalidArgument):
        KeepRule(older_than="1d", by_agent={"support": "soon"})


def test_too_many_snapshots_are_thinned_out() -> None:
    """Every second one goes, never the newest: all of the log stays near one."""
    assert snapshots_to_thin(range(1, 129)) == ()
    gone = snapshots_to_thin(range(1, 130))
    left = sorted(set(range(1, 130)) - set(gone))
    assert (len(left), left[0], left[-1]) == (65, 2, 129)


def test_a_young_run_is_kept() -> None:
    """Up to the last microsecond, counted from its end."""
    assert decision(now=130 * DAY - 1, ended=100 * DAY) == Keep("not old enough")


@pytest.mark.parametrize("status", ["completed", "cancelled"])
def test_an_old_run_may_go(status: Status) -> None:
    """From the very moment on."""
    assert decision(now=130 * DAY, ended=100 * DAY, status=status) == Drop()


@pytest.mark.parametrize(
    ("agent", "status", "days"),
    [
        ("support", "completed", 30),
        ("support", "failed", 90),
        ("audit", "completed", 365),
        ("audit", "failed", 365),
    ],
)
def test_the_rule_for_an_agent_counts_before_that_for_a_status(agent: str, status: Status, days: int) -> None:
    """In general, by status, by agent: the most special one counts."""
    assert RULE.age(agent, status) == days * DAY


def test_a_rule_may_be_general_only() -> None:
    """By status and by agent may be left out."""
    assert KeepRule(older_than="1d").age("support", "failed") == DAY


SNAPSHOTS = [(10, 1 * DAY), (20, 2 * DAY), (30, 3 * DAY), (40, 4 * DAY)]


@pytest.mark.parametrize(
    ("keep", "max_age", "dropped"),
    [
        (4, None, ()),
        (9, None, ()),
        (2, None, (10, 20)),
        (1, None, (10, 20, 30)),
        (0, None, (10, 20, 30)),
        (9, 7 * DAY, (10, 20)),
        (9, 0, (10, 20, 30)),
        (3, 7 * DAY, (10, 20)),
        (1, 99 * DAY, (10, 20, 30)),
    ],
)
def test_old_snapshots_may_go_and_the_newest_stays(keep: int, max_age: int | None, dropped: tuple[int, ...]) -> None:
    """By number or by age, whichever drops more; never the newest."""
    assert snapshots_to_drop(SNAPSHOTS, now=10 * DAY, keep=keep, max_age=max_age) == dropped


def test_the_order_in_which_snapshots_are_given_does_not_matter() -> None:
    """The newest is the one with the highest sequence."""
    assert snapshots_to_drop(SNAPSHOTS[::-1], now=10 * DAY, keep=2) == (10, 20)


def test_no_snapshots_are_none_to_drop() -> None:
    """A run may have none."""
    assert snapshots_to_drop([], now=0, keep=0) == ()
