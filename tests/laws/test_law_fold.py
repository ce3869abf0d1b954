"""Laws of the fold: any cut gives the same state, in memory or through JSON, and the cost is linear in the log."""

import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import CodeType, FrameType
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from limpet.errors import Tampered
from limpet.events import AnyBody, Event, Fact, seal
from limpet.events import bodies as b
from limpet.state import ENDED, Fold, RunState, fold
from limpet.state.patch import Working
from tests.laws.logs import run_logs
from tests.laws.values import bodies, law_settings
from tests.unit.event_logs import CLAIMED, CREATED, called, completed, decided, log, patched, returned, started

some = law_settings(60)
many = law_settings(100)


def calls_during(work: Callable[[], object]) -> Counter[CodeType]:
    """Return how often each Python function was called."""
    seen: Counter[CodeType] = Counter()

    def look(frame: FrameType, what: str, _: Any) -> None:
        if what == "call":
            seen[frame.f_code] += 1

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(before)
    return seen


def rounds(count: int) -> list[Event]:
    """Return a log of repeated rounds in which every call ends."""
    again: list[AnyBody] = []
    for number in range(1, count + 1):
        again += [b.TurnStarted(loop="turns#1", number=number), started(number), completed(number), decided()]
        again += [patched(facts=(Fact(key="k", value=msgspec.Raw(b"1")),)), called(), returned()]
    return log(CREATED, CLAIMED, *again)


@some
@given(run_logs())
def test_every_cut_of_a_log_gives_the_same_state(events: list[Event]) -> None:
    """fold(all) == fold(tail, fold(prefix)), so deleting every snapshot does not change the state."""
    whole = fold(events)
    for cut in range(1, len(events) + 1):
        assert fold(events[cut:], fold(events[:cut])) == whole


@some
@given(run_logs())
def test_every_cut_through_json_gives_the_same_state(events: list[Event]) -> None:
    """A snapshot is the state as JSON."""
    whole = fold(events)
    for cut in range(1, len(events) + 1):
        stored = msgspec.json.encode(fold(events[:cut]))
        assert fold(events[cut:], msgspec.json.decode(stored, type=RunState)) == whole


@some
@given(run_logs())
def test_folding_event_by_event_equals_folding_all(events: list[Event]) -> None:
    """The log is folded event by event, with an encoded state in between."""
    state = fold(events[:1])
    for event in events[1:]:
        state = msgspec.json.decode(msgspec.json.encode(fold([event], state)), type=RunState)
    assert state == fold(events)


@some
@given(run_logs())
def test_the_builder_can_be_frozen_after_every_event(events: list[Event]) -> None:
    """Freezing in between changes nothing."""
    building = Fold()
    for place, event in enumerate(events, 1):
        building.add(event, event.decode())
        assert building.freeze() == fold(events[:place])


@many
@given(run_logs())
def test_a_state_matches_its_log(events: list[Event]) -> None:
    """Position, counters and times match those of the log."""
    state = fold(events)
    assert (state.run, state.position.seq, state.counters.events) == (events[-1].run, len(events), len(events))
    assert (state.updated, state.fence) == (events[-1].time, events[-1].fence)
    assert all(step.number <= state.position.step <= state.spent.steps for step in state.steps)
    assert (state.worker is not None) == (state.status == "running")
    assert not (state.status in ENDED and (state.requests or state.open_waits or state.pausing))


@many
@given(run_logs(max_size=8), bodies)
def test_any_event_after_any_log_is_folded_or_refused(events: list[Event], body: Any) -> None:
    """No event makes the fold fail in another way, and none is skipped."""
    event = seal(events[-1].head, "run-1", body, time=0, fence=events[-1].fence, actor="a").event
    try:
        state = fold([*events, event])
    except Tampered:
        return
    assert state.position.seq == len(events) + 1


@some
@given(run_logs(min_size=3), st.data())
def test_a_log_with_a_gap_is_never_folded(events: list[Event], data: st.DataObject) -> None:
    """Only the end of a log can be omitted."""
    gap = data.draw(st.integers(0, len(events) - 2))
    try:
        fold(events[:gap] + events[gap + 1 :])
    except Tampered:
        return
    raise AssertionError(f"a log without event {gap + 1} was folded")


@some
@given(run_logs())
def test_a_fold_freezes_once(events: list[Event]) -> None:
    """The builder is mutable, so that the cost of an event does not depend on the state before it."""
    calls = calls_during(lambda: fold(events))
    assert (calls[Working.freeze.__code__], calls[Fold.freeze.__code__]) == (1, 1)


def test_a_fold_does_the_same_work_for_each_event() -> None:
    """A log of twice the length needs exactly twice the calls."""
    one, two, three = (calls_during(partial(fold, rounds(count))).total() for count in (50, 100, 150))
    assert three - two == two - one > 0


def test_a_state_does_not_grow_with_settled_calls() -> None:
    """A log of ten times the length gives the same state, except for digits of counters."""
    small, big = (len(msgspec.json.encode(fold(rounds(count)))) for count in (100, 1000))
    assert big - small < 40
