"""Snapshots: cached states of a run. Deleting them all changes no answer; one that cannot be read is not used."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec
from msgspec import Struct

from limpet.events import AnyBody, Event, Head
from limpet.events.values import encode
from limpet.state import Fold, RunState
from limpet.stores import Store

__all__ = ["VERSION", "Learn", "Loaded", "load", "load_whole", "save"]

# Grows when RunState changes in a way that older snapshots do not fit; those are then folded anew from the log.
VERSION = 1


Learn = Callable[[Event, AnyBody, Fold], object]
"""Something that is told every event of a log, in order, and what all events up to it fold to."""


class _Stored(Struct, frozen=True):
    version: int
    state: RunState


async def save(store: Store, at: Head, state: RunState) -> int:
    """Store a state as it was at a head; its size in bytes."""
    data = encode(_Stored(VERSION, state))
    await store.save_snapshot(state.run, at, data)
    return len(data)


class Loaded(NamedTuple):
    """A state, and how it was come by."""

    state: RunState
    snapshot_bytes: int
    """The size of the snapshot that it began from, 0 for none."""
    tail_bytes: int
    tail_events: int
    """How much was folded on top."""


async def load(store: Store, run: str, *, at_most: int | None = None) -> RunState:
    """The state of a run, or as it was after an event."""
    return (await load_whole(store, run, at_most=at_most)).state


async def load_whole(store: Store, run: str, *, at_most: int | None = None, learn: Learn | None = None) -> Loaded:
    """The state of a run from the newest snapshot that fits, and the log after it; whoever learns needs all of it."""
    state, snapshot_bytes = (None, 0) if learn is not None else await _newest(store, run, at_most)
    folding = Fold(state)
    tail_bytes = tail_events = 0
    async for event in store.log(run, after=state.position.seq if state else 0):
        if at_most is not None and event.seq > at_most:
            break
        body = store.decode(event)
        folding.add(event, body)
        if learn is not None:
            learn(event, body, folding)
        tail_bytes, tail_events = tail_bytes + len(event.body), tail_events + 1
    return Loaded(folding.freeze(), snapshot_bytes, tail_bytes, tail_events)


async def _newest(store: Store, run: str, at_most: int | None) -> tuple[RunState | None, int]:
    """The newest snapshot, if it is of this log and can be read, and its size."""
    found = await store.snapshot(run, at_most=at_most)
    if found is None:
        return None, 0
    anchor = await store.read(run, after=found.seq - 1, limit=1)
    if not anchor or anchor[0].hash != found.hash:
        return None, 0
    state = _decode(found.data)
    return state, len(found.data) if state else 0


def _decode(data: bytes) -> RunState | None:
    try:
        stored = msgspec.json.decode(data, type=_Stored)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return stored.state if stored.version == VERSION else None
