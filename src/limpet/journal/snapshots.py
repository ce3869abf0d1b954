"""Snapshots: cached states of a run. Deleting them all changes no answer; one that cannot be read is not used."""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from limpet.errors import Tampered
from limpet.events import AnyBody, Event, Head
from limpet.events.values import encode
from limpet.state import Fold, RunState
from limpet.stores import Snapshot, Store

__all__ = ["VERSION", "Learner", "Loaded", "check_snapshots", "load", "load_whole", "save"]

log = logging.getLogger("limpet")

# Grows whenever a log folds to another RunState, or a learner learns something else from it, than before: snapshots of
# another version are not used, and `verify` does not compare them.
VERSION = 2
SHORT = 4


class Learner(Protocol):
    """Something that is told every event of a log, in order; a snapshot may keep what it has learnt."""

    def learn(self, event: Event, body: AnyBody, fold: Fold, /) -> None:
        """Take in the next event; `fold` is what all events up to it fold to."""

    def dump(self) -> bytes | None:
        """What it has learnt so far, as JSON; nothing if a snapshot need not keep it."""

    def restore(self, data: bytes, /) -> bool:
        """Go on from there; false if it cannot be read, with nothing learnt."""


class _Stored(Struct, frozen=True):
    version: int
    state: RunState
    memory: Raw | UnsetType = UNSET
    """What a learner had learnt by then."""


async def save(store: Store, at: Head, state: RunState, memory: bytes | None = None) -> int:
    """Store a state as it was at a head, and what was learnt by then; its size in bytes."""
    data = encode(_Stored(VERSION, state, UNSET if memory is None else Raw(memory)))
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


async def load_whole(store: Store, run: str, *, at_most: int | None = None, learner: Learner | None = None) -> Loaded:
    """The state of a run from the newest snapshot that fits, and the log after it.

    Whoever learns needs all of it, or a snapshot that kept what was learnt.
    """
    stored, snapshot_bytes = (None, 0) if _is_short(at_most) else await _newest(store, run, at_most)
    if learner is not None and (stored is None or not _remembers(stored, learner)):
        stored, snapshot_bytes = None, 0
    state = stored.state if stored is not None else None
    folding = Fold(state)
    tail_bytes = tail_events = 0
    async for event in store.log(run, after=state.position.seq if state else 0, upto=at_most):
        body = store.decode(event)
        folding.add(event, body)
        if learner is not None:
            learner.learn(event, body, folding)
        tail_bytes, tail_events = tail_bytes + len(event.body), tail_events + 1
    return Loaded(folding.freeze(), snapshot_bytes, tail_bytes, tail_events)


async def check_snapshots(store: Store, run: str, new_learner: Callable[[], Learner]) -> None:
    """Fold a log from its first event and compare every snapshot with it; raises Tampered with the first that differs.

    Snapshots of another version are never used, and not compared.
    """
    seqs = [seq for seq, _ in await store.snapshots(run)]
    if not seqs:
        return
    if (await store.get(run)).type != "run":
        raise Tampered(run=run, seq=seqs[0], reason="it has a snapshot, and only runs have")
    found = {seq: snapshot for seq in seqs if (snapshot := await store.own_snapshot(run, seq)) is not None}
    folding, learner = Fold(None), new_learner()
    async for event in store.log(run, upto=seqs[-1]):
        body = store.decode(event)
        folding.add(event, body)
        learner.learn(event, body, folding)
        snapshot = found.pop(event.seq, None)
        if snapshot is not None:
            wrong = _difference(snapshot, event, folding.freeze(), learner.dump(), new_learner())
            if wrong is not None:
                raise Tampered(run=run, seq=event.seq, reason=f"its snapshot {wrong}")
    for seq in found:
        raise Tampered(run=run, seq=seq, reason="it has a snapshot, and there is no such event")


def _difference(found: Snapshot, event: Event, state: RunState, memory: bytes | None, fresh: Learner) -> str | None:
    """What a snapshot says otherwise than the log, in words; what no reader would use is not compared."""
    if found.hash != event.hash:
        return "is of another log"
    stored = _decode(found.data)
    if stored is None:
        return None
    if _plain(encode(stored.state)) != _plain(encode(state)):
        return "holds another state than the log folds to"
    if not _remembers(stored, fresh):
        return None
    kept = fresh.dump()
    if kept is None or memory is None or _plain(kept) != _plain(memory):
        return "remembers something else than the log says"
    return None


def _plain(data: bytes) -> Any:
    """JSON as values, in which the order of keys does not count."""
    return msgspec.json.decode(data)


def _is_short(at_most: int | None) -> bool:
    """Whether the log is read faster than it is looked for a snapshot."""
    return at_most is not None and at_most < SHORT


def _remembers(stored: _Stored, learner: Learner) -> bool:
    return not isinstance(stored.memory, UnsetType) and learner.restore(bytes(stored.memory))


async def _newest(store: Store, run: str, at_most: int | None) -> tuple[_Stored | None, int]:
    """The newest snapshot, if it is of this log and can be read, and its size."""
    found = await store.snapshot(run, at_most=at_most)
    if found is None:
        return None, 0
    anchor = await store.read(run, after=found.seq - 1, limit=1)
    if not anchor or anchor[0].hash != found.hash:
        log.warning("a snapshot of run %s is not used, and its log is folded instead: it is of another log", run)
        return None, 0
    stored = _decode(found.data)
    return stored, len(found.data) if stored else 0


def _decode(data: bytes) -> _Stored | None:
    try:
        stored = msgspec.json.decode(data, type=_Stored)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return stored if stored.version == VERSION else None
