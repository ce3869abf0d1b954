"""Lookup: finds the record of a repeated call, with lists as logs."""

import pytest

from limpet.engine.replay.lookup import Lookup
from limpet.errors import Divergence
from limpet.events import StatePatch
from limpet.events import bodies as b
from tests.unit.engine.replay.histories import completed, history_of, started


def test_a_recorded_call_is_found_and_a_new_one_is_not() -> None:
    """New steps get the next numbers."""
    replay = Lookup("r1", history_of(started("a#1"), completed("a#1")))
    record = replay.find("a#1", b.StepStarted, "a")
    assert record is not None
    assert record.settled == completed("a#1")
    assert replay.find("b#1", b.StepStarted, "x") is None
    assert [replay.new_number(), replay.new_number()] == [2, 3]


def test_a_recorded_call_with_other_arguments_diverges() -> None:
    """This applies to recorded effects and to settled reads."""
    for effect in ("idempotent", "none"):
        replay = Lookup("r1", history_of(started("a#1", effect=effect), completed("a#1")))
        with pytest.raises(Divergence, match="other arguments"):
            replay.find("a#1", b.StepStarted, "changed")


def test_an_unsettled_read_runs_with_its_current_arguments() -> None:
    """An unsettled effect diverges, since it may have happened."""
    replay = Lookup("r1", history_of(started("a#1", effect="none"), started("b#1", 2, effect="once")))
    assert replay.find("a#1", b.StepStarted, "changed") is not None
    with pytest.raises(Divergence):
        replay.find("b#1", b.StepStarted, "changed")


def test_a_recorded_patch_is_found_whatever_the_code_says() -> None:
    """A changed patch in the code does not diverge."""
    replay = Lookup("r1", history_of(b.StatePatched(name="patch#1", patch=StatePatch(goal="then"))))
    assert replay.find("patch#1", b.StatePatched) is not None


def test_another_call_type_under_the_same_name_diverges() -> None:
    """The step became a sleep."""
    replay = Lookup("r1", history_of(started("a#1")))
    with pytest.raises(Divergence, match="StepStarted"):
        replay.find("a#1", b.TimerSet)


def test_a_new_effect_before_a_recorded_one_of_its_scope_diverges() -> None:
    """The new effect is allowed once all recorded effects were repeated."""
    replay = Lookup("r1", history_of(started("a#1"), completed("a#1")))
    with pytest.raises(Divergence, match="the log has a#1 at this point"):
        replay.check_new("new#1")
    replay.find("a#1", b.StepStarted, "a")
    replay.check_new("new#1")


def test_recorded_effects_of_other_scopes_do_not_diverge() -> None:
    replay = Lookup("r1", history_of(started("left/a#1"), completed("left/a#1")))
    replay.check_new("right/new#1")
    with pytest.raises(Divergence):
        replay.check_new("left/new#1")


def test_recorded_reads_may_be_omitted() -> None:
    """This applies to new effects and to the end."""
    replay = Lookup("r1", history_of(started("a#1", effect="none"), completed("a#1")))
    replay.check_new("new#1")
    replay.check_end()


def test_an_end_before_a_recorded_effect_diverges() -> None:
    replay = Lookup("r1", history_of(started("deep/a#1"), completed("deep/a#1")))
    with pytest.raises(Divergence, match="ended without it"):
        replay.check_end()
    replay.find("deep/a#1", b.StepStarted, "a")
    replay.check_end()


def test_a_run_with_recorded_calls_ahead_takes_the_old_branch() -> None:
    """The run takes the new branch once all recorded calls were repeated."""
    replay = Lookup("r1", history_of(started("a#1"), completed("a#1")))
    assert not replay.chooses_new("")
    replay.find("a#1", b.StepStarted, "a")
    assert replay.chooses_new("")


def test_effects_of_this_execution_do_not_diverge() -> None:
    history = history_of(started("a#1"), completed("a#1"))
    replay = Lookup("r1", history)
    replay.find("a#1", b.StepStarted, "a")
    history.records["b#1"] = history_of(started("b#1", 2)).records["b#1"]
    replay.check_new("c#1")
    replay.check_end()
