"""Forks: a fork shares settled calls and the working state of its parent, and nothing that was open."""

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


def test_a_fork_shares_the_first_events_under_its_own_id() -> None:
    """Its id, origin and time are its own."""
    shared = log(CREATED, CLAIMED)
    state = fold([*shared, *log(forked(), after=shared[-1].head, run="run-1.1")])
    assert (state.run, state.fork, state.created, state.agent) == (
        "run-1.1",
        ForkPoint(run="run-1", at=2),
        1030,
        "support",
    )


def test_a_fork_is_pending() -> None:
    state = state_after(WAITING, forked())
    assert (state.status, state.worker, state.waits, state.wake) == ("pending", None, (), None)


def test_a_fork_drops_calls_that_were_open_at_the_fork_point() -> None:
    """Steps, requests, grants, waits and children are dropped; unused signals are kept."""
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


def test_a_fork_keeps_the_working_state() -> None:
    """Working state, decisions and turns are shared."""
    state = state_after(patched(goal="settle"), decided(), b.TurnStarted(loop="turns#1", number=4), forked(at=5))
    assert (state.working.goal, len(state.decisions), state.turns) == ("settle", 1, {"turns#1": 4})


@pytest.mark.parametrize("end", [RUN_COMPLETED, RUN_FAILED, RUN_CANCELLED])
def test_a_fork_of_an_ended_run_has_not_ended(end: Any) -> None:
    """The fork inherits no result, error, cancel, pause or deaths."""
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


def test_a_fork_can_override_version_input_and_state() -> None:
    state = state_after(forked(agent_version="2", input=inline("other"), patch=StatePatch(goal="retry")))
    assert (state.agent_version, state.input, state.working.goal) == ("2", inline("other"), "retry")


def test_a_fork_without_overrides_keeps_version_and_input() -> None:
    state = state_after(forked())
    assert (state.agent_version, state.input, state.working) == ("1", CREATED.input, AgentState())


def test_step_numbers_of_a_fork_continue_from_the_fork_point() -> None:
    """Steps that were not settled at the fork point are neither numbered nor counted."""
    state = state_after(started(1), completed(1), started(2), forked(at=5, step=1), CLAIMED, started(2))
    assert (state.position.step, state.spent.steps) == (2, 2)
