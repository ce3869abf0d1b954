"""When the code waits for the disk, and when a snapshot pays."""

from typing import get_args

import pytest

from limpet.policy.checkpoint import LONGEST_TAIL, SMALLEST_TAIL, Moment, Strategy, must_flush, snapshot_due

WAITS: dict[Strategy, set[Moment]] = {
    "every_step": {"effect_returns", "model_returns", "step_returns", "turn_ends"},
    "every_iteration": {"effect_returns", "model_returns", "turn_ends"},
    "on_state_change": {"effect_returns", "model_returns", "patch_returns"},
}


@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_each_strategy_waits_at_its_moments(strategy: Strategy) -> None:
    """The whole table, as the kernel's rules say it."""
    assert {moment for moment in get_args(Moment) if must_flush(strategy, moment)} == WAITS[strategy]


@pytest.mark.parametrize("strategy", get_args(Strategy))
@pytest.mark.parametrize("moment", ["effect_returns", "model_returns"])
def test_some_moments_always_wait(strategy: Strategy, moment: Moment) -> None:
    """An effect that returns, and a model call that was paid for."""
    assert must_flush(strategy, moment)


@pytest.mark.parametrize(
    ("tail_bytes", "tail_events", "snapshot_bytes", "due"),
    [
        (0, 0, 0, False),
        (SMALLEST_TAIL - 1, 10, 0, False),
        (SMALLEST_TAIL, 10, 0, True),
        (SMALLEST_TAIL, 10, SMALLEST_TAIL + 1, False),
        (SMALLEST_TAIL + 1, 10, SMALLEST_TAIL + 1, True),
        (1, LONGEST_TAIL - 1, 0, False),
        (1, LONGEST_TAIL, 10**9, True),
    ],
)
def test_a_snapshot_is_due_when_the_tail_has_outgrown_it(
    tail_bytes: int, tail_events: int, snapshot_bytes: int, due: bool
) -> None:
    """64 KB or its own size, or 2,000 events."""
    assert snapshot_due(tail_bytes=tail_bytes, tail_events=tail_events, snapshot_bytes=snapshot_bytes) is due


def test_the_thresholds_are_those_of_the_kernel() -> None:
    """64 KB and 2,000 events."""
    assert (SMALLEST_TAIL, LONGEST_TAIL) == (65536, 2000)
