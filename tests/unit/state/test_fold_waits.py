"""The waits of a run: for people, other agents, signals and times."""

from typing import Any

import pytest
from msgspec.structs import replace

from limpet.events import Failure, Limits, Spent, inline
from limpet.events import bodies as b
from limpet.state.run import Child, Grant, OpenRequest, Signal, TimedWait
from tests.unit.event_logs import (
    answered,
    asked,
    called,
    returned,
    started,
    state_after,
)

# People


def test_an_open_request_is_in_the_state() -> None:
    """All open requests together are the inbox."""
    state = state_after(asked(expires=5000))
    assert state.requests == (
        OpenRequest(
            request="q-1", name="ask#1", kind="approval", question="may I?", to=("finance",), expires=5000, seq=3
        ),
    )
    assert state.counters.requests == 1


@pytest.mark.parametrize("decision", ["answered", "approved", "rejected"])
def test_a_decided_request_leaves_the_inbox(decision: str) -> None:
    """This holds for every decision."""
    assert state_after(asked(), answered(decision=decision)).requests == ()


def test_an_approval_is_a_single_use_grant() -> None:
    """Its id is that of the request."""
    assert state_after(asked(), answered()).grants == (Grant(grant="q-1", by="ann", standing=False),)


@pytest.mark.parametrize("decision", ["answered", "rejected"])
def test_other_decisions_grant_nothing(decision: str) -> None:
    assert state_after(asked(), answered(decision=decision)).grants == ()


def test_an_approval_without_an_open_request_grants_nothing() -> None:
    """The first decision in the log is final; a late one finds no request."""
    assert state_after(asked(), answered(decision="rejected"), answered(decision="approved")).grants == ()


def test_an_approval_is_used_up_by_the_step_that_starts_with_it() -> None:
    assert state_after(asked(), answered(), started(grant="q-1")).grants == ()


def test_a_step_with_another_grant_does_not_use_an_approval() -> None:
    assert len(state_after(asked(), answered(), started(grant="q-2")).grants) == 1


def test_a_standing_grant_is_not_used_up() -> None:
    """It is valid for the rest of the run."""
    given = b.GrantGiven(command="c-1", grant="g-1", by="ann", tool="refund", risk="external_action")
    assert state_after(given, started(grant="g-1"), started(2, grant="g-1")).grants == (
        Grant(grant="g-1", by="ann", standing=True, tool="refund", risk="external_action"),
    )


def test_a_revoked_grant_is_removed() -> None:
    """Revoking it again changes nothing."""
    given = b.GrantGiven(command="c-1", grant="g-1", by="ann", tool="refund")
    revoked = b.GrantRevoked(command="c-2", grant="g-1", by="ann")
    assert state_after(given, revoked, revoked).grants == ()


@pytest.mark.parametrize("outcome", ["default", "raised"])
def test_an_expired_request_leaves_the_inbox(outcome: Any) -> None:
    """The run continues with its rule for expired requests."""
    state = state_after(asked(expires=5000), b.RequestExpired(request="q-1", outcome=outcome))
    assert (state.requests, state.grants) == ((), ())


def test_an_escalated_request_stays_open_for_others() -> None:
    """The request stays the same, with other people and another expiry."""
    state = state_after(
        asked(expires=5000), b.RequestExpired(request="q-1", outcome="escalated", to=("boss",), expires=9000)
    )
    (request,) = state.requests
    assert (request.request, request.to, request.expires, request.seq) == ("q-1", ("boss",), 9000, 3)


def test_the_escalation_of_a_decided_request_is_ignored() -> None:
    """The first of answer and expiry in the log is final."""
    late = b.RequestExpired(request="q-1", outcome="escalated", to=("boss",))
    assert state_after(asked(), answered(), late).requests == ()


# Other agents and signals


@pytest.mark.parametrize("mode", ["call", "handoff"])
def test_a_called_child_is_open_until_it_returns(mode: str) -> None:
    """The state has the name of the call."""
    assert state_after(called(mode=mode)).children == (Child(run="run-1.helper-1", name="helper#1"),)
    assert state_after(called(mode=mode), returned()).children == ()


@pytest.mark.parametrize("mode", ["start", "notify"])
def test_an_independent_child_is_not_waited_for(mode: str) -> None:
    """It is only counted."""
    state = state_after(called(mode=mode))
    assert (state.children, state.counters.children) == ((), 1)


def test_the_spending_of_a_child_counts_for_its_parent() -> None:
    """The parent does not get the used part of the budget back."""
    state = state_after(called(), returned(spent=Spent(steps=2, tokens=30, cost=0.5)))
    assert (state.spent.steps, state.spent.tokens, state.spent.cost) == (2, 30, 0.5)


