"""The order in which calls return to an agent's code: one at a time, live and on replay.

Code that races (`asyncio.wait(FIRST_COMPLETED)`, `TaskGroup`) must have the same winner on replay. So results return in
the order of the log, and the next one only after the code has become quiet. This costs sequential code nothing: its
result is always the next, and its next call shows that it has received the last one. A call of another branch does not
show that. On replay, a result also waits for the calls that other branches made before it returned (`CallOrder`).
"""

import asyncio
from bisect import insort
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import NamedTuple

from limpet.engine.replay.call_order import CallOrder
from limpet.engine.replay.history import Record

__all__ = ["DeferredTicket", "ReturnOrder"]

# Iterations of the event loop without a call; enough for a result to pass through some layers of tasks.
QUIET = 10
# Iterations after which the next call returns even if the code polls, and so is never quiet.
LONGEST = 200
# Live ends come after all recorded ones.
LIVE = 1 << 62


class _Waiting(NamedTuple):
    """A call that waits for its turn."""

    ticket: int
    strand: Hashable
    turn: "asyncio.Future[None]"


class ReturnOrder:
    """Queue in which the calls of one execution wait for their turn to return."""

    def __init__(self, records: Iterable[Record]) -> None:
        known = list(records)
        self._recorded = sorted((each.end for each in known if each.end is not None), reverse=True)
        self.calls = CallOrder(known)
        """The recorded calls that the code has not made yet."""
        self._tickets = count(LIVE)
        self._issued: dict[int, None] = {}
        self._waiting: list[_Waiting] = []
        self._is_received = True
        self._receiver: Hashable = None
        """The strand of the code to which the last result returned."""
        self._on_the_way = 0
        """Number of results that have had their turn, and are being loaded or wait for their task to go on."""
        self._quiet = self._age = 0
        """Iterations, counted while calls wait: since the code was active, and since the last result returned."""
        self._is_scheduled = False

    def has_before(self, seq: int) -> bool:
        """Return whether a recorded end before this sequence has not returned yet."""
        return bool(self._recorded) and self._recorded[-1] < seq

    @property
    def is_busy(self) -> bool:
        """Whether a call is about to return."""
        return bool(self._waiting or self._issued or self._on_the_way)

    def cancel_all(self) -> None:
        """Cancel the calls that wait for their turn."""
        for each in list(self._waiting):
            each.turn.cancel()

    def note_call(self, strand: Hashable) -> None:
        """Note that a strand of the code made a call.

        If the last result returned to it, it has received that. A call of another strand says nothing about that: code
        that waits for both may not have gone on yet.
        """
        if strand == self._receiver:
            self._is_received = True
            self._quiet = 0

    def issue_ticket(self) -> int:
        """Return a ticket for an end that was just recorded."""
        ticket = next(self._tickets)
        self._issued[ticket] = None
        return ticket

    def defer_ticket(self) -> "DeferredTicket":
        """Return a ticket for an end that gets its place in the log when it is sent."""
        return DeferredTicket(self)

    def cancel_ticket(self, ticket: int) -> None:
        """Remove the ticket of a cancelled call."""
        if ticket in self._issued:
            del self._issued[ticket]
            if self._waiting:
                self._schedule()

    def skip(self, end: int) -> None:
        """Remove a recorded value that was returned without waiting."""
        if self._recorded and self._recorded[-1] == end:
            self._recorded.pop()

    @property
    def recorded(self) -> int:
        """Number of recorded ends that have not returned yet. Some are never called again."""
        return len(self._recorded)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Let no other call return while the result of one that has had its turn is loaded."""
        self._on_the_way += 1
        try:
            yield
        finally:
            self._arrive()

    def _arrive(self) -> None:
        self._on_the_way -= 1
        self._quiet = 0
        if self._waiting:
            self._schedule()

    def take_turn(self, ticket: int, strand: Hashable) -> bool:
        """Let an end return to a strand if it is its turn now, and return whether it is.

        A recorded end is given by its sequence, a live one by its ticket.
        """
        if not self._is_received or self._waiting or self._on_the_way:
            return False
        recorded = self._recorded
        if recorded and ticket == recorded[-1]:  # The usual case on replay.
            if self.calls.has_branches and self.calls.is_early(ticket):
                return False
            recorded.pop()
        elif not recorded and self._is_first_issued(ticket):
            self._issued.pop(ticket, None)
        else:
            return False
        self._is_received, self._receiver = False, strand  # as in `_let_return`
        self._quiet = self._age = 0
        return True

    async def wait_turn(self, ticket: int, strand: Hashable) -> None:
        """Wait for the turn of an end, which returns to a strand."""
        if self.take_turn(ticket, strand):
            return
        turn = asyncio.get_running_loop().create_future()
        insort(self._waiting, _Waiting(ticket, strand, turn), key=lambda each: each.ticket)
        self._quiet = 0
        self._schedule()
        try:
            await turn
        except BaseException:
            self._waiting = [each for each in self._waiting if each.turn is not turn]
            self.cancel_ticket(ticket)
            if turn.done() and not turn.cancelled():
                self._arrive()
            raise
        self._arrive()

    def _is_first_issued(self, ticket: int) -> bool:
        return ticket < LIVE or ticket == next(iter(self._issued))

    def _let_return(self, ticket: int, strand: Hashable) -> None:
        """Let an end return to a strand. Recorded ends before it were never called."""
        while self._recorded and self._recorded[-1] <= ticket:
            self._recorded.pop()
        self.calls.give_up(ticket)
        self._issued.pop(ticket, None)
        self._is_received, self._receiver = False, strand
        self._quiet = self._age = 0

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._check)

    def _check(self) -> None:
        """Run once per iteration of the event loop, while a call waits whose predecessors have returned."""
        self._is_scheduled = False
        self._quiet += 1
        self._age += 1
        if not self._waiting or self._on_the_way or not self._is_first_issued(self._waiting[0].ticket):
            return
        if self._quiet >= QUIET or self._age >= LONGEST:
            ticket, strand, turn = self._waiting.pop(0)
            self._let_return(ticket, strand)
            if not turn.done():
                self._on_the_way += 1  # until `wait_turn` goes on
                turn.set_result(None)
        if self._waiting:
            self._schedule()


class DeferredTicket:
    """A ticket for an end that is not buffered, but gets its place in the log when it is sent."""

    __slots__ = ("_is_cancelled", "_number", "_order")

    def __init__(self, order: ReturnOrder) -> None:
        self._order = order
        self._number = 0
        self._is_cancelled = False

    def issue(self) -> None:
        """Issue the ticket, or a new one if the end was refused and is sent again, after others."""
        if not self._is_cancelled:
            self._order.cancel_ticket(self._number)
            self._number = self._order.issue_ticket()

    def take(self) -> int:
        """Return the ticket, or a new one if it was not issued, or cancelled."""
        return self._number or self._order.issue_ticket()

    def cancel(self) -> None:
        """Cancel the ticket: the call does not return with this end. It is not issued again."""
        self._order.cancel_ticket(self._number)
        self._number, self._is_cancelled = 0, True
