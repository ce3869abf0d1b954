"""Snapshots: cached states of a run. Deleting all of them changes no result; an unreadable one is ignored."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from limpet.errors import Tampered
from limpet.events import AnyBody, Event, Head, Sealed
from limpet.events import bodies as b
from limpet.events.values import encode
from limpet.state import Fold, RunState
from limpet.stores import Snapshot, Store

__all__ = ["VERSION", "Learner", "Loaded", "LogFolder", "check_snapshots", "fold_log", "load", "load_whole", "save"]

log = logging.getLogger("limpet")

# Incremented whenever the same log gives another RunState, or a learner learns something else from it. Snapshots of
# other versions are ignored, also by `verify`.
VERSION = 6
SHORT_LOG = 4


class Learner(Protocol):
    """A consumer of every event of a log, in order. A snapshot may contain what it has learnt."""

    def learn(self, event: Event, body: AnyBody, fold: Fold, /) -> None:
        """Process the next event; `fold` contains all events up to it."""

    def learn_step(
        self, started: Event, opened: b.StepStarted, completed: Event, settled: b.StepCompleted, fold: Fold, /
    ) -> None:
        """Process the start and the end of a step that follow each other, like `learn` for both."""

    @property
    def is_partial(self) -> bool:
        """Whether it has forgotten a part that its dump must contain."""

    def fresh(self) -> "Learner":
        """Return a learner of the same type that has learnt nothing yet."""

    def recover(self, fresh: Any, /) -> None:
        """Take over what was forgotten, from a learner that has learnt the same log."""

    def dump(self) -> bytes | None:
        """Return what it has learnt so far, as JSON; None if a snapshot need not contain it."""

    def restore(self, data: bytes, /) -> bool:
        """Continue from a dump. Returns False, with nothing learnt, if the dump cannot be read."""


class _Stored(Struct, frozen=True):
    version: int
    state: RunState
    memory: Raw | UnsetType = UNSET
    """A learner's dump at this point."""


async def save(store: Store, at: Head, state: RunState, memory: bytes | None = None) -> int:
    """Store a state at a head, with a learner's dump; return the size in bytes."""
    data = encode(_Stored(VERSION, state, UNSET if memory is None else Raw(memory)))
    await store.save_snapshot(state.run, at, data)
    return len(data)


class Loaded(NamedTuple):
    """A loaded state, and how much was read for it."""

    fold: Fold
    snapshot_bytes: int
    """Size of the snapshot that was used, 0 for none."""
    tail_bytes: int
    tail_events: int
    """Number of events that were folded after the snapshot."""

    @property
    def state(self) -> RunState:
        """The state. Raises Tampered if the log is empty."""
        return self.fold.freeze()


async def load(store: Store, run: str, *, at_most: int | None = None) -> RunState:
    """Return the state of a run, or its state just after event `at_most`."""
    return (await load_whole(store, run, at_most=at_most)).state


async def load_whole(store: Store, run: str, *, at_most: int | None = None, learner: Learner | None = None) -> Loaded:
    """Load the state of a run from the newest usable snapshot and the log after it.

    A learner needs the whole log, or a snapshot that contains its dump.
    """
    stored, snapshot_bytes = (None, 0) if _is_short(at_most) else await _newest(store, run, at_most)
    if learner is not None and (stored is None or not _remembers(stored, learner)):
        stored, snapshot_bytes = None, 0
    state = stored.state if stored is not None else None
    folder = LogFolder(store, Fold(state), learner)
    tail_bytes = tail_events = 0
    async for page in store.pages(run, after=state.position.seq if state else 0, upto=at_most):
        for event in page:
            folder.add(event)
            tail_bytes += len(event.body)
        tail_events += len(page)
    return Loaded(folder.end(), snapshot_bytes, tail_bytes, tail_events)


