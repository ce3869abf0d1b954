"""The fold: starts with a creation, needs every event in order, and keeps the working state."""

from typing import Any

import pytest
from msgspec import UNSET, Raw
from msgspec.structs import replace

from limpet.errors import NewerVersion, Tampered
from limpet.events import (
    Artifact,
    Constraints,
    Fact,
    Lineage,
    Payload,
    PlanItem,
    Revision,
    Spent,
    StatePatch,
    inline,
)
from limpet.events import bodies as b
from limpet.state import AgentState, Counters, Fold, Position, RunState, fold
from limpet.state.fold import KEPT_DECISIONS
from limpet.state.run import Decision, LastCommand
from tests.unit.event_logs import (
    BOOM,
    CLAIMED,
    CREATED,
    RELEASED,
    RUN_COMPLETED,
    called,
    completed,
    decided,
    forked,
    log,
    patched,
    returned,
    started,
    state_after,
)

# Creation


def test_a_new_run_is_pending_and_has_every_field_of_its_creation() -> None:
    """The state has every field of the first event."""
    created = b.RunCreated(
        agent="support",
        agent_version="3",
        input=inline("help"),
        user="u-1",
        session="s-1",
        conversation="c-1",
        labels={"team": "a"},
        parent=Lineage(run="boss", name="support#1"),
        initial=StatePatch(goal="settle"),
        steps=9,
        start_at=7000,
        deadline=9000,
        exclusive="session:s-1",
        by="ann",
        via="cli",
    )
    assert fold(log(created)) == RunState(
        run="run-1",
        agent="support",
        agent_version="3",
        status="pending",
        position=Position(seq=1, step=0, steps=9),
        input=inline("help"),
        created=1010,
        updated=1010,
        wake=7000,
        deadline=9000,
        user="u-1",
        session="s-1",
        conversation="c-1",
        labels={"team": "a"},
        parent=Lineage(run="boss", name="support#1"),
        commands={"start": LastCommand(by="ann", via="cli", time=1010, seq=1)},
        working=AgentState(goal="settle"),
        spent=Spent(),
        counters=Counters(events=1),
    )


def test_a_run_without_an_initial_patch_has_an_empty_working_state() -> None:
    assert fold(log(CREATED)).working == AgentState()


def test_an_empty_log_is_refused() -> None:
    with pytest.raises(Tampered, match="the log is empty"):
        fold([])


def test_folding_an_empty_tail_does_not_change_the_state() -> None:
    state = state_after(started())
    assert fold([], state) == state


@pytest.mark.parametrize("body", [CLAIMED, started(), forked(), RUN_COMPLETED])
def test_a_log_must_start_with_run_created(body: Any) -> None:
    with pytest.raises(Tampered, match="cannot start with"):
        fold(log(body))


def test_a_second_creation_is_refused() -> None:
    with pytest.raises(Tampered, match="already created"):
        fold(log(CREATED, CREATED))


def test_a_creation_on_top_of_a_state_is_refused() -> None:
    events = log(CREATED, CREATED)
    with pytest.raises(Tampered, match="already created"):
        fold(events[1:], fold(events[:1]))


@pytest.mark.parametrize(
    "body",
    [
        b.ConversationCreated(),
        b.ConversationForked(conversation="c-1", at=1),
        b.ConversationCompacted(first=1, last=2, summary=None),
        b.MessageAdded(message="m-1", role="user", content=inline("hi")),
    ],
)
def test_conversation_events_in_a_run_are_refused(body: Any) -> None:
    """A conversation has its own log."""
    with pytest.raises(Tampered, match="does not belong in a run's log"):
        state_after(body)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_gap_is_found(place: int) -> None:
    events = log(CREATED, CLAIMED, started(), completed())
    del events[place]
    with pytest.raises(Tampered, match=f"follows event {place}"):
        fold(events)


def test_a_repeated_event_is_refused() -> None:
    events = log(CREATED, CLAIMED)
    with pytest.raises(Tampered, match="follows event 2"):
        fold([*events, events[1]])


def test_a_tail_must_follow_its_state() -> None:
    events = log(CREATED, CLAIMED, started(), completed())
    with pytest.raises(Tampered, match="follows event 1"):
        fold(events[2:], fold(events[:1]))


def test_an_unreadable_event_stops_the_fold() -> None:
    """The event is never skipped."""
    events = log(CREATED, CLAIMED)
    with pytest.raises(NewerVersion):
        fold([events[0], replace(events[1], kind="run.teleported")])


def test_an_inapplicable_patch_in_the_log_raises_tampered() -> None:
    """No correct writer appends one."""
    with pytest.raises(Tampered, match=r"event 3.*'budget' does not exist"):
        state_after(patched(lower=("budget",)))


def test_a_kind_that_the_fold_does_not_handle_is_refused() -> None:
    """Type checkers find it; the fold also refuses it at run time."""

    class StepTeleported(b.Body, frozen=True, kw_only=True):
        """A kind that the fold does not handle."""

    events = log(CREATED, CLAIMED)
    building = Fold(fold(events[:1]))
    with pytest.raises(AssertionError, match="StepTeleported"):
        building.add(events[1], StepTeleported())  # type: ignore[arg-type]


def test_every_event_updates_the_position_time_and_count() -> None:
    state = state_after(b.ValueRecorded(name="now#1", value=inline(1)))
    assert (state.position.seq, state.updated, state.counters.events) == (3, 1030, 3)


def test_the_fence_is_that_of_the_last_event() -> None:
    """Each claim increases the fence."""
    assert fold(log(CREATED, CLAIMED, RELEASED, CLAIMED)).fence == 2


