"""Open steps, and the spending of steps."""

import pytest

from limpet.errors import Tampered
from limpet.events import (
    AnyBody,
    Limits,
    PlanItem,
    Spent,
    inline,
)
from limpet.events import bodies as b
from limpet.state import Fold, fold
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
    state = state_after(started(3))
    assert state.steps == (
        OpenStep(name="refund#3", tool="refund", number=3, effect="once", status="running", attempt=1, started=1030),
    )


def test_a_completed_step_is_no_longer_in_the_state() -> None:
    """Settled steps are read from the log."""
    state = state_after(started(), completed())
    assert (state.steps, state.counters.steps_completed) == ((), 1)


PLANNED = patched(plan=(PlanItem(item="read"), PlanItem(item="pay")))
BEFORE: dict[str, tuple[AnyBody, ...]] = {
    "a new run": (),
    "after a step": (started(1), completed(1)),
    "with a plan": (PLANNED,),
    "in the same item": (PLANNED, started(1, item=0), completed(1)),
    "in a parallel step": (started(3),),
    "in a retry": (started(2), failed(2, retry_at=5000)),
    "under suspicion": (DIED, DIED),
    "while not running": (RELEASED,),
}
WHOLE: dict[str, tuple[b.StepStarted, b.StepCompleted]] = {
    "a step": (started(2), completed(2)),
    "a step of an item": (started(2, item=0), completed(2)),
    "with usage": (started(2), completed(2, spent=Spent(tokens=5, cost=0.5))),
    "with an approval": (started(2, grant="q-1"), completed(2)),
    "of different steps": (started(2), completed(3)),
}


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("whole", WHOLE)
def test_a_whole_step_has_the_state_of_its_start_and_its_end(before: str, whole: str) -> None:
    """The worker that drives the run folds both events together."""
    *known, first, last = log(CREATED, CLAIMED, *BEFORE[before], *WHOLE[whole])
    together = Fold()
    for event in known:
        together.add(event, event.decode())
    together.add_step(first, WHOLE[whole][0], last, WHOLE[whole][1])
    assert together.freeze() == fold([*known, first, last])


@pytest.mark.parametrize("missing", [0, 1])
def test_a_whole_step_must_follow_the_log(missing: int) -> None:
    events = log(CREATED, CLAIMED, started(1), started(2), completed(2), completed(1))
    together = Fold()
    for event in events[: 3 - missing]:
        together.add(event, event.decode())
    with pytest.raises(Tampered):
        together.add_step(events[3 + missing], started(2), events[5 - missing], completed(2))


def test_a_failed_step_is_no_longer_in_the_state() -> None:
    """The failure is the last error."""
    state = state_after(started(), failed())
    assert (state.steps, state.counters.steps_failed, state.error, state.error_step) == ((), 1, BOOM, 1)


def test_a_step_with_a_scheduled_retry_has_its_time_and_error() -> None:
    """The context of a retry survives a restart."""
    state = state_after(started(), failed(retry_at=5000))
    (step,) = state.steps
    assert (step.status, step.retry_at, step.errors, state.counters.steps_failed) == ("retrying", 5000, (BOOM,), 0)


def test_the_next_attempt_keeps_the_history_of_the_step() -> None:
    """Earlier errors and the first start stay; the time of the retry is cleared."""
    state = state_after(started(), failed(retry_at=5000), started(attempt=2))
    (step,) = state.steps
    assert (step.status, step.attempt, step.started, step.retry_at, step.errors) == ("running", 2, 1030, None, (BOOM,))


def test_errors_of_a_step_accumulate() -> None:
    """Each failed attempt adds an error, of any kind."""
    state = state_after(
        started(), failed(retry_at=1), started(attempt=2), unknown(attempt=2, reason="error", failure=CRASH)
    )
    assert state.steps[0].errors == (BOOM, CRASH)


def test_a_failure_of_a_step_that_never_started_is_settled() -> None:
    state = state_after(failed(retry_at=5000))
    assert (state.steps, state.counters.steps_failed) == ((), 1)


def test_an_unknown_step_stays_open() -> None:
    """The step waits for verify, a person or its declared retry."""
    state = state_after(started(), unknown())
    assert (state.steps[0].status, state.counters.steps_unknown, state.error) == ("unknown", 1, None)


def test_the_error_of_an_unknown_step_is_the_last_error() -> None:
    state = state_after(started(), unknown(reason="error", failure=CRASH))
    assert (state.error, state.error_step) == (CRASH, 1)


def test_an_unknown_step_that_never_started_opens_nothing() -> None:
    """The step is only counted."""
    state = state_after(unknown(spent=Spent(tokens=3)))
    assert (state.steps, state.counters.steps_unknown, state.spent.tokens) == ((), 1, 3)


@pytest.mark.parametrize(
    ("outcome", "completed_steps", "failed_steps"), [("applied", 1, 0), ("gave_up", 0, 1), ("not_applied", 0, 0)]
)
def test_a_resolution_settles_or_reopens_a_step(outcome: str, completed_steps: int, failed_steps: int) -> None:
    """The step was applied, given up, or may be retried."""
    state = state_after(started(), unknown(), resolved(outcome))
    assert (state.counters.steps_completed, state.counters.steps_failed) == (completed_steps, failed_steps)
    assert [step.status for step in state.steps] == (["retrying"] if outcome == "not_applied" else [])


def test_a_step_that_was_not_applied_can_be_retried_immediately() -> None:
    assert state_after(started(), unknown(), resolved("not_applied")).steps[0].retry_at is None


