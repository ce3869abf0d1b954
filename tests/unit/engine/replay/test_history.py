"""History: what the log has recorded about each call."""

import pytest

from limpet.events import START, StatePatch, inline, seal_all
from limpet.events import bodies as b
from tests.unit.engine.replay.histories import FAILURE, completed, failed, history_of, started


def test_a_step_is_settled_by_its_result() -> None:
    """The record has the first attempt, the end, and its sequence in the log."""
    history = history_of(started("a#1"), completed("a#1"))
    record = history.records["a#1"]
    assert (record.end, record.settled, record.args_digest) == (2, completed("a#1"), "a")
    assert history.last_number == 1


def test_a_step_with_a_scheduled_retry_is_open() -> None:
    """Only the last failure settles the step."""
    open_ = history_of(started("a#1"), failed("a#1", again_at=5))
    assert open_.records["a#1"].settled is None
    assert open_.records["a#1"].latest == failed("a#1", again_at=5)
    over = history_of(started("a#1"), failed("a#1", again_at=5), started("a#1", attempt=2), failed("a#1"))
    assert over.records["a#1"].end == 4


def test_an_unknown_step_is_open_until_it_is_resolved() -> None:
    """The outcomes "applied" and "gave_up" settle the step; "not_applied" allows another attempt."""
    unknown = b.StepUnknown(name="a#1", number=1, attempt=1, reason="died")
    assert history_of(started("a#1"), unknown).records["a#1"].settled is None
    for outcome, settles in (("applied", True), ("gave_up", True), ("not_applied", False)):
        resolved = b.StepResolved(name="a#1", number=1, attempt=1, how="person", outcome=outcome)  # type: ignore[arg-type]
        record = history_of(started("a#1"), unknown, resolved).records["a#1"]
        assert (record.settled is not None) is settles
        assert record.latest == resolved


def test_calls_with_one_event_are_settled_by_it() -> None:
    """Patches, decisions, values and versions have one event."""
    history = history_of(
        b.StatePatched(name="patch#1", patch=StatePatch(goal="g")),
        b.DecisionMade(name="decide#1", question="?", chosen=inline(1), options=inline([1]), because="x"),
        b.ValueRecorded(name="now#1", value=inline(5)),
        b.VersionChosen(name="version:x#1", change="x", chosen=True),
    )
    assert [record.end for record in history.records.values()] == [1, 2, 3, 4]
    assert not any(record.has_effect for record in history.records.values())


def test_a_wait_refers_to_the_command_that_ended_it() -> None:
    """Commands are found by their sequence."""
    signal = b.SignalReceived(command="c1", signal="go", value=inline(7))
    history = history_of(
        b.WaitOpened(name="receive:go#1", signal="go"),
        signal,
        b.WaitEnded(name="receive:go#1", how="received", event=2),
    )
    settled = history.records["receive:go#1"].settled
    assert isinstance(settled, b.WaitEnded)
    assert settled.event is not None
    assert history.commands[settled.event] == signal


def test_only_requests_of_the_agents_code_have_an_effect() -> None:
    """The step opens its own request again; the agent's code must repeat its own `ask`."""
    approval = b.RequestOpened(request="q1", name="pay#1/approval#1", kind="approval", question="?")
    ask = b.RequestOpened(request="q2", name="ask#1", kind="ask", question="?")
    assert [record.has_effect for record in history_of(approval, ask).records.values()] == [False, True]


def test_calls_with_an_effect_are_recognised() -> None:
    """Steps other than reads, asks and calls of agents have an effect."""
    history = history_of(
        started("read#1", 1, effect="none"),
        *(started(f"{effect}#1", number, effect=effect) for number, effect in enumerate(("idempotent", "once"), 2)),
        b.RequestOpened(request="q", name="ask#1", kind="ask", question="?"),
        b.AgentCalled(name="call#1", run="c", agent="x", mode="call", asked=""),
        b.TimerSet(name="sleep#1", wake=5),
    )
    assert [name for name, record in history.records.items() if record.has_effect] == [
        "idempotent#1",
        "once#1",
        "ask#1",
        "call#1",
    ]


def test_a_resume_voids_the_failure_that_ended_the_run() -> None:
    """Other failures, which the code has caught, stay."""
    ended = b.RunFailed(failure=FAILURE, name="b#1", number=2, voids=("b#1",))
    bodies = (started("a#1"), failed("a#1"), started("b#1", 2), failed("b#1", 2), ended)
    history = history_of(*bodies, b.ResumeRequested(command="c1"))
    assert history.records["a#1"].settled == failed("a#1")
    assert history.records["b#1"].settled is None
    assert history_of(*bodies).records["b#1"].settled is not None


def withdrawn(name: str, request: str | None = None) -> b.WaitEnded:
    """Return the end of a wait that the code cancelled."""
    return b.WaitEnded(name=name, how="withdrawn", request=request)


def called(name: str, run: str) -> b.AgentCalled:
    """Return a call of another agent."""
    return b.AgentCalled(name=name, run=run, agent="x", mode="call", asked="", agent_version="1", contract="")


