"""Everything that is made from a log, made again: a stream's row, its requests, and the blobs that it refers to."""

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from limpet.events import AnyBody, Codec, Event, blobs_of
from limpet.events import bodies as b
from limpet.state import ENDED
from limpet.stores.privacy import hide_request, hide_row
from limpet.stores.project import Closed, Opened, apply, apply_request, claimed_row, new_row, project
from limpet.stores.rows import RequestRow, RunRow

__all__ = ["Derived", "derive", "differences"]


class Derived(NamedTuple):
    """What a log says about its stream."""

    row: RunRow
    requests: tuple[RequestRow, ...]
    blobs: tuple[str, ...]


def derive(number: int, log: Iterable[tuple[Event, AnyBody]], codec: Codec) -> Derived:
    """The rows of a stream from its whole log; an event's own time stands for the store's clock."""
    events = iter(log)
    event, body = next(events)
    row = _at(replace(new_row(event, body), number=number), event)
    requests: dict[str, RequestRow] = {}
    blobs = dict.fromkeys(blobs_of(body))
    for event, body in events:
        row = _after(row, event, body)
        _collect_request(requests, event, body)
        blobs |= dict.fromkeys(blobs_of(body))
        if row.status in ENDED:
            for request in requests.values():
                _close(requests, Closed(request.id, "withdrawn"))
    hidden = tuple(hide_request(codec, request) for request in requests.values())
    return Derived(hide_row(codec, row), hidden, tuple(blobs))


def differences(stored: Derived, derived: Derived) -> list[str]:
    """What the stored rows say otherwise, in words; both revealed."""
    found = _unlike("run", stored.row, derived.row)
    was = {request.id: request for request in stored.requests}
    now = {request.id: request for request in derived.requests}
    found += [f"request {id}: it is stored, and the log has none" for id in was.keys() - now.keys()]
    found += [f"request {id}: it is not stored" for id in now.keys() - was.keys()]
    for id in was.keys() & now.keys():
        found += _unlike(f"request {id}", was[id], now[id])
    found += [f"blob {blob}: it is not referred to" for blob in derived.blobs if blob not in stored.blobs]
    return found


def _unlike(what: str, stored: RunRow | RequestRow, derived: RunRow | RequestRow) -> list[str]:
    found = []
    for name in stored.__struct_fields__:
        was, is_now = getattr(stored, name), getattr(derived, name)
        alike = (was is None) == (is_now is None) if name in _BY_THE_CLOCK else was == is_now
        if not alike:
            found.append(f"{what}: {name} is {was!r}, and the log says {is_now!r}")
    return found


# The store's clock said these when they were written; an event's time is its writer's estimate.
_BY_THE_CLOCK = ("ready_at", "ended")


def _after(row: RunRow, event: Event, body: AnyBody) -> RunRow:
    if isinstance(body, b.RunClaimed):
        return claimed_row(row, event, body)
    row = _at(row, event)
    delta = project(event, body)
    row = replace(row, step=max(row.step, delta.step), deaths=0 if delta.settled else row.deaths)
    return row if delta.row is None else apply(row, delta.row, event.time)


def _at(row: RunRow, event: Event) -> RunRow:
    return replace(row, seq=event.seq, hash=event.hash, time=event.time)


def _collect_request(requests: dict[str, RequestRow], event: Event, body: AnyBody) -> None:
    change = project(event, body).request
    if isinstance(change, Opened):
        requests[change.row.id] = change.row
    elif change is not None and (after := apply_request(requests.get(change.request), change)) is not None:
        requests[change.request] = after


def _close(requests: dict[str, RequestRow], change: Closed) -> None:
    after = apply_request(requests.get(change.request), change)
    assert after is not None
    requests[change.request] = after
