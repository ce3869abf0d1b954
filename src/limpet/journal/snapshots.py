"""Snapshots: cached states of a run. Deleting them all changes no answer; one that cannot be read is not used."""

import msgspec
from msgspec import Struct

from limpet.events import Head
from limpet.events.values import encode
from limpet.state import Fold, RunState
from limpet.stores import Store

__all__ = ["VERSION", "load", "save"]

# Grows when RunState changes in a way that older snapshots do not fit; those are then folded anew from the log.
VERSION = 1


class _Stored(Struct, frozen=True):
    version: int
    state: RunState


async def save(store: Store, at: Head, state: RunState) -> int:
    """Store a state as it was at a head; its size in bytes."""
    data = encode(_Stored(VERSION, state))
    await store.save_snapshot(state.run, at, data)
    return len(data)


async def load(store: Store, run: str, *, at_most: int | None = None) -> RunState:
    """The state of a run, or as it was after an event: from the newest snapshot that fits, and the log after it."""
    state = await _newest(store, run, at_most)
    folding = Fold(state)
    async for event in store.log(run, after=state.position.seq if state else 0):
        if at_most is not None and event.seq > at_most:
            break
        folding.add(event, event.decode())
    return folding.freeze()


async def _newest(store: Store, run: str, at_most: int | None) -> RunState | None:
    """The newest snapshot that is of this log and can be read."""
    found = await store.snapshot(run, at_most=at_most)
    if found is None:
        return None
    anchor = await store.read(run, after=found.seq - 1, limit=1)
    if not anchor or anchor[0].hash != found.hash:
        return None
    return _decode(found.data)


def _decode(data: bytes) -> RunState | None:
    try:
        stored = msgspec.json.decode(data, type=_Stored)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return stored.state if stored.version == VERSION else None
