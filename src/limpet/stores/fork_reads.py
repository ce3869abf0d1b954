"""Read the events of a stream. A fork has its own events, and shares the earlier ones with its origin."""

from collections.abc import Callable
from typing import NamedTuple

from limpet.events import Event
from limpet.stores.rows import RunRow

__all__ = ["EventRange", "Origin", "StepRange", "origin_of", "read_log", "read_steps"]


LAST = 2**63 - 1
"""A number greater than that of any step or event."""


class Origin(NamedTuple):
    """Where a stream was forked."""

    run: str
    at: int
    """Sequence of the last shared event."""


class EventRange(NamedTuple):
    """A range of events: those with sequences strictly between `after` and `before`."""

    after: int
    before: int | None
    limit: int
    backwards: bool


class StepRange(NamedTuple):
    """Some steps: the first or the last `limit` with numbers strictly between `after` and `before`."""

    after: int = 0
    before: int = LAST
    limit: int = 50
    backwards: bool = False
    """Whether to take the last steps instead of the first."""
    upto: int = LAST
    """Sequence of the last event that is read: shows steps as they were after it."""


def origin_of(row: RunRow) -> Origin | None:
    """Return where a stream was forked, or None."""
    return None if row.origin is None or row.origin_at is None else Origin(row.origin, row.origin_at)


def read_log(
    own: Callable[[str, EventRange], list[Event]], origin: Callable[[str], Origin | None], run: str, span: EventRange
) -> list[Event]:
    """Return events of a stream, its own and shared ones. `origin` is only called if own events do not suffice."""
    found = own(run, span)
    if _is_whole(found, span):
        return found
    branch = origin(run)
    if branch is None or branch.at <= span.after:
        return found
    before = branch.at + 1 if span.before is None else min(branch.at + 1, span.before)
    missing = span.limit - len(found) if span.backwards else span.limit
    shared = read_log(own, origin, branch.run, span._replace(before=before, limit=missing))
    return found + shared if span.backwards else (shared + found)[: span.limit]


def _is_whole(found: list[Event], span: EventRange) -> bool:
    """Return whether no wanted event can precede those found."""
    if not found:
        return False
    if span.backwards:
        return len(found) == span.limit or found[-1].seq == span.after + 1
    return found[0].seq == span.after + 1


def read_steps(
    own: Callable[[str, StepRange], list[tuple[int, Event]]],
    origin: Callable[[str], Origin | None],
    run: str,
    span: StepRange,
) -> list[Event]:
    """Return all events of some steps, and those that concern all steps, in order.

    A step may have events in a fork and in its origins: a fork can compensate a step that it shares.
    """
    found = own(run, span)
    while (branch := origin(run)) is not None:
        run, span = branch.run, span._replace(upto=min(span.upto, branch.at))
        found += own(run, span)
    numbers = sorted({step for step, _ in found if step > 0}, reverse=span.backwards)[: span.limit]
    wanted = {0, *numbers}
    return sorted((event for step, event in found if step in wanted), key=lambda event: event.seq)
