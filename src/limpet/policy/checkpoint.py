"""Decide when the log must be durable before the agent's code continues, and when a snapshot is worthwhile."""

from typing import Literal

__all__ = ["Moment", "Strategy", "flushed_moments", "snapshot_due"]

Strategy = Literal["every_step", "every_iteration", "on_state_change"]
Moment = Literal[
    "effect_returns", "step_returns", "model_returns", "blob_returns", "say_returns", "turn_ends", "patch_returns"
]

_ALWAYS: frozenset[Moment] = frozenset({"effect_returns", "model_returns", "blob_returns", "say_returns"})
_ALSO: dict[Strategy, frozenset[Moment]] = {
    "every_step": frozenset({"step_returns", "turn_ends"}),
    "every_iteration": frozenset({"turn_ends"}),
    "on_state_change": frozenset({"patch_returns"}),
}

SMALLEST_TAIL = 64 * 1024
LONG_TAIL = 250
LONGEST_TAIL = 2_000


def flushed_moments(strategy: Strategy) -> frozenset[Moment]:
    """Return the moments at which the code waits for the disk: always when an effect, a paid model call, a large result
    or a message returns.

    Before an effect leaves the process, and when a run parks or ends, the log is always flushed; that needs no
    decision.
    """
    return _ALWAYS | _ALSO[strategy]


def snapshot_due(*, tail_bytes: int, tail_events: int, snapshot_bytes: int) -> bool:
    """Return whether the tail since the last snapshot has outgrown it, and is large or has many events to fold.

    This keeps all snapshots linear in the log.
    """
    is_large = tail_bytes >= SMALLEST_TAIL or tail_events >= LONG_TAIL
    return (is_large and tail_bytes >= snapshot_bytes) or tail_events >= LONGEST_TAIL
