"""Records the calls of a run's code, and returns their results to the code when they are durable and in order."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from limpet.clock import SECOND
from limpet.engine.execution.code_state import CodeState
from limpet.engine.execution.gate import Gate
from limpet.engine.execution.kit import Kit
from limpet.engine.execution.strands import calling_strand
from limpet.engine.replay.history import Opening, Record
from limpet.engine.replay.return_order import ReturnOrder
from limpet.errors import (
    ConnectionLost,
    InvalidValue,
    LimpetError,
    StaleServer,
    StoreBusy,
    StoreRefused,
    StoreUnavailable,
)
from limpet.events import AnyBody, Payload, inline
from limpet.events import bodies as b
from limpet.journal import Journal
from limpet.policy.checkpoint import Moment, Strategy, flushed_moments
from limpet.stores.blobs import Blob

__all__ = ["NOT_SERVED", "Recorder"]

NOT_SERVED = (StoreRefused, StoreUnavailable, StaleServer)
"""Errors of a store that does not serve this worker. They say nothing about the run."""

log = logging.getLogger("limpet")

T = TypeVar("T")
Opened = TypeVar("Opened", bound=Opening)


class Recorder:
    """Writes the log of one execution, and lets its calls return."""

    def __init__(
        self,
        kit: Kit,
        journal: Journal,
        gate: Gate,
        return_order: ReturnOrder,
        state: CodeState,
        checkpoint: Strategy,
    ) -> None:
        self._journal, self._store, self._clock = journal, kit.store, kit.clock
        self._gate, self._return_order, self._state = gate, return_order, state
        self._flushed = flushed_moments(checkpoint)

    def settle(self, *bodies: AnyBody, blobs: Sequence[Blob] = ()) -> int:
        """Record the end of a call, and return its ticket in the order of returns."""
        self._journal.add(*bodies, blobs=blobs)
        return self._return_order.issue_ticket()

    def must_flush(self, moment: Moment) -> bool:
        """Return whether the code must wait for the disk now, according to the agent's checkpoint strategy."""
        return moment in self._flushed

    async def flush(self) -> None:
        """Return when everything so far is durable. If the store refuses it, stop the run and never return."""
        try:
            await self._journal.flush()
        except LimpetError as error:
            await self._flush_after(error)

    async def _flush_after(self, error: LimpetError) -> None:
        """Repeat a flush that failed, unless a value was refused."""
        if isinstance(error, InvalidValue):
            raise error
        await self.write_until_stored(self._journal.flush)

    async def write_until_stored(self, write: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a write, repeated until the store is reachable. It is applied once.

        If the store refuses it, the run stops. InvalidValue is raised to the code: it is refused before anything is
        written.
        """
        try:
            return await self.retry_store(write)
        except InvalidValue:
            raise
        except LimpetError as error:
            await self._gate.halt(error)

    async def write_to_end(self, write: Callable[[], Awaitable[T]], withdraw: Callable[[T], object]) -> T:
        """Return the result of a write that opens a call. It must be applied once if it is repeated.

        If the code cancels the call meanwhile, the write is repeated, and `withdraw` gets its result, before the run
        parks or ends. If the run is closed first, replay finds what is in the log, and the code cancels the call again.
        """
        gate = self._gate

        async def write_again() -> None:
            try:
                done = await write()
            except LimpetError:
                return  # It was refused, so nothing is in the log.
            if not gate.is_closed:
                withdraw(done)

        with gate.work():
            try:
                return await write()
            except asyncio.CancelledError:
                gate.keep(write_again)
                raise

    async def ask_store(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what the store returns to the code, retried until it is reachable.

        If the store does not serve this worker, the run stops: that says nothing about the run, so it must not fail.
        """
        try:
            return await self.retry_store(ask)
        except NOT_SERVED as error:
            if self._gate.running_tools:  # One may wait for this call, and the stopped run waits for its tools.
                self._gate.stop(error)
                raise
            await self._gate.halt(error)

    async def retry_store(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what the store returns, retried until it is reachable. A repeated append is applied once."""
        while True:
            try:
                return await ask()
            except (ConnectionLost, StoreBusy):
                await self._clock.sleep(SECOND)

    async def load(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what the store returns, for a call that has had its turn to return: others wait for it."""
        with self._return_order.loading():
            return await self.ask_store(ask)

    async def append(self, body: AnyBody) -> None:
        """Append an event, durably."""
        self._journal.add(body)
        await self.flush()

    async def snapshot(self) -> None:
        """Write a snapshot if one is due. Snapshots are only a cache: the run continues if it fails."""
        if not self._journal.is_snapshot_due:
            return
        with self._gate.work():
            try:
                await self._journal.snapshot()
            except Exception:
                log.exception("run %s: snapshot failed", self._journal.run)

    # Returning

    async def finish(self, ticket: int, moment: Moment | None = None) -> None:
        """Return to the code when the end of a call is durable, if it must be, and its turn has come."""
        try:
            journal = self._journal
            if moment in self._flushed or journal.has_much:
                try:
                    await journal.flush()
                except LimpetError as error:
                    await self._flush_after(error)
                if journal.is_snapshot_due:
                    await self.snapshot()
            if not self.enter_now(ticket):
                await self.enter(ticket)
        except asyncio.CancelledError:
            self._return_order.cancel_ticket(ticket)
            raise

    async def enter(self, end: int) -> None:
        """Return to the code when it is the turn of this end."""
        if not self.enter_now(end):
            await self._return_order.wait_turn(end, calling_strand())
            self._entered(end)

    def enter_now(self, end: int) -> bool:
        """Return to the code if it is the turn of this end, and return whether it is."""
        if not self._return_order.take_turn(end, calling_strand()):
            return False
        self._entered(end)
        return True

    def _entered(self, end: int) -> None:
        self._gate.note_return()
        if self._state.flags:
            self._state.pass_end(end)

    async def recall(self, record: Record, kind: type[Opened]) -> Opened:
        """Return the event of a recorded call without a separate end, when it is its turn to return."""
        assert record.end is not None
        await self.enter(record.end)
        assert isinstance(record.opened, kind)
        return record.opened

    async def record(self, name: str, value: object) -> None:
        """Record a value that replay returns to the code, and return to the code."""
        await self.finish(self.settle(b.ValueRecorded(name=name, value=inline(value))))

    # Payloads

    def shown(self, value: object) -> Payload:
        """Return a value for display in a request: it is always stored inline."""
        return self._store.pack(value, inline=1 << 30)[0]

    async def unpack(self, payload: Payload | None) -> Any:
        """Return the value of a payload, inline or in a blob."""
        if payload is None:
            return None
        return payload.value() if payload.is_inline else await self.load(lambda: self._store.unpack(payload))
