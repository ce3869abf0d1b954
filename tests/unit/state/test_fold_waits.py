"""What a run waits for: people, other agents, signals and times."""

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
    """Whatever was decided."""
    assert state_after(asked(), answered(decision=decision)).requests == ()


def test_an_approval_is_a_grant_for_one_use() -> None:
    """Its id is the request's."""
    assert state_after(asked(), answered()).grants == (Grant(grant="q-1", by="ann", standing=False),)


@pytest.mark.parametrize("decision", ["answered", "rejected"])
def test_other_decisions_grant_nothing(decision: str) -> None:
    """Only a yes is a permission."""
    assert state_after(asked(), answered(decision=decision)).grants == ()


def test_an_approval_of_what_nobody_asked_grants_nothing() -> None:
    """Of two decisions the first in the log counts; a late one finds no request."""
    assert state_after(asked(), answered(decision="rejected"), answered(decision="approved")).grants == ()


def test_an_approval_is_used_up_by_the_step_that_starts_with_it() -> None:
    """One yes, one action."""
    assert state_after(asked(), answered(), started(grant="q-1")).grants == ()


def test_a_step_with_another_grant_leaves_an_approval() -> None:
    """Only the one that is named is used."""
    assert len(state_after(asked(), answered(), started(grant="q-2")).grants) == 1


def test_a_standing_grant_is_not_used_up() -> None:
    """It holds for the rest of the run."""
    given = b.GrantGiven(command="c-1", grant="g-1", by="ann", tool="refund", risk="external_action")
    assert state_after(given, started(grant="g-1"), started(2, grant="g-1")).grants == (
        Grant(grant="g-1", by="ann", standing=True, tool="refund", risk="external_action"),
    )


def test_a_revoked_grant_is_gone() -> None:
    """And revoking one that is gone is no matter."""
    given = b.GrantGiven(command="c-1", grant="g-1", by="ann", tool="refund")
    revoked = b.GrantRevoked(command="c-2", grant="g-1", by="ann")
    assert state_after(given, revoked, revoked).grants == ()


@pytest.mark.parametrize("outcome", ["default", "raised"])
def test_an_expired_request_leaves_the_inbox(outcome: Any) -> None:
    """The run goes on by its own rule for silence."""
    state = state_after(asked(expires=5000), b.RequestExpired(request="q-1", outcome=outcome))
    assert (state.requests, state.grants) == ((), ())


def test_an_escalated_request_stays_for_others() -> None:
    """The same question, to other people, until another time."""
    state = state_after(
        asked(expires=5000), b.RequestExpired(request="q-1", outcome="escalated", to=("boss",), expires=9000)
    )
    (request,) = state.requests
    assert (request.request, request.to, request.expires, request.seq) == ("q-1", ("boss",), 9000, 3)


def test_the_escalation_of_a_decided_request_is_too_late() -> None:
    """Of answered and expired the first in the log counts."""
    late = b.RequestExpired(request="q-1", outcome="escalated", to=("boss",))
    assert state_after(asked(), answered(), late).requests == ()


# Other agents and signals


@pytest.mark.parametrize("mode", ["call", "handoff"])
def test_a_child_that_is_waited_for_is_open_until_it_returns(mode: str) -> None:
    """The state says which verb called it."""
    assert state_after(called(mode=mode)).children == (Child(run="run-1.helper-1", name="helper#1"),)
    assert state_after(called(mode=mode), returned()).children == ()


@pytest.mark.parametrize("mode", ["start", "notify"])
def test_a_child_that_goes_on_alone_is_not_waited_for(mode: str) -> None:
    """It is only counted."""
    state = state_after(called(mode=mode))
    assert (state.children, state.counters.children) == ((), 1)


def test_what_a_child_spent_is_spent() -> None:
    """The slice of the budget that it used does not come back."""
    state = state_after(called(), returned(spent=Spent(steps=2, tokens=30, cost=0.5)))
    assert (state.spent.steps, state.spent.tokens, state.spent.cost) == (2, 30, 0.5)


