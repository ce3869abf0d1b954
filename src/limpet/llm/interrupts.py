"""Messages and interrupts from users while an LLM loop runs.

Messages are received at the start of a turn; interrupts also before and after a model reply, and during tool calls.
Every execution receives them at the same points: where the log has a later event, nothing new is received.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from limpet.engine.execution.strands import current_scope
from limpet.engine.run.conversation import INTERRUPT, USER
from limpet.engine.run.run import Run
from limpet.errors import Expired
from limpet.events import Wait
from limpet.events import bodies as b

__all__ = ["Interrupts"]

# Kinds of requests that block a call before it starts.
BEFORE = ("ask", "approval")
# Scope of an interrupt that is received during tool calls.
MEANWHILE = "meanwhile"


class Interrupts:
    """Receives messages and interrupts in one execution."""

    def __init__(self, run: Run[Any]) -> None:
        self._run, self._x = run, run.execution

    async def receive_messages(self) -> None:
        """Receive the messages since the last turn. Only at the start of a turn, so that a replay is the same."""
        context = self._x.peek_name("context")
        await self.add_messages(context)
        with suppress(Expired):
            while self._can_receive(INTERRUPT, "", context):
                await self._receive_interrupt()  # nothing to interrupt yet

    async def add_messages(self, *begun: str) -> None:
        """Add received messages to the conversation, unless the log already has a record whose name starts with one of
        `begun`.
        """
        with suppress(Expired):
            while self._can_receive(USER, "", *begun):
                await self._run._receive_message()

    async def is_interrupted(self, where: str, *begun: str) -> bool:
        """Return whether a user interrupts this turn. The result is the same in every execution."""
        if not self._can_receive(INTERRUPT, where, *begun):
            return False
        async with self._run.scope(where):
            with suppress(Expired):
                await self._receive_interrupt()
        return True

    def _can_receive(self, signal: str, scope: str, *begun: str) -> bool:
        """Return whether a signal was received here, or can be.

        A new one can be received only if the log has no record whose name starts with one of `begun`.
        """
        x = self._x
        place = f"{current_scope().path}{scope}/" if scope else current_scope().path
        taken = f"{place}receive:{signal}#1" if scope else x.peek_name(f"receive:{signal}")
        if taken in x.history.records:
            return True
        if x.is_dry_run:  # What was not received then is not received now.
            return False
        return bool(x.history.signals.get(signal)) and not any(name.startswith(begun) for name in x.history.records)

    async def _receive_interrupt(self) -> None:
        anything: Any = Any
        await self._run.receive(INTERRUPT, anything, timeout=0)

    async def wait_for_calls(
        self, doing: "asyncio.Future[Any]", tasks: "Sequence[asyncio.Future[str]]", left: set[int]
    ) -> bool:
        """Wait until all calls are done, and return whether a user interrupted.

        On an interrupt, calls that wait for a person before they start are withdrawn.
        """
        with self._watching() as changed:
            is_interrupted, results = False, self._x.peek_name("results")
            while not doing.done():
                changed.clear()
                is_interrupted = is_interrupted or await self.is_interrupted(MEANWHILE, results)
                if is_interrupted:
                    self._withdraw_waiting(tasks, left)
                waiting: asyncio.Future[Any] = asyncio.ensure_future(changed.wait())
                try:
                    await asyncio.wait([doing, waiting], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waiting.cancel()
            return is_interrupted

    @contextmanager
    def _watching(self) -> Iterator[asyncio.Event]:
        """Watch for new events. An interrupt also wakes a parked run."""
        changed, wait = asyncio.Event(), Wait(what="signal", key=INTERRUPT)
        self._x.subscribers[wait] = changed.set
        try:
            yield changed
        finally:
            self._x.subscribers.pop(wait, None)

    def _withdraw_waiting(self, tasks: "Sequence[asyncio.Future[str]]", left: set[int]) -> None:
        for place, task in enumerate(tasks, 1):
            if place not in left and not task.done() and self._has_not_started(f"{current_scope().path}call-{place}/"):
                left.add(place)
                task.cancel()

    def _has_not_started(self, scope: str) -> bool:
        """Return whether a call waits for a person now, before it starts.

        On replay, a call whose request was withdrawn makes the request again, and waits there to be cancelled. It is
        not cancelled earlier: the calls that it recorded before would be missing.
        """
        opened: list[object] = [slot.request for name, slot in self._x.gate.waiting.items() if name.startswith(scope)]
        withdrawn = [name for name in self._run._waits.awaiting_cancel if name.startswith(scope)]
        opened += [self._x.history.records[name].opened for name in withdrawn]
        return any(isinstance(each, b.RequestOpened) and each.kind in BEFORE for each in opened)
