"""Was this call already made? With lists for logs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.engine.replay import Ends, Replay
from limpet.errors import Divergence
from limpet.events import StatePatch
from limpet.events import bodies as b
from tests.unit.engine.histories import completed, history_of, started


def test_a_recorded_call_is_found_and_a_new_one_is_not() -> None:
    """By its identity; new steps are numbered on."""
    replay = Replay("r1", history_of(started("a#1"), completed("a#1")))
    record = replay.find("a#1", b.StepStarted, "a")
    assert record is not None
    assert record.settled == completed("a#1")
    assert replay.find("b#1", b.StepStarted, "x") is None
    assert [replay.new_number(), replay.new_number()] == [2, 3]


def test_other_arguments_diverge() -> None:
    """A recorded effect, and a settled read, were asked for something else."""
    for effect in ("idempotent", "none"):
        replay = Replay("r1", history_of(started("a#1", effect=effect), completed("a#1")))
        with pytest.raises(Divergence, match="other arguments"):
            replay.find("a#1", b.StepStarted, "changed")


def test_an_unsettled_read_runs_with_what_it_is_asked_now() -> None:
    """Nothing came of it yet; an unsettled effect may have happened."""
    replay = Replay("r1", history_of(started("a#1", effect="none"), started("b#1", 2, effect="once")))
    assert replay.find("a#1", b.StepStarted, "changed") is not None
    with pytest.raises(Divergence):
        replay.find("b#1", b.StepStarted, "changed")


def test_the_record_of_a_patch_stands() -> None:
    """Whatever it says now."""
    replay = Replay("r1", history_of(b.StatePatched(name="patch#1", patch=StatePatch(goal="then"))))
    assert replay.find("patch#1", b.StatePatched) is not None


def test_another_verb_under_the_same_name_diverges() -> None:
    """A step that became a sleep."""
    replay = Replay("r1", history_of(started("a#1")))
    with pytest.raises(Divergence, match="StepStarted"):
        replay.find("a#1", b.TimerSet)


def test_a_new_effect_waits_for_the_recorded_ones_of_its_scope() -> None:
    """It is refused while one was not asked for, and may begin when all were."""
    replay = Replay("r1", history_of(started("a#1"), completed("a#1")))
    with pytest.raises(Divergence, match="a#1 is recorded there"):
        replay.check_new("new#1")
    replay.find("a#1", b.StepStarted, "a")
    replay.check_new("new#1")


def test_another_scope_does_not_matter() -> None:
    """Parallel branches are at different places."""
    replay = Replay("r1", history_of(started("left/a#1"), completed("left/a#1")))
    replay.check_new("right/new#1")
    with pytest.raises(Divergence):
        replay.check_new("left/new#1")


def test_recorded_reads_hold_nobody_up() -> None:
    """A read that the code does not ask for any more is ignored, also at the end."""
    replay = Replay("r1", history_of(started("a#1", effect="none"), completed("a#1")))
    replay.check_new("new#1")
    replay.check_end()


def test_the_end_is_refused_while_an_effect_was_not_asked_for() -> None:
    """The code lost something that was done."""
    replay = Replay("r1", history_of(started("deep/a#1"), completed("deep/a#1")))
    with pytest.raises(Divergence, match="ended without it"):
        replay.check_end()
    replay.find("deep/a#1", b.StepStarted, "a")
    replay.check_end()


def test_an_old_run_stays_on_the_old_side_of_a_change() -> None:
    """As long as what is recorded lies ahead of it; then it is as new as any."""
    replay = Replay("r1", history_of(started("a#1"), completed("a#1")))
    assert not replay.chooses_new("")
    replay.find("a#1", b.StepStarted, "a")
    assert replay.chooses_new("")


def test_what_this_execution_records_is_not_the_past() -> None:
    """An effect that was just started does not hold up the next."""
    history = history_of(started("a#1"), completed("a#1"))
    replay = Replay("r1", history)
    replay.find("a#1", b.StepStarted, "a")
    history.records["b#1"] = history_of(started("b#1", 2)).records["b#1"]
    replay.check_new("c#1")
    replay.check_end()


# The order of ends


def test_sequential_code_never_waits() -> None:
    """Each end is the next one."""
    ends = Ends([3, 5, 9])
    assert [ends.arrive(end) for end in (3, 5, 9)] == [True, True, True]


def test_the_winner_of_a_race_wins_again() -> None:
    """Whoever asks first: the end that came first in the log is handed over first."""
    ends = Ends([4, 6])
    assert not ends.arrive(6)
    assert ends.arrive(4)
    assert ends.next_pending() == 6
    assert ends.next_pending() is None


def test_an_end_that_nobody_asks_for_is_passed_over_when_the_code_is_quiet() -> None:
    """And from then on the code does not wait again."""
    ends = Ends([2, 4, 6])
    assert not ends.arrive(4)
    assert ends.next_pending() == 4
    assert ends.arrive(6)


@given(st.sets(st.integers(1, 40)), st.randoms(use_true_random=False))
def test_ends_come_in_the_order_of_the_log(seqs: set[int], chance: object) -> None:
    """For any calls that are all made before the code goes quiet, in whatever order, some of them never."""
    asked = [seq for seq in seqs if chance.random() < 0.8]  # type: ignore[attr-defined]
    chance.shuffle(asked)  # type: ignore[attr-defined]
    ends = Ends(list(seqs))
    handed = [seq for seq in asked if ends.arrive(seq)]
    while (end := ends.next_pending()) is not None:
        handed.append(end)
    assert handed == sorted(asked)
