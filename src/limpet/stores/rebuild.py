"""Rebuild what is derived from a log: a stream's row, its requests and scores, and the blobs that it refers to."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from limpet.events import AnyBody, Codec, Event, blobs_of
from limpet.events import bodies as b
from limpet.state import ENDED, step_of
from limpet.stores.projection import (
    Delta,
    RequestChange,
    RequestClosed,
    RequestInserted,
    ScoreChange,
    ScoreSaved,
    apply,
    apply_request,
    claimed_row,
    new_row,
    project,
)
from limpet.stores.row_encryption import hide_request, hide_row, hide_score
from limpet.stores.rows import RequestRow, RunRow, ScoreRow

__all__ = ["Derived", "derive", "derive_row", "differences", "earliest", "latest"]

Guess = Callable[[int], int]
"""Returns the store's time when it wrote an event with this time."""
HOUR = 3_600_000_000
ScoreKey = tuple[str, str, int]


def earliest(time: int) -> int:  # noqa: ARG001
    """Return 0, since a clock may have been set back."""
    return 0


def latest(time: int) -> int:
    """Return an hour later, since the times that a store writes also come from its clock."""
    return time + HOUR


class Derived(NamedTuple):
    """The rows derived from a log."""

    row: RunRow
    requests: tuple[RequestRow, ...]
    blobs: tuple[str, ...]
    commands: tuple[tuple[int, str], ...] = ()
    """Sequence and command id of each command."""
    steps: tuple[tuple[int, int | None], ...] = ()
    """Sequence of each event, and the step by which it is found."""
    scores: tuple[ScoreRow, ...] = ()


def derive(
    number: int, log: Iterable[tuple[Event, AnyBody]], codec: Codec, clock: Guess = lambda time: time
) -> Derived:
    """Derive the rows of a stream from its whole log. An event's own time replaces the store's time."""
    events = iter(log)
    event, body = next(events)
    row = _first(number, event, body)
    requests: dict[str, RequestRow] = {}
    scores: dict[ScoreKey, ScoreRow] = {}
    blobs = dict.fromkeys(blobs_of(body))
    commands, steps = [], [(event.seq, step_of(body))]
    for event, body in events:
        steps.append((event.seq, step_of(body)))
        delta = project(event, body)
        row = _after(row, event, body, delta, clock)
        if isinstance(body, b.Command):
            commands.append((event.seq, body.command))
        _collect_request(requests, delta.request)
        _collect_score(scores, delta.score)
        blobs |= dict.fromkeys(blobs_of(body))
        if row.status in ENDED:
            for request in requests:
                _collect_request(requests, RequestClosed(request, "withdrawn"))
    hidden = tuple(hide_request(codec, request) for request in requests.values())
    rated = tuple(hide_score(codec, score) for score in scores.values())
    return Derived(hide_row(codec, row), hidden, tuple(blobs), tuple(commands), tuple(steps), rated)


def derive_row(number: int, log: Iterable[tuple[Event, AnyBody]], clock: Guess) -> RunRow:
    """Derive only the row, with a given clock."""
    events = iter(log)
    row = _first(number, *next(events))
    for event, body in events:
        row = _after(row, event, body, project(event, body), clock)
    return row


def differences(stored: Derived, derived: Derived, since: RunRow) -> list[str]:
    """Describe how stored rows differ from derived ones; all are revealed.

    `derived` uses the latest time that the store's clock may have shown; `since` is the row with the earliest.
    """
    found = _unlike("run", stored.row, derived.row, since)
    found += _other(
        {f"request {each.id}": each for each in stored.requests},
        {f"request {each.id}": each for each in derived.requests},
    )
    found += _other(
        {_score_name(each): each for each in stored.scores}, {_score_name(each): each for each in derived.scores}
    )
    found += [f"blob {blob}: the reference is missing" for blob in derived.blobs if blob not in stored.blobs]
    found += [f"blob {blob}: no event refers to it" for blob in stored.blobs if blob not in derived.blobs]
    known, there = set(stored.commands), set(derived.commands)
    found += [f"event {seq}: not stored as command {id}" for seq, id in sorted(there - known)]
    found += [f"event {seq}: stored as command {id}, but is not one" for seq, id in sorted(known - there)]
    indexed, steps = dict(stored.steps), {seq: step for seq, step in derived.steps if step is not None}
    for seq in sorted(indexed.keys() | steps.keys()):
        if indexed.get(seq) != steps.get(seq):
            found.append(f"event {seq}: stored under step {indexed.get(seq)}, but it is of step {steps.get(seq)}")
    return found


Row = TypeVar("Row", RunRow, RequestRow, ScoreRow)


def _other(stored: Mapping[str, Row], derived: Mapping[str, Row]) -> list[str]:
    """Describe which rows are missing, not in the log, or unlike."""
    found = [f"{name}: stored, but not in the log" for name in stored.keys() - derived.keys()]
    found += [f"{name}: not stored" for name in derived.keys() - stored.keys()]
    for name in stored.keys() & derived.keys():
        found += _unlike(name, stored[name], derived[name], derived[name])
    return found


def _score_name(row: ScoreRow) -> str:
    return f"score {row.name!r} by {row.by!r}{f' of step {row.step}' if row.step else ''}"


def _unlike(what: str, stored: Row, derived: Row, since: Row) -> list[str]:
    found = []
    for name in stored.__struct_fields__:
        was, is_now = getattr(stored, name), getattr(derived, name)
        if not _alike(name, was, is_now, getattr(since, name)):
            found.append(f"{what}: {name} is {was!r}, but the log has {is_now!r}")
    return found


def _alike(name: str, stored: Any, derived: Any, since: Any) -> bool:
    """Return whether a field is as derived. One that depends on the store's clock must be within its bounds."""
    if name == "ended":  # Its event may have taken any time to arrive.
        return (stored is None) == (derived is None)
    if since != derived and None not in (since, stored, derived):
        return bool(since <= stored <= derived)
    return bool(stored == derived)


def _first(number: int, event: Event, body: AnyBody) -> RunRow:
    return _at(replace(new_row(event, body), number=number), event)


def _after(row: RunRow, event: Event, body: AnyBody, delta: Delta, clock: Guess) -> RunRow:
    if isinstance(body, b.RunClaimed):
        return claimed_row(row, event, body)
    row = _at(row, event)
    row = replace(row, step=max(row.step, delta.step), deaths=0 if delta.settled else row.deaths)
    return row if delta.row is None else apply(row, delta.row, clock(event.time))


def _at(row: RunRow, event: Event) -> RunRow:
    return replace(row, seq=event.seq, hash=event.hash, time=event.time)


def _collect_request(requests: dict[str, RequestRow], change: RequestChange | None) -> None:
    if isinstance(change, RequestInserted):
        requests[change.row.id] = change.row
    elif change is not None and (after := apply_request(requests.get(change.request), change)) is not None:
        requests[change.request] = after


def _collect_score(scores: dict[ScoreKey, ScoreRow], change: ScoreChange | None) -> None:
    if change is None:
        return
    key = (change.row.name, change.row.by, change.row.step)
    if isinstance(change, ScoreSaved):
        scores[key] = change.row
    else:
        scores.pop(key, None)