@pytest.mark.parametrize(
    "body",
    [
        b.ValueRecorded(name="now#1", value=inline(1)),
        b.VersionChosen(name="version#1", change="new-prices", chosen=True),
        b.MessageSaid(name="say#1", conversation="c-1", message=4),
        b.CompensationCompleted(number=1, attempt=1),
        b.CompensationFailed(number=1, attempt=1, failure=BOOM),
        b.CompensationSkipped(number=1, reason="left"),
    ],
)
def test_some_events_change_only_the_position(body: Any) -> None:
    """They are read from the log when needed."""
    before, after = state_after(), state_after(body)
    moved = replace(
        before,
        position=after.position,
        updated=after.updated,
        spent=after.spent,
        counters=replace(before.counters, events=3),
    )
    assert after == moved


# Working state


def test_a_patch_changes_the_working_state() -> None:
    fact = Fact(key="cents", value=Raw(b"900"), source="shop", step=1)
    state = state_after(patched(goal="settle", plan=(PlanItem(item="look"),), facts=(fact,)))
    assert state.working == AgentState(goal="settle", plan=("look",), known_facts=(fact,))
    assert state.counters.patches == 1


def test_the_position_has_the_item_of_the_plan() -> None:
    plan = tuple(PlanItem(item=item) for item in ("look", "decide", "refund"))
    state = state_after(patched(plan=plan), patched(revise=(Revision(index=0, status="done"),)))
    assert state.position == Position(seq=4, step=0, item=1, items=3)


def test_a_stored_artifact_is_in_the_working_state() -> None:
    """The state has its type, size and step, but not its content."""
    stored = b.ArtifactStored(
        name="artifact#1", artifact_id="log-1", type="logs", summary="errors", bytes=9, content=inline("…"), number=2
    )
    assert state_after(stored).working.artifacts == (
        Artifact(artifact_id="log-1", type="logs", summary="errors", bytes=9, step=2),
    )


def test_a_flagged_risk_is_in_the_working_state() -> None:
    """A repeated flag is kept once."""
    flagged = b.RiskFlagged(flag="budget_pressure", detail="80 %")
    assert state_after(flagged, flagged).working.risk_flags == ("budget_pressure",)


def test_a_decision_is_kept_with_its_reason() -> None:
    state = state_after(decided())
    assert state.decisions == (Decision(question="refund?", chosen=inline("full"), because="broken", seq=3),)
    assert state.counters.decisions == 1


def test_only_the_last_decisions_are_kept() -> None:
    """The log has all of them."""
    state = state_after(*(decided(f"q{n}") for n in range(KEPT_DECISIONS + 3)))
    assert [decision.question for decision in state.decisions] == [f"q{n}" for n in range(3, KEPT_DECISIONS + 3)]
    assert state.counters.decisions == KEPT_DECISIONS + 3


def test_a_turn_is_counted_for_its_loop() -> None:
    """A resumed run enters at the current turn of each loop."""
    state = state_after(
        b.TurnStarted(loop="turns#1", number=1),
        b.TurnStarted(loop="turns#1", number=2),
        b.TurnStarted(loop="turns#2", number=1),
    )
    assert (state.turns, state.counters.turns) == ({"turns#1": 2, "turns#2": 1}, 3)


def test_the_state_has_until_when_an_external_source_is_fresh() -> None:
    """The last read of a source applies."""
    read = b.ExternalRead(source="prices", key="k", number=1, stale_at=5000)
    assert state_after(read, replace(read, stale_at=6000)).reads == {"prices": 6000}


def test_an_invalidated_source_is_no_longer_fresh() -> None:
    """Invalidating a source that was not read changes nothing."""
    read = b.ExternalRead(source="prices", key="k", number=1, stale_at=5000)
    gone = b.ExternalInvalidated(source="prices")
    assert state_after(read, gone, gone).reads == {}


def test_compensations_are_counted() -> None:
    """Once a compensation has started, the run cannot be resumed."""
    assert state_after(b.CompensationStarted(number=1, attempt=1, key="k:undo")).counters.compensations == 1


# The builder


def test_the_builder_can_be_frozen_at_any_event() -> None:
    """A frozen state does not change later."""
    events = log(CREATED, CLAIMED, started(), completed(), called(), b.TurnStarted(loop="turns#1", number=1))
    building, seen = Fold(), []
    for event in events:
        building.add(event, event.decode())
        seen.append(building.freeze())
    assert seen == [fold(events[: end + 1]) for end in range(len(events))]


def test_folding_onto_a_state_does_not_change_it() -> None:
    """A snapshot can be shared."""
    events = log(CREATED, CLAIMED, called(), returned(), b.TurnStarted(loop="turns#1", number=1))
    state = fold(events[:3])
    fold(events[3:], state)
    assert state == fold(events[:3])


def test_blob_payloads_stay_references() -> None:
    blob = Payload(blob="b-1", bytes=10**9)
    assert fold(log(replace(CREATED, input=blob))).input == blob


def test_patches_set_and_remove_constraints_and_data() -> None:
    """They can be set and removed."""
    constraints = Constraints(human_in_the_loop={"required_for_risk_levels": ["write_local"]})
    there = state_after(patched(constraints=constraints, data=Raw(b'{"a":1}')))
    gone = fold(log(patched(constraints=None, data=Raw(b"{}")), after=log(CREATED, CLAIMED, started())[-1].head), there)
    assert (there.working.constraints, there.working.data) == (constraints, Raw(b'{"a":1}'))
    assert (gone.working.constraints, gone.working.data) == (None, UNSET)