def returned(run: str, outcome: str) -> b.AgentReturned:
    """Return the return of a called run."""
    return b.AgentReturned(command=run, run=run, outcome=outcome)  # type: ignore[arg-type]


def test_a_resume_voids_the_cancellations_that_the_failure_caused() -> None:
    """Steps and timers go on; questions, signals and calls of agents are made again. Others stay cancelled."""
    cancelled = b.StepUnknown(name="a#1", number=1, attempt=1, reason="cancelled")
    opened = (started("a#1"), b.TimerSet(name="t#1", wake=9), requested("q#1", "q"), called("c#1", "r.x-1"))
    ends = (cancelled, withdrawn("t#1"), withdrawn("q#1", "q"), withdrawn("c#1"))
    names = ("a#1", "t#1", "q#1", "c#1")
    ended = b.RunFailed(failure=FAILURE, voids=names)
    before = history_of(*opened, *ends)
    assert all(before.is_cancelled(name) for name in names)
    after = history_of(*opened, *ends, ended, returned("r.x-1", "cancelled"), b.ResumeRequested(command="c1"))
    assert list(after.records) == ["a#1", "t#1"]
    assert [(each.settled, each.end, each.cancelled_at) for each in after.records.values()] == [(None, None, 0)] * 2
    others = history_of(*opened, *ends, b.RunFailed(failure=FAILURE), b.ResumeRequested(command="c1"))
    assert all(others.is_cancelled(name) for name in names)


def test_a_called_run_that_was_faster_than_its_cancellation_is_not_called_again() -> None:
    ended = b.RunFailed(failure=FAILURE, voids=("c#1",))
    bodies = (called("c#1", "r.x-1"), withdrawn("c#1"), returned("r.x-1", "completed"), ended)
    assert history_of(*bodies, b.ResumeRequested(command="c1")).records["c#1"].settled is None


def test_a_step_that_was_cancelled_between_attempts_goes_on_from_the_last_one() -> None:
    """Its outcome is known: the attempt failed. That of a running attempt is unknown."""
    cancelled = b.StepUnknown(name="a#1", number=1, attempt=1, reason="cancelled")
    ended = (b.RunFailed(failure=FAILURE, voids=("a#1",)), b.ResumeRequested(command="c1"))
    paused = history_of(started("a#1"), failed("a#1", again_at=5), cancelled, *ended)
    assert paused.records["a#1"].latest == failed("a#1", again_at=5)
    assert history_of(started("a#1"), cancelled, *ended).records["a#1"].latest == cancelled


@pytest.mark.parametrize(("decision", "is_kept"), [("approved", True), ("answered", True), ("rejected", False)])
def test_an_answer_before_the_request_was_withdrawn_is_kept(decision: str, is_kept: bool) -> None:
    """The person is not asked again. A rejected request is."""
    ended = (b.RunFailed(failure=FAILURE, voids=("q#1",)), b.ResumeRequested(command="c1"))
    history = history_of(requested("q#1", "q"), decided("q", decision), withdrawn("q#1", "q"), *ended)
    assert ("q#1" in history.records) == is_kept


def test_calls_that_failed_after_an_event_are_found() -> None:
    """A failed step, a refusal, a failed run, and a wait that ended too late; but nothing that has a result."""
    bodies = (
        *(started("early#1"), failed("early#1")),
        *(started("step#1", 2), failed("step#1", 2)),
        *(started("done#1", 3), completed("done#1", 3)),
        b.ValueRecorded(name="pay#1/refused#1", value=inline(1)),
        b.ValueRecorded(name="now#1", value=inline(1)),
        *(called("c#1", "r.x-1"), returned("r.x-1", "failed")),
        b.WaitEnded(name="c#1", how="returned", event=10),
        *(called("d#1", "r.x-2"), returned("r.x-2", "completed")),
        b.WaitEnded(name="d#1", how="returned", event=13),
        *(b.TimerSet(name="t#1", wake=9), b.WaitEnded(name="t#1", how="timeout")),
        *(b.TimerSet(name="u#1", wake=9), b.WaitEnded(name="u#1", how="fired")),
        *(requested("q#1", "q"), b.WaitEnded(name="q#1", how="timeout")),
        *(requested("no#1", "no"), decided("no", "rejected"), b.WaitEnded(name="no#1", how="answered", event=22)),
        *(requested("yes#1", "yes"), decided("yes", "approved"), b.WaitEnded(name="yes#1", how="answered", event=25)),
        *(requested("ask#1", "ask", "ask"), decided("ask", "rejected")),
        b.WaitEnded(name="ask#1", how="answered", event=28),
    )
    found = list(history_of(*bodies).failed_after(2))
    assert found == ["step#1", "pay#1/refused#1", "c#1", "t#1", "q#1", "no#1"]


def test_a_resume_of_a_paused_run_voids_no_failure() -> None:
    history = history_of(started("a#1"), failed("a#1"), b.ResumeRequested(command="c1"))
    assert history.records["a#1"].settled is not None


