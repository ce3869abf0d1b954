"""Limits of the HTTP server: requests at once, time in the queue, and requests a second of each caller and address."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager, nullcontext
from math import ceil

from limpet.clock import SECOND, Clock
from limpet.engine.execution.principal import Principal
from limpet.errors import ServerBusy, TooManyRequests

__all__ = ["Buckets", "RequestLimits"]

# Small operations that run at once, and large ones, which have a lane of their own.
SMALL, LARGE = 8, 4
# Seconds that a request waits for its turn.
QUEUE = 10.0
# Requests of one caller: at once, and a second. Twice as many may come in a burst.
AT_ONCE, RATE = 64, 200.0
# Keys whose requests are counted; the oldest is forgotten.
KEYS = 10_000


class Buckets:
    """Counts requests by key. The bucket of each key holds `burst` requests, and is refilled with `rate` a second."""

    def __init__(self, clock: Clock, *, rate: float, burst: float) -> None:
        self._clock, self._rate, self._burst = clock, rate, burst
        self._left: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def take(self, key: Hashable) -> float:
        """Take one request out of a bucket. Returns 0, or the seconds until there is one."""
        left = self._now_left(key)
        if left < 1:
            return (1 - left) / self._rate
        self._keep(key, left - 1)
        return 0.0

    def give_back(self, key: Hashable) -> None:
        """Put one request back that does not count."""
        self._keep(key, min(self._now_left(key) + 1, self._burst))

    def _now_left(self, key: Hashable) -> float:
        left, since = self._left.get(key, (self._burst, 0))
        return min(left + (self._clock.ticks() - since) / SECOND * self._rate, self._burst)

    def _keep(self, key: Hashable, left: float) -> None:
        self._left[key] = left, self._clock.ticks()
        self._left.move_to_end(key)
        if len(self._left) > KEYS:
            self._left.popitem(last=False)


class RequestLimits:
    """Lets the requests of callers in, one after the other. Large operations never hold up small ones."""

    def __init__(self, clock: Clock, rate: float = RATE) -> None:
        self._small, self._large = asyncio.Semaphore(SMALL), asyncio.Semaphore(LARGE)
        self._rate, self._buckets = rate, Buckets(clock, rate=rate, burst=2 * rate)
        self._served: Counter[Hashable] = Counter()

    @asynccontextmanager
    async def admitted(self, who: Principal) -> AsyncIterator[None]:
        """Count a request of a caller while it is served. Raises TooManyRequests."""
        key = (who.tenant, who.name)
        if self._served[key] >= AT_ONCE:
            raise TooManyRequests(reason=f"{AT_ONCE} of {who.name} are already being served", seconds=1)
        if wait := self._buckets.take(key):
            raise TooManyRequests(reason=f"{who.name} may send {self._rate:.0f} a second", seconds=ceil(wait))
        self._served[key] += 1
        try:
            yield
        finally:
            self._served[key] -= 1
            if not self._served[key]:
                del self._served[key]

    @asynccontextmanager
    async def turn(self, *, is_large: bool) -> AsyncIterator[None]:
        """Wait for the turn of an operation, and hold it. Raises ServerBusy after some time."""
        lane = self._large if is_large else self._small
        try:
            async with asyncio.timeout(QUEUE) if lane.locked() else nullcontext():
                await lane.acquire()
        except TimeoutError:
            raise ServerBusy(waited=QUEUE, seconds=ceil(QUEUE)) from None
        try:
            yield
        finally:
            lane.release()
