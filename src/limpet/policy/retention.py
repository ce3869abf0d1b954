"""What may be thrown away, and when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from limpet.clock import Duration, microseconds
from limpet.state.run import Status

__all__ = ["Drop", "Keep", "KeepRule", "decide_run", "snapshots_to_drop"]

_RESUMABLE_OR_LIVE: frozenset[Status] = frozenset({"pending", "running", "waiting"})


@dataclass(frozen=True)
class Keep:
    """It stays, for this reason."""

    reason: str


@dataclass(frozen=True)
class Drop:
    """It may go."""


@dataclass(frozen=True, kw_only=True)
class KeepRule:
    """How long runs stay after their end: in general, by status, and by agent (which counts most)."""

    older_than: Duration
    by_status: Mapping[Status, Duration] | None = None
    by_agent: Mapping[str, Duration] | None = None

    def age(self, agent: str, status: Status) -> int:
        """Microseconds that such a run is kept after its end."""
        if self.by_agent and agent in self.by_agent:
            return microseconds(self.by_agent[agent])
        if self.by_status and status in self.by_status:
            return microseconds(self.by_status[status])
        return microseconds(self.older_than)


def decide_run(
    rule: KeepRule, *, now: int, agent: str, status: Status, ended: int | None, needed_by: Sequence[str] = ()
) -> Keep | Drop:
    """Whether a run may be pruned; `needed_by` names forks, parents or requests that still need it."""
    if status in _RESUMABLE_OR_LIVE or ended is None:
        return Keep(f"it is {status}")
    if needed_by:
        return Keep(f"{needed_by[0]} needs it")
    if now - ended < rule.age(agent, status):
        return Keep("it is not old enough")
    return Drop()


def snapshots_to_drop(
    snapshots: Sequence[tuple[int, int]], *, now: int, keep: int, max_age: int | None = None
) -> tuple[int, ...]:
    """Which of a run's snapshots, given as (sequence, time), may go; the newest one always stays."""
    newest_first = sorted(snapshots, reverse=True)
    dropped = [
        seq
        for place, (seq, time) in enumerate(newest_first)
        if place > 0 and (place >= keep or (max_age is not None and now - time > max_age))
    ]
    return tuple(sorted(dropped))