def test_a_signal_is_kept_until_it_is_received() -> None:
    """It may arrive before the run waits for it."""
    state = state_after(b.SignalReceived(command="c-1", signal="paid", value=inline(1)))
    assert (state.signals, state.counters.signals) == ((Signal(signal="paid", seq=3),), 1)


def test_a_signal_is_received_once() -> None:
    """Of two signals, the wait takes the one that it names."""
    received = b.SignalReceived(command="c-1", signal="paid", value=inline(1))
    state = state_after(
        received,
        replace(received, command="c-2"),
        b.WaitOpened(name="receive#1", signal="paid"),
        b.WaitEnded(name="receive#1", how="received", event=3),
    )
    assert (state.signals, state.open_waits) == ((Signal(signal="paid", seq=4),), ())


def test_a_wait_for_a_signal_is_open_until_it_ends() -> None:
    """The wait has its timeout."""
    state = state_after(b.WaitOpened(name="receive#1", signal="paid", expires=5000))
    assert state.open_waits == (TimedWait(name="receive#1", wake=5000, signal="paid"),)


def test_a_timer_is_open_until_it_fires() -> None:
    """A sleep survives the process."""
    timer = b.TimerSet(name="sleep#1", wake=5000)
    assert state_after(timer).open_waits == (TimedWait(name="sleep#1", wake=5000),)
    assert state_after(timer, b.WaitEnded(name="sleep#1", how="fired")).open_waits == ()


def test_a_withdrawn_wait_withdraws_its_request() -> None:
    """The inbox shows only requests that are still needed."""
    assert state_after(asked(), b.WaitEnded(name="ask#1", how="withdrawn", request="q-1")).requests == ()


# Bounded state of long runs


def test_an_independent_child_has_spent_its_budget() -> None:
    """The unused part is never returned."""
    state = state_after(called(mode="start", budget=Limits(max_steps=3, max_llm_tokens=50, max_cost=0.5)))
    assert (state.spent.steps, state.spent.tokens, state.spent.cost) == (3, 50, 0.5)


def test_a_called_child_reserves_its_budget() -> None:
    """The budget is lent until the child returns."""
    (child,) = state_after(called(budget=Limits(max_steps=3))).children
    assert child.budget == Limits(max_steps=3)


def test_an_answered_question_is_not_a_grant() -> None:
    """Only the approval of a step is a grant."""
    assert state_after(asked(kind="ask"), answered()).grants == ()


def test_an_approval_has_the_digest_of_the_arguments() -> None:
    """The digest is checked again when the effect starts; its validity counts from the answer."""
    events = asked(kind="approval", digest="d-1", expires=9000, valid=500), answered(digest="d-1")
    (grant,) = (state := state_after(*events)).grants
    assert (grant.digest, grant.expires) == ("d-1", state.updated + 500)


def test_a_withdrawn_approval_is_not_a_grant() -> None:
    gone = b.WaitEnded(name="step#1", how="withdrawn", request="q-1")
    assert state_after(asked(kind="approval"), answered(), gone).grants == ()


def test_a_new_turn_drops_the_loops_of_the_previous_turn() -> None:
    """Other loops stay."""
    loops = [("turns#1", 1), ("turns#1/turns#1", 7), ("turns#2", 3), ("turns#1", 2)]
    state = state_after(*(b.TurnStarted(loop=loop, number=number) for loop, number in loops))
    assert state.turns == {"turns#2": 3, "turns#1": 2}


def test_a_step_that_keeps_failing_keeps_a_few_errors() -> None:
    """The first and the last errors are kept, and attempts are counted."""
    failures = [Failure(type=f"E{number}") for number in range(50)]
    events = [
        event
        for attempt, failure in enumerate(failures, 1)
        for event in (
            started(1, attempt=attempt),
            b.StepFailed(name="t#1", number=1, attempt=attempt, failure=failure, retry_at=5),
        )
    ]
    (step,) = state_after(*events).steps
    assert [error.type for error in step.errors] == ["E0", *(f"E{number}" for number in range(43, 50))]


def test_a_worker_that_registers_again_counts_a_death() -> None:
    """Its release records the death; a resume resets the count."""
    dead = state_after(b.RunReleased(reason="anew", died=True))
    assert (dead.status, dead.deaths) == ("pending", 1)
    parked = (b.RunWaiting(waits=()), b.ResumeRequested(command="c-1"))
    assert state_after(b.RunReleased(reason="anew", died=True), b.RunClaimed(worker="w"), *parked).deaths == 0
