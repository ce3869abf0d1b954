"""The writer: one lane per store that commits everything submitted during the previous commit as one batch.

An idle lane waits for what the event loop submits in one iteration. If the database has a process of its own, it starts
with the first 25 operations, so that the loop goes on during their commit. Work that no caller waits for, such as a
checkpoint, follows their replies.

Nothing is acknowledged before its commit has returned. After an unexpected failure, the store is reopened and verified
before the next batch. An extension that is submitted while no other work is pending may be committed on the event loop
itself, if the backend can do that without waiting (decision 33).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from copy import copy
from threading import Lock
from time import monotonic, thread_time
from typing import Any, Protocol, TypeVar

from msgspec import Struct

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
from limpet.stores.writes import Extension, KeepDuty, Missed, Op, Renew, TakeDuty, Taken

__all__ = ["FULL_BATCH", "Writer"]

log = logging.getLogger("limpet")

T = TypeVar("T")

# A batch of this many operations is committed while its event loop may still add others to the next one.
FULL_BATCH = 25
# A commit on an event loop that waits longer than this, in seconds, is slow: then no other one follows for a while.
SLOW_COMMIT = 0.005
SHORTEST_REST, LONGEST_REST = 1.0, 60.0
# Other tasks of an event loop get a turn after commits on it for this long, in seconds.
LONGEST_TURN = 0.001
# Fast commits after which the next rest is the shortest again.
TRUSTED_AFTER = 1_000


class _Submitted(Struct, frozen=True):
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


class Database(Protocol):
    """The part of a backend that a writer needs besides its commits."""

    def reopen(self) -> None:
        """Reconnect after a failure and verify what is stored."""

    @property
    def is_untidy(self) -> bool:
        """Whether there is work that can wait until the callers of a batch have their replies."""

    def tidy(self) -> None:
        """Do this work."""


class Writer:
    """Turns single operations from any event loop into batches on one lane."""

    def __init__(
        self,
        lane: SerialExecutor,
        commit: Callable[[Sequence[Op[Any]]], list[Outcome]],
        commit_now: Callable[[Extension], bool | None],
        database: Database,
        audience: Audience,
        *,
        enough: int | None = None,
    ) -> None:
        self._lane = lane
        self._commit, self._commit_now = commit, commit_now
        self._database, self._audience = database, audience
        self._enough = enough
        """Number of operations that are committed without gathering all of an iteration of the event loop first."""
        self._lock = Lock()
        self._queue: list[_Submitted] = []
        self._gathering: asyncio.AbstractEventLoop | None = None
        """The event loop whose operations of this iteration are gathered."""
        self._busy = False
        self._at_work = Lock()
        """Held by the thread that writes."""
        self._lone = _LoneCommits()
        self._broken = False
        self._over: StoreUnavailable | None = None
        self.failure: StoreUnavailable | None = None
        """Why the store could not be reopened, or has stopped permanently."""

    async def submit(self, op: Op[T]) -> T:
        """Return the operation's result after its commit. Raises if it was refused."""
        self._lane.check()
        done: Any = self._committed_alone(op) if isinstance(op, Extension) else None
        if done is not None:
            if self._lone.must_yield():
                await asyncio.sleep(0)  # noqa: TID251 - gives other tasks a turn, does not wait for time
            alone: T = done
            return alone
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[T] = loop.create_future()
        with self._lock:
            if self._over is not None:
                raise copy(self._over)
            self._queue.append(_Submitted(op, reply, loop))
            is_full = self._enough is not None and len(self._queue) >= self._enough
            wake = not self._busy and (is_full or self._gathering not in (None, loop))
            gather = not self._busy and not wake and self._gathering is None
            self._busy = self._busy or wake
            if gather or wake:
                self._gathering = loop if gather else None
        if wake:  # The batch is full, or another loop gathers, which may be blocked or closed.
            self._wake()
        elif gather:
            loop.call_soon(self._gathered)
        return await reply

    def _gathered(self) -> None:
        """Wake the lane, once for everything that was submitted in one iteration of the event loop."""
        with self._lock:
            self._gathering = None
            wake = bool(self._queue) and not self._busy
            self._busy = self._busy or wake
        if wake:
            self._wake()

    def _committed_alone(self, extension: Extension) -> Any:
        """Commit an extension on this thread if its run is the only one that writes; None if that was not possible."""
        may_commit = self._lone.may_commit(extension.run)
        if not may_commit or self._queue or self._busy or self._broken:
            return None
        if not self._at_work.acquire(blocking=False):
            return None
        try:
            if self._over is not None:
                return None
            began, worked = monotonic(), thread_time()
            done = self._commit_now(extension)
            self._lone.note(began, monotonic(), thread_time() - worked)
        finally:
            self._at_work.release()
        if done and self._audience.has_listeners:
            self._audience.changed()
        return done

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
            with self._at_work:
                work()
            self._broken = False
        except Exception as error:  # noqa: BLE001 - the caller gets every error
            outcome = error if isinstance(error, LimpetError) else _unavailable(error)
        deliver([_outcome(loop, reply, outcome)])

    def close(self) -> None:
        """Finish submitted operations, then stop."""
        with self._lock:
            self._over = StoreUnavailable(reason=CLOSED)
            left = bool(self._queue) and not self._busy
        if left:
            self._wake()
        self._lane.close()
        with self._at_work:  # A commit on an event loop ends first.
            pass

    def _wake(self) -> None:
        """Start draining the queue. Not under the lock, for which the lane's thread would have to wait."""
        try:
            self._lane.submit(self._drain)
        except StoreUnavailable as closed:
            batch = self._next_batch()
            _reply(batch, [StoreUnavailable(reason=closed.reason) for _ in batch])

    def _drain(self) -> None:
        batch = self._next_batch()
        while batch:
            outcomes = self._do([asked.op for asked in batch])
            news = self._audience.has_listeners and any(map(_is_news, batch, outcomes))
            following = self._next_batch()  # Before the replies: a caller that is alone then commits on its event loop.
            _reply(batch, outcomes)
            if news:
                self._audience.changed()
            self._tidy()
            batch = following

    def _tidy(self) -> None:
        """Let the database do what its callers need not wait for."""
        try:
            if self._database.is_untidy:
                with self._at_work:
                    self._database.tidy()
        except Exception:
            log.exception("tidying up a store failed")  # The writer goes on: nothing that was acknowledged is affected.

    def _next_batch(self) -> list[_Submitted]:
        with self._lock:
            batch, self._queue = self._queue, []
            self._busy = bool(batch)
        return batch

    def _do(self, batch: list[Op[Any]]) -> list[Outcome]:
        try:
            with self._at_work:
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
            self._database.reopen()
            self._broken = False
        done = self._commit(batch)
        self.failure = None
        return done


