"""The status of a run, and how often its workers died, as its log says."""

from typing import Any

import pytest

from limpet.events import bodies as b
from limpet.events import (
    inline,
)
from limpet.state import fold
from limpet.state.fold import PAUSED
from tests.unit.event_logs import (
    BOOM,
    CANCEL,
    CLAIMED,
    CRASH,
    CREATED,
    DIED,
    PAUSE,
    PERSON,
    RELEASED,
    RESUME,
    RUN_CANCELLED,
    RUN_COMPLETED,
    RUN_FAILED,
    WAITING,
    answered,
    asked,
    completed,
    decided,
    failed,
    log,
    patched,
    resolved,
    started,
    state_after,
    statuses,
    unknown,
)

# Status


@pytest.mark.parametrize(
    ("bodies", "expected"),
    [
        ([CREATED, CLAIMED], "running"),
        ([CREATED, CLAIMED, RELEASED], "pending"),
        ([CREATED, CLAIMED, WAITING], "waiting"),
        ([CREATED, CLAIMED, WAITING, CLAIMED], "running"),
        ([CREATED, CLAIMED, RUN_COMPLETED], "completed"),
        ([CREATED, CLAIMED, RUN_FAILED], "failed"),
        ([CREATED, CLAIMED, CANCEL, RUN_CANCELLED], "cancelled"),
        ([CREATED, CLAIMED, RUN_FAILED, RESUME], "pending"),
        ([CREATED, CLAIMED, RUN_FAILED, RESUME, CLAIMED, RUN_COMPLETED], "completed"),
        ([CREATED, PAUSE], "waiting"),
        ([CREATED, PAUSE, RESUME], "pending"),
        ([CREATED, CLAIMED, PAUSE], "running"),
        ([CREATED, CLAIMED, WAITING, PAUSE], "waiting"),
        ([CREATED, CLAIMED, WAITING, RESUME], "pending"),
        ([CREATED, CLAIMED, RUN_COMPLETED, PAUSE], "completed"),
        ([CREATED, CLAIMED, RUN_CANCELLED, RESUME], "cancelled"),
        ([CREATED, CLAIMED, RUN_COMPLETED, RESUME], "completed"),
        ([CREATED, CANCEL], "pending"),
        ([CREATED, CLAIMED, CANCEL], "running"),
        ([CREATED, CLAIMED, RESUME], "running"),
    ],
)
def test_the_status_follows_the_log(bodies: list[Any], expected: str) -> None:
    """`pending → running ⇄ waiting → completed | failed | cancelled`, with pause and resume."""
    assert statuses(bodies)[-1] == expected


def test_a_claimed_run_has_its_worker() -> None:
    """While somebody drives it, the state says who."""
    assert (state_after().worker, state_after().counters.claims) == ("w-1", 1)


@pytest.mark.parametrize("body", [RELEASED, WAITING, RUN_COMPLETED, RUN_FAILED, RUN_CANCELLED])
def test_a_run_that_was_left_has_no_worker(body: Any) -> None:
    """Given back, parked or ended: nobody has it."""
    assert state_after(body).worker is None


def test_a_waiting_run_says_for_what_and_until_when() -> None:
    """So that a person can be shown why nothing happens."""
    state = state_after(WAITING)
    assert (state.waits, state.wake) == ((PERSON,), 5000)


def test_a_claim_ends_the_waiting() -> None:
    """A running run waits for nothing."""
    state = state_after(WAITING, CLAIMED)
    assert (state.waits, state.wake) == ((), None)


def test_a_completed_run_has_its_output_and_no_error() -> None:
    """What went wrong on the way did not end it."""
    state = state_after(started(), failed(retry_at=5000), started(attempt=2), completed(attempt=2), RUN_COMPLETED)
    assert (state.output, state.error, state.error_step) == (inline("receipt"), None, None)


def test_a_failed_run_names_the_error_and_its_step() -> None:
    """So that resume voids that one failure."""
    state = state_after(started(), failed(), RUN_FAILED)
    assert (state.error, state.error_step) == (BOOM, 1)


