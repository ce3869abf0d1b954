"""The writer: one lane per store that commits everything submitted during the previous commit as one batch.

Nothing is acknowledged before its commit has returned. After an unexpected failure, the store is reopened and verified
before the next batch.
"""

import asyncio
from collections.abc import Callable, Sequence
from copy import copy
from threading import Lock
from typing import Any, NamedTuple, Protocol, TypeVar

from limpet.errors import (
    ConnectionLost,
    LimpetError,
    StaleServer,
    StoreBusy,
    StoreRefused,
    StoreReplaced,
    StoreUnavailable,
)
from limpet.stores.backend import Outcome
from limpet.stores.threads import CLOSED, Reply, SerialExecutor, deliver
from limpet.stores.writes import KeepDuty, Missed, Op, Renew, TakeDuty, Taken

__all__ = ["Writer"]

T = TypeVar("T")


class _Submitted(NamedTuple):
    op: Op[Any]
    reply: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class Audience(Protocol):
    """A listener for writes."""

    @property
    def has_listeners(self) -> bool:
        """Whether anything listens."""

    def changed(self) -> None:
        """Notify of a write."""


class Writer:
    """Turns single operations from any event loop into batches on one lane."""

    def __init__(
        self,
        lane: SerialExecutor,
        commit: Callable[[Sequence[Op[Any]]], list[Outcome]],
        reopen: Callable[[], None],
        audience: Audience,
    ) -> None:
        self._lane = lane
        self._commit = commit
        self._reopen = reopen
        self._audience = audience
        self._lock = Lock()
        self._queue: list[_Submitted] = []
        self._busy = False
        self._broken = False
        self._over: StoreUnavailable | None = None
        self.failure: StoreUnavailable | None = None
        """Why the store could not be reopened, or has stopped permanently."""

    async def submit(self, op: Op[T]) -> T:
        """Return the operation's result after its commit. Raises if it was refused."""
        self._lane.check()
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[T] = loop.create_future()
        with self._lock:
            if self._over is not None:
                raise copy(self._over)
            self._queue.append(_Submitted(op, reply, loop))
            wake, self._busy = not self._busy, True
        if wake:
            self._wake()
        return await reply

    async def run_between(self, work: Callable[[], None]) -> None:
        """Run this on the commit thread, between two commits, and accept work again if it succeeds."""
        self._lane.check()
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[None] = loop.create_future()
        self._lane.submit(lambda: self._mend(work, loop, reply))
        await reply

    def _mend(self, work: Callable[[], None], loop: asyncio.AbstractEventLoop, reply: asyncio.Future[None]) -> None:
        outcome: Outcome = None
        try:
            work()
            self._broken = False
        except Exception as error:  # noqa: BLE001 - the caller gets every error
            outcome = error if isinstance(error, LimpetError) else _unavailable(error)
        deliver([_outcome(loop, reply, outcome)])

    def close(self) -> None:
        """Finish submitted operations, then stop."""
        with self._lock:
            self._over = StoreUnavailable(reason=CLOSED)
        self._lane.close()

    def _wake(self) -> None:
        """Start draining the queue. Not under the lock, for which the lane's thread would have to wait."""
        try:
            self._lane.submit(self._drain)
        except StoreUnavailable as closed:
            batch = self._next_batch()
            _reply(batch, [StoreUnavailable(reason=closed.reason) for _ in batch])

    def _drain(self) -> None:
        while batch := self._next_batch():
            outcomes = self._do([asked.op for asked in batch])
            news = self._audience.has_listeners and any(map(_is_news, batch, outcomes))
            _reply(batch, outcomes)
            if news:
                self._audience.changed()

    def _next_batch(self) -> list[_Submitted]:
        with self._lock:
            batch, self._queue = self._queue, []
            self._busy = bool(batch)
        return batch

    def _do(self, batch: list[Op[Any]]) -> list[Outcome]:
        try:
            return self._committed(batch)
        except (StoreBusy, StoreRefused, ConnectionLost, StaleServer) as passing:
            return [copy(passing) for _ in batch]
        except StoreReplaced as replaced:
            self._over = self.failure = replaced
            return [copy(replaced) for _ in batch]
        except Exception as error:  # noqa: BLE001 - the callers get it; what was written is unknown
            self._broken = True
            if isinstance(error, StoreUnavailable):
                self.failure = error
            return [_unavailable(error) for _ in batch]

    def _committed(self, batch: list[Op[Any]]) -> list[Outcome]:
        if isinstance(self._over, StoreReplaced):
            raise self._over
        if self._broken:
            self._reopen()
            self._broken = False
        done = self._commit(batch)
        self.failure = None
        return done


def _is_news(asked: _Submitted, outcome: Outcome) -> bool:
    """Return whether this matters to watches: a renewal, an empty claim, a duty and a refusal do not."""
    return (
        not isinstance(asked.op, Renew | TakeDuty | KeepDuty)
        and outcome != ()
        and not isinstance(outcome, LimpetError | Missed | Taken)
    )


def _unavailable(error: Exception) -> StoreUnavailable:
    reason = error.reason if isinstance(error, StoreUnavailable) else f"{type(error).__name__}: {error}"
    unavailable = StoreUnavailable(reason=reason)
    unavailable.__cause__ = error
    return unavailable


def _reply(batch: list[_Submitted], outcomes: list[Outcome]) -> None:
    deliver(_outcome(asked.loop, asked.reply, outcome) for asked, outcome in zip(batch, outcomes, strict=True))


def _outcome(loop: asyncio.AbstractEventLoop, reply: asyncio.Future[Any], outcome: Outcome) -> Reply:
    return (loop, reply, None, outcome) if isinstance(outcome, LimpetError) else (loop, reply, outcome, None)