class _LoneCommits:
    """Decides whether commits may be done on the event loop: only one run writes, and the disk is fast."""

    def __init__(self) -> None:
        self._last_run = ""
        self._off_until = 0.0
        self._rest = SHORTEST_REST
        self._fast = 0
        self._ended = self._yielded = 0.0

    def may_commit(self, run: str) -> bool:
        """Return whether an extension of this run may be committed on the event loop.

        It must be the second in a row: runs that write by turns are faster in batches.
        """
        is_alone, self._last_run = run == self._last_run, run
        return is_alone and (not self._off_until or monotonic() >= self._off_until)

    def must_yield(self) -> bool:
        """Return whether other tasks of the event loop have waited long enough for commits on it."""
        if self._ended - self._yielded < LONGEST_TURN:
            return False
        self._yielded = self._ended
        return True

    def note(self, began: float, ended: float, worked: float) -> None:
        """Note how long a commit took, and for how much of that it worked: a garbage collection is not a slow disk."""
        self._ended = ended
        if ended - began - worked > SLOW_COMMIT:
            self._off_until, self._fast = ended + self._rest, 0
            self._rest = min(2 * self._rest, LONGEST_REST)
        elif self._rest > SHORTEST_REST:
            self._fast += 1
            if self._fast >= TRUSTED_AFTER:
                self._rest = SHORTEST_REST


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
