"""Steps that are open, and what they and their like have spent."""

import pytest

from limpet.events import (
    AnyBody,
    Limits,
    Spent,
    inline,
)
from limpet.events import bodies as b
from limpet.state import fold
from limpet.state.run import OpenStep
from tests.unit.event_logs import (
    BOOM,
    CLAIMED,
    CRASH,
    CREATED,
    DIED,
    PAUSE,
    RELEASED,
    RUN_COMPLETED,
    WAITING,
    answered,
    completed,
    failed,
    log,
    patched,
    resolved,
    started,
    state_after,
    unknown,
)

# Steps


def test_a_started_step_is_open_and_running() -> None:
    """What is open is in the state, with all that a person wants to see."""
    state = state_after(started(3))
    assert state.steps == (
        OpenStep(name="refund#3", tool="refund", number=3, effect="once", status="running", attempt=1, started=1030),
    )


def test_a_completed_step_is_no_longer_in_the_state() -> None:
    """What is settled is read from the log."""
    state = state_after(started(), completed())
    assert (state.steps, state.counters.steps_completed) == ((), 1)


def test_a_failed_step_is_no_longer_in_the_state() -> None:
    """Its failure is the last thing that went wrong."""
    state = state_after(started(), failed())
    assert (state.steps, state.counters.steps_failed, state.error, state.error_step) == ((), 1, BOOM, 1)


def test_a_step_that_is_tried_again_says_when_and_what_went_wrong() -> None:
    """The context of a retry survives a restart."""
    state = state_after(started(), failed(retry_at=5000))
    (step,) = state.steps
    assert (step.status, step.retry_at, step.errors, state.counters.steps_failed) == ("retrying", 5000, (BOOM,), 0)


def test_the_next_attempt_keeps_the_history_of_the_step() -> None:
    """Errors so far and the first start stay; the time of the retry is over."""
    state = state_after(started(), failed(retry_at=5000), started(attempt=2))
    (step,) = state.steps
    assert (step.status, step.attempt, step.started, step.retry_at, step.errors) == ("running", 2, 1030, None, (BOOM,))


def test_errors_of_a_step_gather() -> None:
    """One for each attempt that went wrong, of whatever kind."""
    state = state_after(
        started(), failed(retry_at=1), started(attempt=2), unknown(attempt=2, reason="error", failure=CRASH)
    )
    assert state.steps[0].errors == (BOOM, CRASH)


def test_a_failure_of_a_step_that_never_started_is_settled() -> None:
    """There is nothing to try again."""
    state = state_after(failed(retry_at=5000))
    assert (state.steps, state.counters.steps_failed) == ((), 1)


def test_an_unknown_step_stays_open() -> None:
    """It waits for verify, for a person, or for its declared repetition."""
    state = state_after(started(), unknown())
    assert (state.steps[0].status, state.counters.steps_unknown, state.error) == ("unknown", 1, None)


def test_an_unknown_step_with_an_error_says_so() -> None:
    """What went wrong last is this."""
    state = state_after(started(), unknown(reason="error", failure=CRASH))
    assert (state.error, state.error_step) == (CRASH, 1)


def test_an_unknown_step_that_never_started_opens_nothing() -> None:
    """It is counted, and that is all."""
    state = state_after(unknown(spent=Spent(tokens=3)))
    assert (state.steps, state.counters.steps_unknown, state.spent.tokens) == ((), 1, 3)


@pytest.mark.parametrize(
    ("outcome", "completed_steps", "failed_steps"), [("applied", 1, 0), ("gave_up", 0, 1), ("not_applied", 0, 0)]
)
def test_a_resolution_settles_or_reopens_a_step(outcome: str, completed_steps: int, failed_steps: int) -> None:
    """It was applied, or given up, or may be tried again."""
    state = state_after(started(), unknown(), resolved(outcome))
    assert (state.counters.steps_completed, state.counters.steps_failed) == (completed_steps, failed_steps)
    assert [step.status for step in state.steps] == (["retrying"] if outcome == "not_applied" else [])


def test_a_step_that_was_not_applied_may_be_tried_at_once() -> None:
    """No time was set for it."""
    assert state_after(started(), unknown(), resolved("not_applied")).steps[0].retry_at is None


def test_a_resolution_of_a_step_that_is_not_open_is_settled() -> None:
    """There is nothing to try again."""
    assert state_after(resolved("not_applied")).counters.steps_failed == 1


def test_progress_is_shown_on_the_open_step() -> None:
    """The output so far is context of a failure."""
    partial = inline(["row 1"])
    state = state_after(started(), b.StepProgressed(number=1, attempt=1, note="half", fraction=0.5, partial=partial))
    assert (state.steps[0].note, state.steps[0].partial) == ("half", partial)


def test_progress_without_a_partial_result_keeps_the_one_before() -> None:
    """A note does not throw output away."""
    partial = inline(["row 1"])
    state = state_after(
        started(),
        b.StepProgressed(number=1, attempt=1, partial=partial),
        b.StepProgressed(number=1, attempt=1, note="more"),
    )
    assert (state.steps[0].note, state.steps[0].partial) == ("more", partial)


