"""Was this call already made? With lists for logs."""

import pytest

from limpet.engine.replay.lookup import Lookup
from limpet.errors import Divergence
from limpet.events import StatePatch
from limpet.events import bodies as b
from tests.unit.engine.replay.histories import completed, history_of, started


def test_a_recorded_call_is_found_and_a_new_one_is_not() -> None:
    """By its identity; new steps are numbered on."""
    replay = Lookup("r1", history_of(started("a#1"), completed("a#1")))
    record = replay.find("a#1", b.StepStarted, "a")
    assert record is not None
    assert record.settled == completed("a#1")
    assert replay.find("b#1", b.StepStarted, "x") is None
    assert [replay.new_number(), replay.new_number()] == [2, 3]


def test_other_arguments_diverge() -> None:
    """A recorded effect, and a settled read, were asked for something else."""
    for effect in ("idempotent", "none"):
        replay = Lookup("r1", history_of(started("a#1", effect=effect), completed("a#1")))
        with pytest.raises(Divergence, match="other arguments"):
            replay.find("a#1", b.StepStarted, "changed")


def test_an_unsettled_read_runs_with_what_it_is_asked_now() -> None:
    """Nothing came of it yet; an unsettled effect may have happened."""
    replay = Lookup("r1", history_of(started("a#1", effect="none"), started("b#1", 2, effect="once")))
    assert replay.find("a#1", b.StepStarted, "changed") is not None
    with pytest.raises(Divergence):
        replay.find("b#1", b.StepStarted, "changed")


def test_the_record_of_a_patch_stands() -> None:
    """Whatever it says now."""
    replay = Lookup("r1", history_of(b.StatePatched(name="patch#1", patch=StatePatch(goal="then"))))
    assert replay.find("patch#1", b.StatePatched) is not None


def test_another_verb_under_the_same_name_diverges() -> None:
    """A step that became a sleep."""
    replay = Lookup("r1", history_of(started("a#1")))
    with pytest.raises(Divergence, match="StepStarted"):
        replay.find("a#1", b.TimerSet)


def test_a_new_effect_waits_for_the_recorded_ones_of_its_scope() -> None:
    """It is refused while one was not asked for, and may begin when all were."""
    replay = Lookup("r1", history_of(started("a#1"), completed("a#1")))
    with pytest.raises(Divergence, match="the log has a#1 at this point"):
        replay.check_new("new#1")
    replay.find("a#1", b.StepStarted, "a")
    replay.check_new("new#1")


def test_another_scope_does_not_matter() -> None:
    """Parallel branches are at different places."""
    replay = Lookup("r1", history_of(started("left/a#1"), completed("left/a#1")))
    replay.check_new("right/new#1")
    with pytest.raises(Divergence):
        replay.check_new("left/new#1")


def test_recorded_reads_hold_nobody_up() -> None:
    """A read that the code does not ask for any more is ignored, also at the end."""
    replay = Lookup("r1", history_of(started("a#1", effect="none"), completed("a#1")))
    replay.check_new("new#1")
    replay.check_end()


def test_the_end_is_refused_while_an_effect_was_not_asked_for() -> None:
    """The code lost something that was done."""
    replay = Lookup("r1", history_of(started("deep/a#1"), completed("deep/a#1")))
    with pytest.raises(Divergence, match="ended without it"):
        replay.check_end()
    replay.find("deep/a#1", b.StepStarted, "a")
    replay.check_end()


def test_an_old_run_stays_on_the_old_side_of_a_change() -> None:
    """As long as what is recorded lies ahead of it; then it is as new as any."""
    replay = Lookup("r1", history_of(started("a#1"), completed("a#1")))
    assert not replay.chooses_new("")
    replay.find("a#1", b.StepStarted, "a")
    assert replay.chooses_new("")


def test_what_this_execution_records_is_not_the_past() -> None:
    """An effect that was just started does not hold up the next."""
    history = history_of(started("a#1"), completed("a#1"))
    replay = Lookup("r1", history)
    replay.find("a#1", b.StepStarted, "a")
    history.records["b#1"] = history_of(started("b#1", 2)).records["b#1"]
    replay.check_new("c#1")
    replay.check_end()