def test_a_signal_is_kept_until_it_is_taken() -> None:
    """It may come before anybody waits for it."""
    state = state_after(b.SignalReceived(command="c-1", signal="paid", value=inline(1)))
    assert (state.signals, state.counters.signals) == ((Signal(signal="paid", seq=3),), 1)


def test_a_signal_is_taken_once() -> None:
    """Of two that came, the wait takes the one it names."""
    received = b.SignalReceived(command="c-1", signal="paid", value=inline(1))
    state = state_after(
        received,
        replace(received, command="c-2"),
        b.WaitOpened(name="receive#1", signal="paid"),
        b.WaitEnded(name="receive#1", how="received", event=3),
    )
    assert (state.signals, state.open_waits) == ((Signal(signal="paid", seq=4),), ())


def test_a_wait_for_a_signal_is_open_until_it_ends() -> None:
    """With the time at which it gives up."""
    state = state_after(b.WaitOpened(name="receive#1", signal="paid", expires=5000))
    assert state.open_waits == (TimedWait(name="receive#1", wake=5000, signal="paid"),)


def test_a_timer_is_open_until_it_fires() -> None:
    """A sleep survives the process."""
    timer = b.TimerSet(name="sleep#1", wake=5000)
    assert state_after(timer).open_waits == (TimedWait(name="sleep#1", wake=5000),)
    assert state_after(timer, b.WaitEnded(name="sleep#1", how="fired")).open_waits == ()


def test_a_withdrawn_wait_takes_its_request_along() -> None:
    """The inbox shows only what is still wanted."""
    assert state_after(asked(), b.WaitEnded(name="ask#1", how="withdrawn", request="q-1")).requests == ()


# What a long run must not pile up


def test_a_child_that_never_reports_back_has_spent_its_slice() -> None:
    """Nobody could give the rest back."""
    state = state_after(called(mode="start", budget=Limits(max_steps=3, max_llm_tokens=50, max_cost=0.5)))
    assert (state.spent.steps, state.spent.tokens, state.spent.cost) == (3, 50, 0.5)


def test_a_child_that_is_waited_for_holds_its_slice() -> None:
    """It is lent, until it returns."""
    (child,) = state_after(called(budget=Limits(max_steps=3))).children
    assert child.budget == Limits(max_steps=3)


def test_an_answered_question_is_no_permission() -> None:
    """Only the approval of a step is a grant; asks leave none behind."""
    assert state_after(asked(kind="ask"), answered()).grants == ()


def test_an_approval_knows_what_was_approved() -> None:
    """Its digest is checked again when the effect starts; how long it may be used counts from the answer."""
    events = asked(kind="approval", digest="d-1", expires=9000, valid=500), answered(digest="d-1")
    (grant,) = (state := state_after(*events)).grants
    assert (grant.digest, grant.expires) == ("d-1", state.updated + 500)


def test_a_withdrawn_approval_is_no_permission() -> None:
    """Nobody waits for it any more."""
    gone = b.WaitEnded(name="step#1", how="withdrawn", request="q-1")
    assert state_after(asked(kind="approval"), answered(), gone).grants == ()


def test_a_new_turn_forgets_the_loops_inside_the_turn_before() -> None:
    """Others stay."""
    loops = [("turns#1", 1), ("turns#1/turns#1", 7), ("turns#2", 3), ("turns#1", 2)]
    state = state_after(*(b.TurnStarted(loop=loop, number=number) for loop, number in loops))
    assert state.turns == {"turns#2": 3, "turns#1": 2}


def test_a_step_that_fails_for_ever_keeps_a_few_errors() -> None:
    """The first and the last ones; its attempts are counted."""
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


def test_a_worker_that_died_and_begins_anew_counts_a_death() -> None:
    """Its release says so; a resume forgets it."""
    dead = state_after(b.RunReleased(reason="anew", died=True))
    assert (dead.status, dead.deaths) == ("pending", 1)
    parked = (b.RunWaiting(waits=()), b.ResumeRequested(command="c-1"))
    assert state_after(b.RunReleased(reason="anew", died=True), b.RunClaimed(worker="w"), *parked).deaths == 0
