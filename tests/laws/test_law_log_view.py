"""Laws of the log view: it agrees with the fold, and the view of some steps is part of the view of all."""

from hypothesis import given
from hypothesis import strategies as st

from limpet.events import Event
from limpet.state import Fold, LogView, fold, step_of
from limpet.state.log_view import SETTLED
from tests.laws.logs import run_logs
from tests.laws.values import law_settings

some = law_settings(60)


def view_of(events: list[Event]) -> LogView:
    """Return the view of a log."""
    view = LogView()
    for event in events:
        view.add(event, event.decode())
    return view


@some
@given(run_logs())
def test_open_steps_and_requests_are_those_of_the_fold(events: list[Event]) -> None:
    """At every event, the view and the fold have the same open steps and requests."""
    folding, view = Fold(), LogView()
    for event in events:
        folding.add(event, event.decode())
        view.add(event, event.decode())
        state = folding.freeze()
        undone = {number for number, step in view.steps.items() if step.status == "undone"}
        opened = {number: step for number, step in view.steps.items() if step.status not in SETTLED}
        assert opened.keys() == {step.number for step in state.steps} - undone
        for step in (each for each in state.steps if each.number in opened):
            seen = opened[step.number]
            assert (seen.name, seen.tool, seen.effect) == (step.name, step.tool, step.effect)
            assert (seen.started, seen.attempts[-1].number) == (step.started, step.attempt)
            assert ("retrying" if seen.status == "escalated" else seen.status) == step.status
            assert (seen.error is None) == (step.errors == ())
        asking = {each.request: (each.to, each.expires) for each in view.requests.values() if each.status == "open"}
        assert asking == {each.request: (each.to, each.expires) for each in state.requests}


@some
@given(run_logs(), st.data())
def test_some_steps_are_seen_as_in_the_whole_log(events: list[Event], data: st.DataObject) -> None:
    """The events that `step_of` assigns to some steps give exactly these steps, at any point of the log."""
    cut = data.draw(st.integers(1, len(events)))
    whole = view_of(events[:cut]).steps
    numbers = data.draw(st.sets(st.sampled_from(sorted(whole)))) if whole else set()
    wanted = [event for event in events[:cut] if step_of(event.decode()) in {0, *numbers}]
    assert view_of(wanted).steps == {number: step for number, step in whole.items() if number in numbers}


@some
@given(run_logs())
def test_no_wait_is_open_after_the_end(events: list[Event]) -> None:
    """A run that has ended waits for nothing, and every wait ends after it started."""
    state, view = fold(events), view_of(events)
    for wait in view.waits:
        assert wait.ended is None or wait.ended >= wait.started
    if state.status in ("completed", "cancelled"):
        assert all(wait.ended is not None for wait in view.waits)