def test_a_run_can_fail_outside_any_step() -> None:
    """The agent's own code raised."""
    state = state_after(b.RunFailed(failure=CRASH))
    assert (state.error, state.error_step) == (CRASH, None)


def test_resuming_a_failed_run_voids_its_failure() -> None:
    """It goes on as if the failure had not ended it."""
    state = state_after(started(), failed(), RUN_FAILED, RESUME)
    assert (state.error, state.error_step) == (None, None)


def test_resuming_a_waiting_run_keeps_the_last_error() -> None:
    """Only the failure that ended a run is voided."""
    assert state_after(started(), failed(retry_at=5000), WAITING, RESUME).error == BOOM


def test_a_step_of_a_resumed_run_is_tried_under_its_own_number() -> None:
    """It is the same step, and counts once."""
    state = state_after(started(), failed(), RUN_FAILED, RESUME, CLAIMED, started(attempt=2))
    assert (state.position.step, state.spent.steps, state.counters.attempts) == (1, 1, 2)


def test_a_cancel_that_was_asked_for_is_known_before_it_is_done() -> None:
    """The worker sees it at its next look."""
    assert state_after(CANCEL).cancel == "no longer needed"


def test_a_cancelled_run_says_why() -> None:
    """Also where nobody had asked before."""
    assert state_after(RUN_CANCELLED).cancel == "no longer needed"


def test_a_pause_of_a_running_run_waits_for_its_worker() -> None:
    """What is under way finishes first."""
    assert state_after(PAUSE).pausing


@pytest.mark.parametrize("body", [b.RunWaiting(waits=(PAUSED,)), RESUME, RUN_COMPLETED, RUN_FAILED, RUN_CANCELLED])
def test_a_pause_is_over_when_it_was_followed_taken_back_or_too_late(body: Any) -> None:
    """No later worker pauses once more."""
    assert not state_after(PAUSE, body).pausing


@pytest.mark.parametrize("bodies", [[CREATED], [CREATED, CLAIMED, WAITING]])
def test_a_run_that_nobody_drives_is_paused_at_once(bodies: list[Any]) -> None:
    """It waits for an operator, and no timer wakes it."""
    state = fold(log(*bodies, PAUSE))
    assert (state.waits, state.wake, state.pausing) == ((PAUSED,), None, False)


def test_an_ended_run_keeps_no_open_question() -> None:
    """Requests and waits leave with the end of the run."""
    state = state_after(asked(), b.TimerSet(name="sleep#1", wake=5000), RUN_FAILED)
    assert (state.requests, state.open_waits) == ((), ())


# Deaths


def test_deaths_in_a_row_are_counted() -> None:
    """A run that kills its workers is found out."""
    assert state_after(DIED, DIED, DIED).deaths == 3


def test_a_claim_after_a_drain_is_no_death() -> None:
    """Deploying for hours quarantines nothing."""
    assert state_after(RELEASED, CLAIMED).deaths == 0


@pytest.mark.parametrize(
    "bodies",
    [
        [started(), completed()],
        [started(), failed()],
        [started(), failed(retry_at=5000)],
        [started(), unknown(), resolved("applied")],
        [started(), unknown(), resolved("not_applied")],
        [b.WaitEnded(name="sleep#1", how="fired")],
        [b.TurnStarted(loop="turns#1", number=1)],
    ],
)
def test_whatever_settles_something_forgets_deaths(bodies: list[Any]) -> None:
    """The run gets on, so it is not the run that kills."""
    assert state_after(DIED, DIED, *bodies).deaths == 0


@pytest.mark.parametrize(
    "bodies",
    [
        [started()],
        [started(), unknown()],
        [started(), b.StepProgressed(number=1, attempt=1)],
        [patched(goal="settle")],
        [decided()],
        [answered()],
    ],
)
def test_what_settles_nothing_remembers_deaths(bodies: list[Any]) -> None:
    """A sign of life is not progress."""
    assert state_after(DIED, DIED, *bodies).deaths == 2
