"""A fork shares what was settled and known, and none of what was open."""

from typing import Any

import pytest

from limpet.events import (
    StatePatch,
    inline,
)
from limpet.events import bodies as b
from limpet.state import AgentState, fold
from limpet.state.run import ForkPoint
from tests.unit.event_logs import (
    CANCEL,
    CLAIMED,
    CREATED,
    DIED,
    PAUSE,
    RUN_CANCELLED,
    RUN_COMPLETED,
    RUN_FAILED,
    WAITING,
    answered,
    asked,
    called,
    completed,
    decided,
    failed,
    forked,
    log,
    patched,
    started,
    state_after,
)


def test_a_fork_shares_the_beginning_and_goes_on_under_its_own_name() -> None:
    """Its id, its origin and its time are its own."""
    shared = log(CREATED, CLAIMED)
    state = fold([*shared, *log(forked(), after=shared[-1].head, run="run-1.1")])
    assert (state.run, state.fork, state.created, state.agent) == (
        "run-1.1",
        ForkPoint(run="run-1", at=2),
        1030,
        "support",
    )


def test_a_fork_begins_pending() -> None:
    """Whatever its parent was doing."""
    state = state_after(WAITING, forked())
    assert (state.status, state.worker, state.waits, state.wake) == ("pending", None, (), None)


def test_a_fork_drops_what_was_open_at_the_cut() -> None:
    """Steps, requests, grants, waits and children of the parent are not the child's; signals that nobody took are."""
    state = state_after(
        started(),
        asked("q-1"),
        answered("q-1"),
        asked("q-2"),
        b.GrantGiven(command="c-1", grant="g-1", by="ann"),
        b.TimerSet(name="sleep#1", wake=5000),
        called(),
        b.SignalReceived(command="c-2", signal="paid", value=inline(1)),
        forked(at=9),
    )
    assert [each.signal for each in state.signals] == ["paid"]
    opened = (state.steps, state.requests, state.grants, state.open_waits, state.children)
    assert opened == ((), (), (), (), ())


def test_a_fork_keeps_what_the_agent_knew() -> None:
    """Working state, decisions and turns are the shared beginning."""
    state = state_after(patched(goal="settle"), decided(), b.TurnStarted(loop="turns#1", number=4), forked(at=5))
    assert (state.working.goal, len(state.decisions), state.turns) == ("settle", 1, {"turns#1": 4})


@pytest.mark.parametrize("end", [RUN_COMPLETED, RUN_FAILED, RUN_CANCELLED])
def test_a_fork_of_an_ended_run_has_not_ended(end: Any) -> None:
    """No result, no error, no cancel, no pause and no deaths are inherited."""
    state = state_after(DIED, CANCEL, PAUSE, started(), failed(), end, forked(at=8, step=1))
    assert (state.status, state.output, state.error, state.error_step, state.cancel, state.pausing, state.deaths) == (
        "pending",
        None,
        None,
        None,
        None,
        False,
        0,
    )


def test_a_fork_may_override_version_input_and_state() -> None:
    """What was asked to be different is different from the start."""
    state = state_after(forked(agent_version="2", input=inline("other"), patch=StatePatch(goal="retry")))
    assert (state.agent_version, state.input, state.working.goal) == ("2", inline("other"), "retry")


def test_a_fork_without_overrides_is_like_its_parent() -> None:
    """Version and input stay."""
    state = state_after(forked())
    assert (state.agent_version, state.input, state.working) == ("1", CREATED.input, AgentState())


def test_the_numbers_of_a_fork_go_on_from_the_cut() -> None:
    """Steps that were not settled there are neither numbered nor counted."""
    state = state_after(started(1), completed(1), started(2), forked(at=5, step=1), CLAIMED, started(2))
    assert (state.position.step, state.spent.steps) == (2, 2)
