"""The status of a run and its death count, folded from its log."""

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
    assert (state_after().worker, state_after().counters.claims) == ("w-1", 1)


@pytest.mark.parametrize("body", [RELEASED, WAITING, RUN_COMPLETED, RUN_FAILED, RUN_CANCELLED])
def test_a_run_that_is_not_running_has_no_worker(body: Any) -> None:
    """The run was released, parked or ended."""
    assert state_after(body).worker is None


def test_a_waiting_run_has_its_waits_and_wake_time() -> None:
    state = state_after(WAITING)
    assert (state.waits, state.wake) == ((PERSON,), 5000)


def test_a_claim_clears_the_waits() -> None:
    state = state_after(WAITING, CLAIMED)
    assert (state.waits, state.wake) == ((), None)


def test_a_completed_run_has_its_output_and_no_error() -> None:
    """Errors of retried attempts are cleared."""
    state = state_after(started(), failed(retry_at=5000), started(attempt=2), completed(attempt=2), RUN_COMPLETED)
    assert (state.output, state.error, state.error_step) == (inline("receipt"), None, None)


def test_a_failed_run_has_the_error_and_its_step() -> None:
    """A resume voids that failure."""
    state = state_after(started(), failed(), RUN_FAILED)
    assert (state.error, state.error_step) == (BOOM, 1)


def test_a_run_can_fail_outside_any_step() -> None:
    """The agent's own code raised."""
    state = state_after(b.RunFailed(failure=CRASH))
    assert (state.error, state.error_step) == (CRASH, None)


def test_resuming_a_failed_run_voids_its_failure() -> None:
    state = state_after(started(), failed(), RUN_FAILED, RESUME)
    assert (state.error, state.error_step) == (None, None)


def test_resuming_a_waiting_run_keeps_the_last_error() -> None:
    """Only the failure that ended a run is voided."""
    assert state_after(started(), failed(retry_at=5000), WAITING, RESUME).error == BOOM


def test_a_step_of_a_resumed_run_keeps_its_number() -> None:
    """It is the same step, and counts once."""
    state = state_after(started(), failed(), RUN_FAILED, RESUME, CLAIMED, started(attempt=2))
    assert (state.position.step, state.spent.steps, state.counters.attempts) == (1, 1, 2)


def test_a_requested_cancel_is_in_the_state() -> None:
    """The worker reads it before it acts on it."""
    assert state_after(CANCEL).cancel == "no longer needed"


def test_a_cancelled_run_has_its_reason() -> None:
    """This holds without a cancel request, too."""
    assert state_after(RUN_CANCELLED).cancel == "no longer needed"


def test_a_pause_of_a_running_run_waits_for_its_worker() -> None:
    """Calls in progress finish first."""
    assert state_after(PAUSE).pausing


@pytest.mark.parametrize("body", [b.RunWaiting(waits=(PAUSED,)), RESUME, RUN_COMPLETED, RUN_FAILED, RUN_CANCELLED])
def test_a_pause_is_cleared_when_applied_resumed_or_too_late(body: Any) -> None:
    """No later worker pauses the run again."""
    assert not state_after(PAUSE, body).pausing


@pytest.mark.parametrize("bodies", [[CREATED], [CREATED, CLAIMED, WAITING]])
def test_a_run_without_a_worker_is_paused_immediately(bodies: list[Any]) -> None:
    """The run waits for an operator, and no timer wakes it."""
    state = fold(log(*bodies, PAUSE))
    assert (state.waits, state.wake, state.pausing) == ((PAUSED,), None, False)


def test_an_ended_run_has_no_open_requests_or_waits() -> None:
    state = state_after(asked(), b.TimerSet(name="sleep#1", wake=5000), RUN_FAILED)
    assert (state.requests, state.open_waits) == ((), ())


# Deaths


def test_consecutive_deaths_are_counted() -> None:
    """A run that kills its workers is detected."""
    assert state_after(DIED, DIED, DIED).deaths == 3


def test_a_claim_after_a_release_is_not_a_death() -> None:
    """Rolling deployments quarantine no run."""
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
def test_settling_a_call_resets_the_death_count(bodies: list[Any]) -> None:
    """The run makes progress, so it does not kill its workers."""
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
def test_events_that_settle_nothing_keep_the_death_count(bodies: list[Any]) -> None:
    """A sign of life is not progress."""
    assert state_after(DIED, DIED, *bodies).deaths == 2
