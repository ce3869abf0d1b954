"""Hearing of changes in some runs, for everybody in this process together: one watch, one look for all."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from limpet.clock import Clock
from limpet.errors import LimpetError, StoreReplaced
from limpet.stores import Store
from limpet.stores.store import LogPosition

__all__ = ["GONE", "ChangeListener", "Subscription"]

log = logging.getLogger("limpet")

# Microseconds until it is looked again for somebody who could not be told.
AGAIN = 100_000
GONE = LogPosition(0, 0, "gone")
"""Of a run that was deleted: whoever waits for it would wait for ever."""


class Subscription(NamedTuple):
    """Somebody who wants to know when a run's log has grown."""

    run: str
    known: Callable[[], int | None]
    """The last event that is known there; nothing while it does not matter."""
    tell: Callable[[LogPosition], object]


class ChangeListener:
    """Listens while it runs."""

    def __init__(self, store: Store, clock: Clock, every: int) -> None:
        self._store, self._clock, self._every = store, clock, every
        self._interests: dict[Subscription, None] = {}
        self._callers: list[Callable[[], object]] = []
        self._rung = asyncio.Event()

    def subscribe(self, interest: Subscription) -> None:
        """Begin to tell somebody; they are told first of what there is already."""
        self._interests[interest] = None
        self._rung.set()

    def notify(self, run: str, place: LogPosition) -> None:
        """A run has come to its end here: whoever waits for that is told at once."""
        for each in [each for each in self._interests if each.run == run]:
            each.tell(place)

    def unsubscribe(self, interest: Subscription) -> None:
        """Stop telling them."""
        self._interests.pop(interest, None)

    def add_callback(self, call: Callable[[], object]) -> None:
        """Call somebody whenever anything may have changed."""
        self._callers.append(call)

    def remove_callback(self, call: Callable[[], object]) -> None:
        """Stop calling them."""
        self._callers = [each for each in self._callers if each != call]

    def wake(self) -> None:
        """Something may have changed."""
        self._rung.set()

    async def run(self) -> None:
        """Until cancelled."""
        with self._store.watch() as watch:
            ringing = asyncio.ensure_future(self._ring(watch.changed))
            try:
                while True:
                    await self._rung.wait()
                    self._rung.clear()
                    try:
                        await self._look()
                    except Exception as error:  # whoever works with the store hears of it there; it is looked again
                        if isinstance(error, StoreReplaced):
                            for each in list(self._interests):
                                each.tell(GONE)  # nothing will come any more: whoever waits looks, and gets the error
                        elif not isinstance(error, LimpetError):
                            log.exception("changes could not be looked for")
                        self._rung.set()
                        await self._clock.sleep(AGAIN)
                    if self._every:
                        await self._clock.sleep(self._every)
            finally:
                ringing.cancel()

    async def _ring(self, changed: Callable[[], Awaitable[None]]) -> None:
        while True:
            await changed()
            self._rung.set()
            for call in self._callers:
                call()
            if self._every:
                await self._clock.sleep(self._every)  # a busy store changes all the time

    async def _look(self) -> None:
        wanted = [(each, known) for each in list(self._interests) if (known := each.known()) is not None]
        if len(wanted) < len(self._interests) and self._every:
            self._clock.call_later(AGAIN, self._rung.set)  # it may matter to them soon
        if not wanted:
            return
        places = await self._store.places([each.run for each, _ in wanted])
        for each, known in wanted:
            place = places.get(each.run, GONE)
            if (place is GONE or place.seq > known) and each in self._interests:
                each.tell(place)
