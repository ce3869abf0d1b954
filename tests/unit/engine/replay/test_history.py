"""What a log says about each call."""

from limpet.events import StatePatch, inline
from limpet.events import bodies as b
from tests.unit.engine.replay.histories import FAILURE, completed, failed, history_of, started


def test_a_step_is_settled_by_its_result() -> None:
    """Its record has the first attempt, the end, and its place in the log."""
    history = history_of(started("a#1"), completed("a#1"))
    record = history.records["a#1"]
    assert (record.end, record.settled, record.args_digest) == (2, completed("a#1"), "a")
    assert history.last_number == 1


def test_a_step_that_will_be_tried_again_is_open() -> None:
    """Only the last failure settles it."""
    open_ = history_of(started("a#1"), failed("a#1", again_at=5))
    assert open_.records["a#1"].settled is None
    assert open_.records["a#1"].latest == failed("a#1", again_at=5)
    over = history_of(started("a#1"), failed("a#1", again_at=5), started("a#1", attempt=2), failed("a#1"))
    assert over.records["a#1"].end == 4


def test_an_unknown_step_is_open_until_it_is_resolved() -> None:
    """Applied or given up settles it; not applied lets it be tried again."""
    unknown = b.StepUnknown(name="a#1", number=1, attempt=1, reason="died")
    assert history_of(started("a#1"), unknown).records["a#1"].settled is None
    for outcome, settles in (("applied", True), ("gave_up", True), ("not_applied", False)):
        resolved = b.StepResolved(name="a#1", number=1, attempt=1, how="person", outcome=outcome)  # type: ignore[arg-type]
        record = history_of(started("a#1"), unknown, resolved).records["a#1"]
        assert (record.settled is not None) is settles
        assert record.latest == resolved


def test_what_is_recorded_whole_is_settled_at_once() -> None:
    """Patches, decisions, values and versions have one event."""
    history = history_of(
        b.StatePatched(name="patch#1", patch=StatePatch(goal="g")),
        b.DecisionMade(name="decide#1", question="?", chosen=inline(1), options=inline([1]), because="x"),
        b.ValueRecorded(name="now#1", value=inline(5)),
        b.VersionChosen(name="version:x#1", change="x", chosen=True),
    )
    assert [record.end for record in history.records.values()] == [1, 2, 3, 4]
    assert not any(record.has_effect for record in history.records.values())


def test_a_wait_names_the_command_that_ended_it() -> None:
    """Commands are kept by their place."""
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


def test_a_request_of_a_step_holds_nobody_up() -> None:
    """The step asks for itself; an ask of the code is a call that the code must come to again."""
    approval = b.RequestOpened(request="q1", name="pay#1/approval#1", kind="approval", question="?")
    ask = b.RequestOpened(request="q2", name="ask#1", kind="ask", question="?")
    assert [record.has_effect for record in history_of(approval, ask).records.values()] == [False, True]


def test_what_has_an_effect() -> None:
    """Steps that are no reads, and whatever asks or calls somebody."""
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


def test_a_resume_takes_back_the_failure_that_ended_the_run() -> None:
    """And no other: what the code caught stays as it was."""
    ended = b.RunFailed(failure=FAILURE, name="b#1", number=2)
    bodies = (started("a#1"), failed("a#1"), started("b#1", 2), failed("b#1", 2), ended)
    history = history_of(*bodies, b.ResumeRequested(command="c1"))
    assert history.records["a#1"].settled == failed("a#1")
    assert history.records["b#1"].settled is None
    assert history_of(*bodies).records["b#1"].settled is not None


def test_a_resume_of_a_paused_run_takes_back_nothing() -> None:
    """There was no failure."""
    history = history_of(started("a#1"), failed("a#1"), b.ResumeRequested(command="c1"))
    assert history.records["a#1"].settled is not None


def test_turns_that_are_over_are_forgotten() -> None:
    """However many there were: nobody comes to them again; what is outside the loop stays."""
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
    """The run branches off here."""
    return b.RunForked(**{"run": "r", "at": 1, "step": 9, "effects": "ask", **more})  # type: ignore[arg-type]


def word(name: str, request: str, kind: str = "approval") -> b.RequestOpened:
    """Somebody is asked about a step."""
    return b.RequestOpened(request=request, name=name, kind=kind, question="?", number=1)  # type: ignore[arg-type]


def said(request: str, decision: str) -> b.RequestAnswered:
    """Somebody decided."""
    return b.RequestAnswered(command=request, request=request, decision=decision, by="ann")  # type: ignore[arg-type]


def test_a_fork_shares_what_the_code_was_told() -> None:
    """What was under way at the cut is not there; numbers go on from it."""
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


def test_a_word_for_a_step_is_shared_with_that_step() -> None:
    """A yes that was not used is not there; that the code was told no is."""
    yes = (
        word("a#1/approval#1", "q1"),
        said("q1", "approved"),
        b.WaitEnded(name="a#1/approval#1", how="answered", event=2),
    )
    assert list(history_of(*yes, forked()).records) == []
    assert list(history_of(*yes, started("a#1"), forked()).records) == []
    assert list(history_of(*yes, started("a#1"), completed("a#1"), forked()).records) == ["a#1/approval#1", "a#1"]
    no = (
        word("a#1/approval#1", "q1"),
        said("q1", "rejected"),
        b.WaitEnded(name="a#1/approval#1", how="answered", event=2),
    )
    assert list(history_of(*no, forked()).records) == ["a#1/approval#1"]
    late = (word("a#1/approval#1", "q1"), b.WaitEnded(name="a#1/approval#1", how="timeout"))
    assert list(history_of(*late, forked()).records) == ["a#1/approval#1"]
    gone = (word("a#1/approval#1", "q1"), b.WaitEnded(name="a#1/approval#1", how="withdrawn"))
    assert list(history_of(*gone, forked()).records) == []


def test_results_of_shared_steps_may_be_others() -> None:
    """Also of one that failed; its place in the order of ends stays."""
    history = history_of(started("a#1"), failed("a#1"), forked(results={"1": inline("mended")}))
    record = history.records["a#1"]
    assert isinstance(record.settled, b.StepCompleted)
    assert (record.settled.output, record.end) == (inline("mended"), 2)
