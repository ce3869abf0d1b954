"""When the log must be on disk before the code goes on, and when a snapshot pays."""

from typing import Literal

__all__ = ["Moment", "Strategy", "must_flush", "snapshot_due"]

Strategy = Literal["every_step", "every_iteration", "on_state_change"]
Moment = Literal[
    "before_effect", "effect_returns", "step_returns", "model_returns", "turn_ends", "patch_returns", "status_changes"
]

_ALWAYS: frozenset[Moment] = frozenset({"before_effect", "effect_returns", "model_returns", "status_changes"})
_ALSO: dict[Strategy, frozenset[Moment]] = {
    "every_step": frozenset({"step_returns", "turn_ends"}),
    "every_iteration": frozenset({"turn_ends"}),
    "on_state_change": frozenset({"patch_returns"}),
}

SMALLEST_TAIL = 64 * 1024
LONGEST_TAIL = 2_000


def must_flush(strategy: Strategy, moment: Moment) -> bool:
    """Whether the code waits for the disk at this moment.

    Under all strategies before an effect leaves the process and before it returns: a read may run again, no effect.
    """
    return moment in _ALWAYS or moment in _ALSO[strategy]


def snapshot_due(*, tail_bytes: int, tail_events: int, snapshot_bytes: int) -> bool:
    """Whether the tail since the last snapshot has outgrown it: snapshots together stay linear in the log."""
    return tail_bytes >= max(SMALLEST_TAIL, snapshot_bytes) or tail_events >= LONGEST_TAIL
