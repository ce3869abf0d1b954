"""Checkpoints: when a call waits for the disk, and when a snapshot is due."""

from typing import get_args

import pytest

from limpet.policy.checkpoint import (
    LONG_TAIL,
    LONGEST_TAIL,
    SMALLEST_TAIL,
    Moment,
    Strategy,
    flushed_moments,
    snapshot_due,
)

WAITS: dict[Strategy, set[Moment]] = {
    "every_step": {"effect_returns", "model_returns", "blob_returns", "say_returns", "step_returns", "turn_ends"},
    "every_iteration": {"effect_returns", "model_returns", "blob_returns", "say_returns", "turn_ends"},
    "on_state_change": {"effect_returns", "model_returns", "blob_returns", "say_returns", "patch_returns"},
}


@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_each_strategy_flushes_at_its_moments(strategy: Strategy) -> None:
    assert flushed_moments(strategy) == WAITS[strategy]


@pytest.mark.parametrize("strategy", get_args(Strategy))
@pytest.mark.parametrize("moment", ["effect_returns", "model_returns", "blob_returns", "say_returns"])
def test_effects_and_model_calls_always_flush(strategy: Strategy, moment: Moment) -> None:
    """The moments are the return of an effect, of a model call, of a large result and of a message."""
    assert moment in flushed_moments(strategy)


@pytest.mark.parametrize(
    ("tail_bytes", "tail_events", "snapshot_bytes", "due"),
    [
        (0, 0, 0, False),
        (SMALLEST_TAIL - 1, 10, 0, False),
        (SMALLEST_TAIL, 10, 0, True),
        (SMALLEST_TAIL, 10, SMALLEST_TAIL + 1, False),
        (SMALLEST_TAIL + 1, 10, SMALLEST_TAIL + 1, True),
        (1, LONG_TAIL - 1, 0, False),
        (1, LONG_TAIL, 0, True),
        (1, LONG_TAIL, 2, False),
        (1, LONGEST_TAIL - 1, 2, False),
        (1, LONGEST_TAIL, 10**9, True),
    ],
)
def test_a_snapshot_is_due_when_the_tail_has_outgrown_it(
    tail_bytes: int, tail_events: int, snapshot_bytes: int, due: bool
) -> None:
    """A snapshot is due after its own size and 64 KB or 250 events, or after 2,000 events."""
    assert snapshot_due(tail_bytes=tail_bytes, tail_events=tail_events, snapshot_bytes=snapshot_bytes) is due


def test_the_snapshot_thresholds_are_64_kb_and_250_or_2000_events() -> None:
    assert (SMALLEST_TAIL, LONG_TAIL, LONGEST_TAIL) == (65536, 250, 2000)
