"""What may be thrown away, and when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from limpet.clock import Duration, microseconds
from limpet.errors import InvalidArgument
from limpet.state.run import ENDED, Status

__all__ = ["Drop", "Keep", "KeepRule", "decide_run", "snapshots_to_drop", "snapshots_to_thin"]


@dataclass(frozen=True)
class Keep:
    """It stays, for this reason."""

    reason: str


@dataclass(frozen=True)
class Drop:
    """It may go."""


@dataclass(frozen=True, kw_only=True)
class KeepRule:
    """How long runs stay after their end: in general, by status, and by agent (which counts most); None is for ever."""

    older_than: Duration
    by_status: Mapping[str, Duration | None] | None = None
    by_agent: Mapping[str, Duration | None] | None = None

    def __post_init__(self) -> None:
        """A wrong duration or status is refused before anything is looked at."""
        unknown = sorted((self.by_status or {}).keys() - ENDED)
        if unknown:
            raise InvalidArgument(path="by_status", reason=f"{unknown[0]!r} is none of {', '.join(sorted(ENDED))}")
        for each in (self.older_than, *(self.by_status or {}).values(), *(self.by_agent or {}).values()):
            if each is not None:
                microseconds(each)

    def age(self, agent: str, status: Status) -> int | None:
        """Microseconds that such a run is kept after its end; none for ever."""
        age: Duration | None = self.older_than
        if self.by_agent and agent in self.by_agent:
            age = self.by_agent[agent]
        elif self.by_status and status in self.by_status:
            age = self.by_status[status]
        return None if age is None else microseconds(age)


def decide_run(rule: KeepRule, *, now: int, agent: str, status: Status, ended: int | None) -> Keep | Drop:
    """Whether a run may be pruned, as far as it is for itself to say."""
    if status not in ENDED or ended is None:
        return Keep(f"it is {status}")
    age = rule.age(agent, status)
    if age is None:
        return Keep("it is kept for ever")
    return Keep("it is not old enough") if now - ended < age else Drop()


def snapshots_to_thin(snapshots: Sequence[int], most: int = 128) -> tuple[int, ...]:
    """Which of a run's snapshots go when they are too many: every second one, so that its whole log stays near one."""
    return tuple(sorted(snapshots)[:-1:2]) if len(snapshots) > most else ()


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