def test_progress_of_a_settled_step_is_ignored() -> None:
    """It came late."""
    assert state_after(started(), completed(), b.StepProgressed(number=1, attempt=1)).steps == ()


def test_the_position_is_the_highest_number_of_a_step() -> None:
    """Also when parallel steps start out of order."""
    assert state_after(started(2), started(1)).position.step == 2


def test_steps_are_counted_by_their_numbers() -> None:
    """Parallel steps that start out of order are as many as those that start in order."""
    assert state_after(started(2), started(1)).spent.steps == state_after(started(1), started(2)).spent.steps == 2


def test_several_steps_are_open_side_by_side() -> None:
    """Each is settled by its own number."""
    state = state_after(started(1), started(2), started(3), completed(2))
    assert [step.number for step in state.steps] == [1, 3]


# What it may use


def test_what_steps_spent_adds_up() -> None:
    """Completed, failed and unknown attempts all cost."""
    spent = Spent(tokens=10, cost=0.25)
    state = state_after(
        started(1),
        completed(1, spent=spent),
        started(2),
        failed(2, retry_at=1, spent=spent),
        started(2, 2),
        failed(2, 2, spent=spent),
        started(3),
        unknown(3, spent=spent),
    )
    assert (state.spent.steps, state.spent.tokens, state.spent.cost) == (3, 40, 1.0)


def test_a_reservation_stands_on_its_step() -> None:
    """It is put aside, not spent."""
    state = state_after(started(), b.BudgetReserved(number=1, tokens=500, cost=0.5))
    assert (state.steps[0].reserved, state.spent.tokens) == (Spent(tokens=500, cost=0.5), 0)


def test_a_reservation_for_a_step_that_is_not_open_is_ignored() -> None:
    """There is nothing to put it aside for."""
    assert state_after(b.BudgetReserved(number=1, tokens=500)).steps == ()


def test_a_settled_step_spends_what_it_used_and_not_what_was_reserved() -> None:
    """The rest is free again."""
    state = state_after(started(), b.BudgetReserved(number=1, tokens=500), completed(spent=Spent(tokens=20)))
    assert state.spent.tokens == 20


def test_a_failed_attempt_frees_its_reservation() -> None:
    """It was answered, so what it used is known."""
    state = state_after(
        started(), b.BudgetReserved(number=1, tokens=500), failed(retry_at=1), started(attempt=2), completed()
    )
    assert state.spent.tokens == 0


def test_a_reservation_of_an_attempt_that_died_counts_as_spent() -> None:
    """Nobody knows how much of it was used, so all of it was."""
    state = state_after(started(), b.BudgetReserved(number=1, tokens=500, cost=0.5), DIED, started())
    assert (state.spent.tokens, state.spent.cost, state.steps[0].reserved) == (500, 0.5, None)


def test_a_reservation_of_an_unknown_attempt_counts_as_spent() -> None:
    """It started and there is no answer, so all of it was used."""
    state = state_after(started(), b.BudgetReserved(number=1, tokens=500), unknown())
    assert (state.spent.tokens, state.steps[0].reserved) == (500, None)


def test_an_unknown_attempt_that_says_what_it_spent_is_believed() -> None:
    """The reservation is only a bound for what is not known."""
    state = state_after(started(), b.BudgetReserved(number=1, tokens=500), unknown(spent=Spent(tokens=20)))
    assert state.spent.tokens == 20


def test_a_reservation_is_counted_once() -> None:
    """Unknown first and started again later is not twice."""
    state = state_after(
        started(), b.BudgetReserved(number=1, tokens=500), unknown(), resolved("not_applied"), started(attempt=2)
    )
    assert state.spent.tokens == 500


def test_an_extended_budget_changes_only_what_was_extended() -> None:
    """The other limits stay, and so does what follows when they are used up."""
    extended = b.BudgetExtended(command="c-1", by="ann", limits=Limits(max_steps=40))
    state = state_after(patched(budget=Limits(max_steps=20, max_cost=1.5, exhausted="ask")), extended)
    assert state.working.budget == Limits(max_steps=40, max_cost=1.5, exhausted="ask")


def test_a_run_without_a_budget_gets_the_limits_that_were_said() -> None:
    """What nobody limited before is limited now."""
    extended = b.BudgetExtended(command="c-1", by="ann", limits=Limits(max_steps=40))
    assert state_after(extended).working.budget == Limits(max_steps=40)


def test_time_is_spent_only_while_running() -> None:
    """Days of waiting for a person cost no wall time."""
    bodies: list[AnyBody] = [CREATED, CLAIMED, started(), WAITING, answered(), CLAIMED, RELEASED, CLAIMED]
    bodies += [RUN_COMPLETED, PAUSE]
    times = [0, 100, 103, 110, 5000, 9000, 9004, 9500, 9600, 99999]
    assert fold(log(*bodies, times=times)).spent.wall_us == 10 + 4 + 100


def test_time_is_spent_over_a_snapshot() -> None:
    """The cut between state and tail costs nothing."""
    events = log(CREATED, CLAIMED, started(), times=[0, 100, 150])
    assert fold(events[2:], fold(events[:2])).spent.wall_us == 50
