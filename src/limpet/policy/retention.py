"""Decide which runs and snapshots may be deleted, and when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from limpet.clock import Duration, microseconds
from limpet.errors import InvalidArgument
from limpet.state.run import ENDED, Status

__all__ = ["Drop", "Keep", "KeepRule", "decide_run", "snapshots_to_drop", "snapshots_to_thin"]


class Keep(Struct, frozen=True):
    """Keep the run, for this reason."""

    reason: str


class Drop(Struct, frozen=True):
    """The run may be deleted."""


@dataclass(frozen=True, kw_only=True)
class KeepRule:
    """How long runs are kept after their end: in general, by status, and by agent, which takes precedence.

    None keeps them permanently.
    """

    older_than: Duration
    by_status: Mapping[str, Duration | None] | None = None
    by_agent: Mapping[str, Duration | None] | None = None

    def __post_init__(self) -> None:
        """Raise for an invalid duration or status, before any run is read."""
        unknown = sorted((self.by_status or {}).keys() - ENDED)
        if unknown:
            raise InvalidArgument(path="by_status", reason=f"{unknown[0]!r} is not one of {', '.join(sorted(ENDED))}")
        for each in (self.older_than, *(self.by_status or {}).values(), *(self.by_agent or {}).values()):
            if each is not None:
                microseconds(each)

    def age(self, agent: str, status: Status) -> int | None:
        """Return how long such a run is kept after its end, in microseconds; None is permanently."""
        age: Duration | None = self.older_than
        if self.by_agent and agent in self.by_agent:
            age = self.by_agent[agent]
        elif self.by_status and status in self.by_status:
            age = self.by_status[status]
        return None if age is None else microseconds(age)


def decide_run(rule: KeepRule, *, now: int, agent: str, status: Status, ended: int | None) -> Keep | Drop:
    """Decide whether a run may be deleted, considering only the run itself."""
    if status not in ENDED or ended is None:
        return Keep(f"status is {status}")
    age = rule.age(agent, status)
    if age is None:
        return Keep("kept permanently")
    return Keep("not old enough") if now - ended < age else Drop()


def snapshots_to_thin(snapshots: Sequence[int], most: int = 1024) -> tuple[int, ...]:
    """Return the snapshots to delete if a run has too many, evenly, so that every event stays near one.

    The log is divided into at most `most / 2` equal parts, and each keeps its first snapshot. The length of a part is a
    power of two, so that the parts of a longer log are made of those of a shorter one. The newest snapshot is kept.
    """
    if len(snapshots) <= most:
        return ()
    *older, newest = sorted(snapshots)
    length = 1
    while newest // length >= most // 2:
        length *= 2
    first = {seq // length: seq for seq in reversed(older)}
    return tuple(seq for seq in older if first[seq // length] != seq)


def snapshots_to_drop(
    snapshots: Sequence[tuple[int, int]], *, now: int, keep: int, max_age: int | None = None
) -> tuple[int, ...]:
    """Return which of a run's snapshots, given as (sequence, time), may be deleted. The newest one is always kept."""
    newest_first = sorted(snapshots, reverse=True)
    dropped = [
        seq
        for place, (seq, time) in enumerate(newest_first)
        if place > 0 and (place >= keep or (max_age is not None and now - time > max_age))
    ]
    return tuple(sorted(dropped))
