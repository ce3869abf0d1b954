"""Retention: which runs and snapshots may be deleted, and when."""

from itertools import pairwise
from typing import Any

import pytest

from limpet.errors import InvalidArgument
from limpet.policy.retention import Drop, Keep, KeepRule, decide_run, snapshots_to_drop, snapshots_to_thin
from limpet.state import Status

DAY = 86400 * 10**6
RULE = KeepRule(older_than="30d", by_status={"failed": "90d"}, by_agent={"audit": "365d"})


def decision(**more: Any) -> Keep | Drop:
    """Return whether a run that ended on day 0 may be deleted on day 100."""
    given: dict[str, Any] = {"now": 100 * DAY, "agent": "support", "status": "completed", "ended": 0} | more
    return decide_run(given.pop("rule", RULE), **given)


@pytest.mark.parametrize("status", ["pending", "running", "waiting"])
def test_a_run_that_has_not_ended_is_kept(status: Status) -> None:
    assert decision(status=status, ended=None) == Keep(f"status is {status}")


def test_a_run_that_was_resumed_is_kept() -> None:
    assert decision(status="running", ended=0) == Keep("status is running")


def test_a_run_without_an_end_time_is_kept() -> None:
    """The age is unknown."""
    assert decision(ended=None) == Keep("status is completed")


def test_runs_can_be_kept_permanently() -> None:
    """The rule may be for a status or an agent."""
    assert decision(rule=KeepRule(older_than="1d", by_status={"completed": None})) == Keep("kept permanently")
    assert decision(rule=KeepRule(older_than="1d", by_agent={"support": None})) == Keep("kept permanently")


def test_an_invalid_rule_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        KeepRule(older_than="1d", by_status={"waiting": "1d"})
    with pytest.raises(InvalidArgument):
        KeepRule(older_than="1d", by_agent={"support": "soon"})


@pytest.mark.parametrize("every", [100, 260, 700])
def test_too_many_snapshots_are_thinned_out_evenly(every: int) -> None:
    """However long the log grows, no event is far from a snapshot, and the newest snapshot is kept."""
    kept: list[int] = []
    for seq in range(every, 400_000, every):
        kept.append(seq)
        gone = set(snapshots_to_thin(kept))
        kept = [each for each in kept if each not in gone]
        assert kept[-1] == seq
        assert len(kept) <= 1024
        if gone:
            assert max(b - a for a, b in pairwise([0, *kept])) <= max(2 * every, 4 * seq / 1024 + every)


def test_a_young_run_is_kept() -> None:
    """The age is counted from the end of the run, to the microsecond."""
    assert decision(now=130 * DAY - 1, ended=100 * DAY) == Keep("not old enough")


@pytest.mark.parametrize("status", ["completed", "cancelled"])
def test_an_old_run_is_deleted(status: Status) -> None:
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
def test_a_rule_for_an_agent_overrides_one_for_a_status(agent: str, status: Status, days: int) -> None:
    """The order is general, by status, by agent; the most specific rule applies."""
    assert RULE.age(agent, status) == days * DAY


def test_a_rule_without_exceptions_applies_to_all_runs() -> None:
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
def test_old_snapshots_are_deleted_except_the_newest(keep: int, max_age: int | None, dropped: tuple[int, ...]) -> None:
    """Snapshots are deleted by number or by age, whichever deletes more."""
    assert snapshots_to_drop(SNAPSHOTS, now=10 * DAY, keep=keep, max_age=max_age) == dropped


def test_the_newest_snapshot_has_the_highest_sequence() -> None:
    assert snapshots_to_drop(SNAPSHOTS[::-1], now=10 * DAY, keep=2) == (10, 20)


def test_a_run_without_snapshots_has_none_to_delete() -> None:
    assert snapshots_to_drop([], now=0, keep=0) == ()
