"""The state of a run: a small value that survives JSON and has a position."""

from typing import get_args

import msgspec
import pytest

from limpet.events import Artifact, Fact, Payload, PlanItem, StatePatch, inline
from limpet.events import bodies as b
from limpet.state import ENDED, Position, RunState, Status
from tests.unit.event_logs import answered, asked, called, decided, failed, started, state_after


@pytest.mark.parametrize(
    ("position", "text"),
    [
        (Position(seq=9, step=6), "step 6"),
        (Position(seq=1, step=0), "step 0"),
        (Position(seq=9, step=6, steps=9), "step 6 of 9"),
        (Position(seq=9, step=6, item=1, items=4), "step 2 of 4"),
        (Position(seq=9, step=6, item=None, items=4), "step 4 of 4"),
        (Position(seq=9, step=6, steps=9, item=1, items=4), "step 6 of 9"),
    ],
)
def test_a_position_shows_a_total_only_if_it_is_known(position: Position, text: str) -> None:
    """ "Step 6 of 9" needs a plan, or an agent that declares its number of steps."""
    assert str(position) == text


def test_a_run_has_three_final_statuses() -> None:
    assert set(get_args(Status)) - ENDED == {"pending", "running", "waiting"}


def test_a_state_is_decoded_unchanged() -> None:
    """A snapshot is the state as JSON, with everything that can be open."""
    patch = StatePatch(
        goal="settle",
        plan=(PlanItem(item="look", status="doing"),),
        facts=(Fact(key="k", value=msgspec.Raw(b'{"a":[1,2.5]}')),),
        artifacts=(Artifact(artifact_id="a", type="t", summary="s", bytes=1),),
        data=msgspec.Raw(b'{"n":1}'),
    )
    state = state_after(
        b.RunForked(run="run-1", at=2, step=0, effects="ask"),
        b.StatePatched(name="patch#1", patch=patch),
        started(),
        b.BudgetReserved(number=1, tokens=5, cost=0.1),
        b.StepProgressed(number=1, attempt=1, partial=Payload(blob="b-1", bytes=9)),
        failed(retry_at=5000),
        asked("q-1"),
        answered("q-1"),
        asked("q-2", expires=9),
        called(),
        decided(),
        b.SignalReceived(command="c-1", signal="paid", value=inline(1)),
        b.WaitOpened(name="receive#1", signal="other", expires=9),
        b.TurnStarted(loop="turns#1", number=2),
        b.ExternalRead(source="prices", key="k", number=1, stale_at=9),
    )
    assert msgspec.json.decode(msgspec.json.encode(state), type=RunState) == state


def test_a_state_with_an_unknown_field_is_refused() -> None:
    """A snapshot of a newer version is refused as a whole; it is only a cache, and is written again."""
    data = msgspec.json.encode(state_after()).replace(b"{", b'{"mood":"good",', 1)
    with pytest.raises(msgspec.ValidationError, match="unknown field `mood`"):
        msgspec.json.decode(data, type=RunState)
