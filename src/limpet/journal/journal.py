"""The log of one run, as its owner writes it: in order, one append in flight, conflicts resolved.

Bodies gather in a buffer while an append is on its way and go out in the next. If commands slipped in between, they are
folded first and the owner's events are sealed again after them; if the reply to an append was lost, repeating it is
safe. What must not follow an unseen command (`run.waiting`, the end of a run) goes through `append_if_current`.
"""

import asyncio
from collections.abc import Callable
from typing import Self

from limpet.events import AnyBody, Event, Sealed, seal_all
from limpet.journal.snapshots import load, save
from limpet.policy.checkpoint import snapshot_due
from limpet.state import Fold, RunState
from limpet.stores import Appended, Extend, Missed, Store
from limpet.stores.ops import Claimed

__all__ = ["Journal"]


class Journal:
    """A claimed run's log: what it says so far, and the way to add to it."""

    def __init__(self, store: Store, claimed: Claimed, state: RunState, now: Callable[[], int]) -> None:
        assert claimed.row.worker is not None
        self.run, self.fence, self._actor = claimed.row.id, claimed.row.fence, claimed.row.worker
        self.head = claimed.row.head
        self._store = store
        self._now = now
        self._fold = Fold(state)
        self._buffer: list[AnyBody] = []
        self._flight: tuple[Sealed, ...] = ()
        self._turn = asyncio.Lock()
        self._tail_bytes = self._tail_events = self._snapshot_bytes = 0

    @classmethod
    async def open(cls, store: Store, claimed: Claimed, now: Callable[[], int]) -> Self:
        """The journal of a run that was just claimed; `now` is an estimate of the store's clock."""
        return cls(store, claimed, await load(store, claimed.row.id), now)

    @property
    def state(self) -> RunState:
        """What the log folds to, as far as it is known to be stored."""
        return self._fold.freeze()

    def add(self, *bodies: AnyBody) -> None:
        """Put events into the log with the next flush."""
        self._buffer.extend(bodies)

    async def flush(self) -> None:
        """Return when everything added so far is durable; raises LeaseLost if the run is somebody else's now."""
        async with self._turn:
            while self._flight or self._buffer:
                self._load_flight()
                await self._send()

    async def append(self, *bodies: AnyBody) -> None:
        """Add events and wait until they are durable."""
        self.add(*bodies)
        await self.flush()

    async def append_if_current(self, *bodies: AnyBody) -> bool:
        """Append unless a command came that this log has not folded yet; then fold it, and say false."""
        async with self._turn:
            while self._flight or self._buffer:
                self._load_flight()
                await self._send()
            self._flight = self._seal(bodies)
            if await self._send():
                return True
            self._flight = ()
            return False

    async def keep_late(self) -> None:
        """After LeaseLost: keep what could not be written, beside the log."""
        self._load_flight()
        events, self._flight = self._flight + self._seal(self._buffer), ()
        self._buffer.clear()
        if events:
            await self._store.keep_late(events)

    async def snapshot_if_due(self) -> bool:
        """Cache the state if the tail has outgrown the last snapshot; whether it did."""
        if not snapshot_due(
            tail_bytes=self._tail_bytes, tail_events=self._tail_events, snapshot_bytes=self._snapshot_bytes
        ):
            return False
        self._snapshot_bytes = await save(self._store, self.head, self.state)
        self._tail_bytes = self._tail_events = 0
        return True

    def _load_flight(self) -> None:
        """Seal what has gathered, unless an append whose outcome is unknown must be repeated first."""
        if not self._flight:
            self._flight = self._seal(self._buffer)
            self._buffer.clear()

    def _seal(self, bodies: "list[AnyBody] | tuple[AnyBody, ...]") -> tuple[Sealed, ...]:
        return seal_all(self.head, self.run, bodies, time=self._now(), fence=self.fence, actor=self._actor)

    async def _send(self) -> bool:
        """Send the flight once; if others wrote first, fold what they wrote and seal the flight again."""
        done = await self._store.append(Extend(run=self.run, after=self.head, fence=self.fence, events=self._flight))
        if isinstance(done, Missed):
            self._take_in(done.events)
            self._flight = self._seal(tuple(sealed.body for sealed in self._flight))
            return False
        assert isinstance(done, Appended)
        landed, self._flight = self._flight, ()
        self._take_in(landed)
        return True

    def _take_in(self, events: tuple[Sealed, ...]) -> None:
        for sealed in events:
            self._fold.add(sealed.event, sealed.body)
            self._tail_bytes += len(sealed.event.body)
        self._tail_events += len(events)
        self.head = _last(events).head


def _last(events: tuple[Sealed, ...]) -> Event:
    return events[-1].event