def test_a_resolution_of_a_step_that_is_not_open_is_settled() -> None:
    assert state_after(resolved("not_applied")).counters.steps_failed == 1


def test_progress_is_kept_on_the_open_step() -> None:
    partial = inline(["row 1"])
    state = state_after(started(), b.StepProgressed(number=1, attempt=1, note="half", fraction=0.5, partial=partial))
    assert (state.steps[0].note, state.steps[0].partial) == ("half", partial)


def test_progress_without_a_partial_result_keeps_the_last_one() -> None:
    partial = inline(["row 1"])
    state = state_after(
        started(),
        b.StepProgressed(number=1, attempt=1, partial=partial),
        b.StepProgressed(number=1, attempt=1, note="more"),
    )
    assert (state.steps[0].note, state.steps[0].partial) == ("more", partial)


def test_progress_of_a_settled_step_is_ignored() -> None:
    """The report came late."""
    assert state_after(started(), completed(), b.StepProgressed(number=1, attempt=1)).steps == ()


def test_the_position_is_the_highest_step_number() -> None:
    """This holds when parallel steps start out of order, too."""
    assert state_after(started(2), started(1)).position.step == 2


def test_steps_are_counted_by_their_numbers() -> None:
    """The order in which parallel steps start does not matter."""
    assert state_after(started(2), started(1)).spent.steps == state_after(started(1), started(2)).spent.steps == 2


def test_several_steps_can_be_open_concurrently() -> None:
    """Each step is settled by its own number."""
    state = state_after(started(1), started(2), started(3), completed(2))
    assert [step.number for step in state.steps] == [1, 3]


# Budgets


def test_the_spending_of_steps_adds_up() -> None:
    """Completed, failed and unknown attempts all count."""
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


def test_a_reservation_belongs_to_its_step() -> None:
    """The amount is reserved, not spent."""
    state = state_after(started(), b.BudgetReserved(number=1, tokens=500, cost=0.5))
    assert (state.steps[0].reserved, state.spent.tokens) == (Spent(tokens=500, cost=0.5), 0)


def test_a_reservation_for_a_step_that_is_not_open_is_ignored() -> None:
    assert state_after(b.BudgetReserved(number=1, tokens=500)).steps == ()


def test_a_settled_step_spends_its_usage_and_not_the_reservation() -> None:
    """The rest is free again."""
    state = state_after(started(), b.BudgetReserved(number=1, tokens=500), completed(spent=Spent(tokens=20)))
    assert state.spent.tokens == 20


def test_a_failed_attempt_frees_its_reservation() -> None:
    """The attempt returned, so its usage is known."""
    state = state_after(
        started(), b.BudgetReserved(number=1, tokens=500), failed(retry_at=1), started(attempt=2), completed()
    )
    assert state.spent.tokens == 0


def test_a_reservation_of_an_attempt_that_died_counts_as_spent() -> None:
    """Its usage is unknown, so the whole reservation counts."""
    state = state_after(started(), b.BudgetReserved(number=1, tokens=500, cost=0.5), DIED, started())
    assert (state.spent.tokens, state.spent.cost, state.steps[0].reserved) == (500, 0.5, None)


def test_a_reservation_of_an_unknown_attempt_counts_as_spent() -> None:
    """Its usage is unknown, so the whole reservation counts."""
    state = state_after(started(), b.BudgetReserved(number=1, tokens=500), unknown())
    assert (state.spent.tokens, state.steps[0].reserved) == (500, None)


def test_an_unknown_attempt_with_known_usage_spends_that() -> None:
    """The reservation applies only if the usage is unknown."""
    state = state_after(started(), b.BudgetReserved(number=1, tokens=500), unknown(spent=Spent(tokens=20)))
    assert state.spent.tokens == 20


def test_a_reservation_is_counted_once() -> None:
    """An unknown attempt that is started again later does not count twice."""
    state = state_after(
        started(), b.BudgetReserved(number=1, tokens=500), unknown(), resolved("not_applied"), started(attempt=2)
    )
    assert state.spent.tokens == 500


def test_an_extended_budget_changes_only_what_was_extended() -> None:
    """The other limits and the `exhausted` setting stay."""
    extended = b.BudgetExtended(command="c-1", by="ann", limits=Limits(max_steps=40))
    state = state_after(patched(budget=Limits(max_steps=20, max_cost=1.5, exhausted="ask")), extended)
    assert state.working.budget == Limits(max_steps=40, max_cost=1.5, exhausted="ask")


def test_a_run_without_a_budget_gets_no_limits() -> None:
    extended = b.BudgetExtended(command="c-1", by="ann", limits=Limits(max_steps=40))
    assert state_after(extended).working.budget is None


def test_time_is_spent_only_while_running() -> None:
    """Waiting for a person costs no wall time."""
    bodies: list[AnyBody] = [CREATED, CLAIMED, started(), WAITING, answered(), CLAIMED, RELEASED, CLAIMED]
    bodies += [RUN_COMPLETED, PAUSE]
    times = [0, 100, 103, 110, 5000, 9000, 9004, 9500, 9600, 99999]
    assert fold(log(*bodies, times=times)).spent.wall_us == 10 + 4 + 100


def test_wall_time_is_counted_across_a_snapshot() -> None:
    events = log(CREATED, CLAIMED, started(), times=[0, 100, 150])
    assert fold(events[2:], fold(events[:2])).spent.wall_us == 50
