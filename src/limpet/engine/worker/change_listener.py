"""Notification of changes in runs: one watch and one query serve all subscribers of this process."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from limpet.clock import Clock
from limpet.errors import LimpetError, StoreReplaced
from limpet.stores import Store
from limpet.stores.api.logs import LogPosition

__all__ = ["GONE", "ChangeListener", "Subscription"]

log = logging.getLogger("limpet")

# Microseconds before the next query, after a failure or for subscribers that want no changes at the moment.
POLL_AGAIN = 100_000
# Microseconds for which the store is still watched when nothing is of interest any more.
LINGER = 10_000_000
GONE = LogPosition(0, 0, "gone")
"""Position of a deleted run, so that nothing waits for it indefinitely."""


class Subscription(NamedTuple):
    """A subscriber to changes of one run's log."""

    run: str
    known_seq: Callable[[], int | None]
    """Returns the last known sequence, or None while the subscriber wants no changes."""
    notify: Callable[[LogPosition], object]


class ChangeListener:
    """Notifies subscribers of changes while `run` is running."""

    def __init__(self, store: Store, clock: Clock, every: int) -> None:
        self._store, self._clock, self._interval = store, clock, every
        self._subscriptions: dict[str, dict[Subscription, None]] = {}
        """The subscribers of each run."""
        self._callbacks: list[Callable[[], object]] = []
        self._wake_event = asyncio.Event()
        self._needed = asyncio.Event()
        self._cancel_rest: Callable[[], None] = lambda: None

    def subscribe(self, subscription: Subscription) -> None:
        """Add a subscriber; it is notified first of what it does not know yet."""
        self._subscriptions.setdefault(subscription.run, {})[subscription] = None
        self._needed.set()
        self._wake_event.set()

    def notify(self, run: str, place: LogPosition) -> None:
        """Notify subscribers that a run has ended in this process."""
        for each in list(self._subscriptions.get(run, ())):
            each.notify(place)

    def unsubscribe(self, subscription: Subscription) -> None:
        """Remove a subscriber."""
        others = self._subscriptions.get(subscription.run, {})
        others.pop(subscription, None)
        if not others:
            self._subscriptions.pop(subscription.run, None)
        self._rest_later()

    def add_callback(self, call: Callable[[], object]) -> None:
        """Call a function whenever anything in the store may have changed."""
        self._callbacks.append(call)
        self._needed.set()

    def remove_callback(self, call: Callable[[], object]) -> None:
        """Remove a callback."""
        self._callbacks = [each for each in self._callbacks if each != call]
        self._rest_later()

    def _rest_later(self) -> None:
        if not self._subscriptions and not self._callbacks:
            self._cancel_rest()
            self._cancel_rest = self._clock.call_later(LINGER, self._rest)

    def wake(self) -> None:
        """Query now: something may have changed."""
        self._wake_event.set()

    async def run(self) -> None:
        """Notify until cancelled. The store is watched only while it is of interest."""
        while True:
            await self._needed.wait()
            with self._store.watch() as watch:
                watching = asyncio.ensure_future(self._watch(watch.changed))
                try:
                    await self._notify_while_needed()
                finally:
                    watching.cancel()

    async def _notify_while_needed(self) -> None:
        while self._needed.is_set():
            await self._wake_event.wait()
            self._wake_event.clear()
            try:
                await self._notify_changed()
            except Exception as error:  # callers of the store get the error themselves; query again
                if isinstance(error, StoreReplaced):
                    for each in self._all():
                        each.notify(GONE)  # no change will ever come: subscribers query, and get the error
                elif not isinstance(error, LimpetError):
                    log.exception("change listener: polling the store failed")
                self._wake_event.set()
                await self._clock.sleep(POLL_AGAIN)
            if self._interval:
                await self._clock.sleep(self._interval)

    def _rest(self) -> None:
        """Stop watching, if nothing has been of interest for a while."""
        if not self._subscriptions and not self._callbacks:
            self._needed.clear()
            self._wake_event.set()

    async def _watch(self, changed: Callable[[], Awaitable[None]]) -> None:
        while True:
            await changed()
            self._wake_event.set()
            for call in self._callbacks:
                call()
            if self._interval:
                await self._clock.sleep(self._interval)  # a busy store changes all the time

    def _all(self) -> list[Subscription]:
        return [each for group in self._subscriptions.values() for each in group]

    async def _notify_changed(self) -> None:
        everyone = self._all()
        wanted = [(each, known) for each in everyone if (known := each.known_seq()) is not None]
        if len(wanted) < len(everyone) and self._interval:
            self._clock.call_later(POLL_AGAIN, self._wake_event.set)  # they may want changes soon
        if not wanted:
            return
        places = await self._store.positions([each.run for each, _ in wanted])
        for each, known in wanted:
            place = places.get(each.run, GONE)
            if (place is GONE or place.seq > known) and each in self._subscriptions.get(each.run, ()):
                each.notify(place)