def test_records_of_finished_turns_are_dropped() -> None:
    """Records outside the loop stay."""
    bodies = [started("before#1", 1), completed("before#1", 1)]
    for turn in range(1, 101):
        name = f"turns#1/{turn}/think#1"
        bodies += [b.TurnStarted(loop="turns#1", number=turn), started(name, turn + 1), completed(name, turn + 1)]
        bodies += [started(f"turns#1/{turn}/deep/x#1", turn + 1), completed(f"turns#1/{turn}/deep/x#1", turn + 1)]
    history = history_of(*bodies)
    assert list(history.records) == ["before#1", "turns#1/100/think#1", "turns#1/100/deep/x#1"]
    assert history.last_number == 101


# Forks


def forked(**more: object) -> b.RunForked:
    """Return the creation of a fork."""
    return b.RunForked(**{"run": "r", "at": 1, "step": 9, "effects": "ask", **more})  # type: ignore[arg-type]


def requested(name: str, request: str, kind: str = "approval") -> b.RequestOpened:
    """Return a request for approval of a step."""
    return b.RequestOpened(request=request, name=name, kind=kind, question="?", number=1)  # type: ignore[arg-type]


def decided(request: str, decision: str) -> b.RequestAnswered:
    """Return a decision on a request."""
    return b.RequestAnswered(command=request, request=request, decision=decision, by="ann")  # type: ignore[arg-type]


def test_a_fork_shares_only_settled_calls() -> None:
    """Calls in progress at the fork point are dropped, and numbering continues from there."""
    history = history_of(
        started("a#1"),
        completed("a#1"),
        started("b#1"),
        b.TimerSet(name="sleep#1", wake=5),
        b.AgentCalled(name="call:x#1", run="r.x-1", agent="x", mode="call", asked="x"),
        b.ValueRecorded(name="now#1", value=inline(5)),
        forked(step=1),
    )
    assert list(history.records) == ["a#1", "now#1"]
    assert all(record.shared for record in history.records.values())
    assert (history.last_number, history.last_child) == (1, 1)


def test_an_approval_is_shared_with_its_completed_step() -> None:
    """An unused approval is not shared. A rejection or timeout that the code has seen is."""
    yes = (
        requested("a#1/approval#1", "q1"),
        decided("q1", "approved"),
        b.WaitEnded(name="a#1/approval#1", how="answered", event=2),
    )
    assert list(history_of(*yes, forked()).records) == []
    assert list(history_of(*yes, started("a#1"), forked()).records) == []
    assert list(history_of(*yes, started("a#1"), completed("a#1"), forked()).records) == ["a#1/approval#1", "a#1"]
    no = (
        requested("a#1/approval#1", "q1"),
        decided("q1", "rejected"),
        b.WaitEnded(name="a#1/approval#1", how="answered", event=2),
    )
    assert list(history_of(*no, forked()).records) == ["a#1/approval#1"]
    late = (requested("a#1/approval#1", "q1"), b.WaitEnded(name="a#1/approval#1", how="timeout"))
    assert list(history_of(*late, forked()).records) == ["a#1/approval#1"]
    gone = (requested("a#1/approval#1", "q1"), b.WaitEnded(name="a#1/approval#1", how="withdrawn"))
    assert list(history_of(*gone, forked()).records) == []


def test_a_fork_can_override_results_of_shared_steps() -> None:
    """A failed step can be overridden, too; its position in the return order stays."""
    history = history_of(started("a#1"), failed("a#1"), forked(results={"1": inline("mended")}))
    record = history.records["a#1"]
    assert isinstance(record.settled, b.StepCompleted)
    assert (record.settled.output, record.end) == (inline("mended"), 2)


def test_a_completed_step_is_dropped_when_the_code_has_its_result() -> None:
    """Whether its end is stored before or after that."""
    history = history_of(started("a#1"), completed("a#1"), started("b#1", 2))
    history.hand_over("a#1")
    history.hand_over("b#1")
    assert (list(history.records), history.is_partial) == (["b#1"], True)
    [_, _, _, end] = seal_all(
        START,
        "r1",
        [started("a#1"), completed("a#1"), started("b#1", 2), completed("b#1", 2)],
        time=0,
        fence=1,
        actor="w",
    )
    history.learn(end.event, end.body)
    assert list(history.records) == []


def test_a_run_in_turns_keeps_the_records_of_its_turn() -> None:
    history = history_of(b.TurnStarted(loop="turns#1", number=1), started("turns#1/1/a#1"), completed("turns#1/1/a#1"))
    history.hand_over("turns#1/1/a#1")
    assert (list(history.records), history.is_partial) == (["turns#1/1/a#1"], False)


def test_dropped_records_are_recovered_in_the_order_of_the_log() -> None:
    log = started("a#1"), completed("a#1"), started("b#1", 2), started("c#1", 3), completed("c#1", 3)
    history, fresh = history_of(*log), history_of(*log)
    open_ = history.records["b#1"]
    history.hand_over("c#1")
    history.hand_over("a#1")
    history.recover(fresh)
    assert list(history.records) == ["a#1", "b#1", "c#1"]
    assert (history.records["b#1"] is open_, history.is_partial) == (True, False)