def fold_log(log: Sequence[Sealed], learner: Learner | None = None) -> Loaded:
    """Return the state of a run from its whole log."""
    fold, tail_bytes = Fold(None), 0
    for sealed in log:
        fold.add(sealed.event, sealed.body)
        if learner is not None:
            learner.learn(sealed.event, sealed.body, fold)
        tail_bytes += len(sealed.event.body)
    return Loaded(fold, 0, tail_bytes, len(log))


class LogFolder:
    """Folds the events of a log, and lets a learner learn them; the start and the end of a step together."""

    def __init__(self, store: Store, fold: Fold, learner: Learner | None) -> None:
        self._codec = store.codec
        self._fold, self._learner = fold, learner
        self._started: tuple[Event, b.StepStarted] | None = None
        """The start of a step whose end may follow."""

    def add(self, event: Event) -> None:
        """Take the next event."""
        body = event.decode(self._codec)
        if self._started is not None:
            started, opened = self._started
            self._started = None
            if type(body) is b.StepCompleted:
                self._fold.add_step(started, opened, event, body)
                if self._learner is not None:
                    self._learner.learn_step(started, opened, event, body, self._fold)
                return
            self._add_one(started, opened)
        if type(body) is b.StepStarted:
            self._started = event, body
        else:
            self._add_one(event, body)

    def end(self) -> Fold:
        """Return the fold with all events."""
        if self._started is not None:
            self._add_one(*self._started)
            self._started = None
        return self._fold

    def _add_one(self, event: Event, body: AnyBody) -> None:
        self._fold.add(event, body)
        if self._learner is not None:
            self._learner.learn(event, body, self._fold)


async def check_snapshots(store: Store, run: str, new_learner: Callable[[], Learner]) -> None:
    """Compare every snapshot with the state folded from the first event on. Raises Tampered for the first that differs.

    Snapshots of other versions are never used, and not compared.
    """
    seqs = [seq for seq, _ in await store.snapshots(run)]
    if not seqs:
        return
    if (await store.get(run)).type != "run":
        raise Tampered(run=run, seq=seqs[0], reason="only runs have snapshots, and this is a conversation")
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
                raise Tampered(run=run, seq=event.seq, reason=f"the snapshot {wrong}")
    for seq in found:
        raise Tampered(run=run, seq=seq, reason="there is a snapshot, but no such event")


def _difference(found: Snapshot, event: Event, state: RunState, memory: bytes | None, fresh: Learner) -> str | None:
    """Describe how a snapshot differs from the log, or return None. Parts that no reader would use are not compared."""
    if found.hash != event.hash:
        return "belongs to another log"
    stored = _decode(found.data)
    if stored is None:
        return None
    if _plain(encode(stored.state)) != _plain(encode(state)):
        return "has a different state than the log"
    if not _remembers(stored, fresh):
        return None
    kept = fresh.dump()
    if kept is None or memory is None or _plain(kept) != _plain(memory):
        return "has a learner's dump that differs from the log"
    return None


def _plain(data: bytes) -> Any:
    """Return JSON as values, for comparison regardless of key order."""
    return msgspec.json.decode(data)


def _is_short(at_most: int | None) -> bool:
    """Return whether reading the log is faster than searching for a snapshot."""
    return at_most is not None and at_most < SHORT_LOG


def _remembers(stored: _Stored, learner: Learner) -> bool:
    return not isinstance(stored.memory, UnsetType) and learner.restore(bytes(stored.memory))


async def _newest(store: Store, run: str, at_most: int | None) -> tuple[_Stored | None, int]:
    """Return the newest snapshot, if it belongs to this log and can be read, with its size."""
    found = await store.snapshot(run, at_most=at_most)
    if found is None:
        return None, 0
    anchor = await store.read(run, after=found.seq - 1, limit=1)
    if not anchor or anchor[0].hash != found.hash:
        log.warning("run %s: ignoring a snapshot that belongs to another log", run)
        return None, 0
    stored = _decode(found.data)
    return stored, len(found.data) if stored else 0


def _decode(data: bytes) -> _Stored | None:
    try:
        stored = msgspec.json.decode(data, type=_Stored)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return stored if stored.version == VERSION else None
