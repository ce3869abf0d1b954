"""The order in which calls return to an agent's code: one at a time, live as on replay.

Code that races (`asyncio.wait(FIRST_COMPLETED)`, `TaskGroup`) must see the same winner again. So ends are handed over
in the order of the log, and the next one only when the code has gone quiet after the one before. Sequential code pays
nothing: its end is always the next, and its next call shows that it has taken the last one in.
"""

import asyncio
from bisect import insort
from collections.abc import Iterable
from itertools import count

__all__ = ["ReturnOrder"]

# Turns of the event loop without a call: enough for a result to pass through some layers of tasks and groups.
QUIET = 10
# Live ends come after all recorded ones.
LIVE = 1 << 62


class ReturnOrder:
    """Where every call of one execution waits for its turn to return."""

    def __init__(self, recorded: Iterable[int]) -> None:
        self._left = sorted(recorded, reverse=True)
        self._tickets = count(LIVE)
        self._issued: dict[int, None] = {}
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._is_taken_in = True
        self._quiet = 0
        self._is_looking = False

    def has_before(self, seq: int) -> bool:
        """Whether a recorded end is left from before a place in the log."""
        return bool(self._left) and self._left[-1] < seq

    @property
    def is_busy(self) -> bool:
        """Whether somebody is about to return."""
        return bool(self._waiting or self._issued)

    @property
    def waiting(self) -> "list[asyncio.Future[None]]":
        """Whoever waits for their turn."""
        return [turn for _, turn in self._waiting]

    def note_call(self) -> None:
        """The code made a call: it has taken in what it was given before."""
        self._is_taken_in = True
        self._quiet = 0

    def issue_ticket(self) -> int:
        """A place in the order, for an end that was just put into the log."""
        ticket = next(self._tickets)
        self._issued[ticket] = None
        return ticket

    def cancel_ticket(self, ticket: int) -> None:
        """Whoever had this place was cancelled."""
        if self._issued.pop(ticket, 0) is None and self._waiting:
            self._look()

    def skip(self, end: int) -> None:
        """A recorded value was given out by a call that cannot wait."""
        if self._left and self._left[-1] == end:
            self._left.pop()

    async def wait_turn(self, ticket: int) -> None:
        """Return when it is this end's turn: a recorded one by its place in the log, a live one by its ticket."""
        if self._is_taken_in and not self._waiting and self._is_next(ticket):
            self._hand_over(ticket)
            return
        turn = asyncio.get_running_loop().create_future()
        insort(self._waiting, (ticket, turn), key=lambda each: each[0])
        self._quiet = 0
        self._look()
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting = [each for each in self._waiting if each[1] is not turn]
            self.cancel_ticket(ticket)
            raise

    def _is_next(self, ticket: int) -> bool:
        if self._left:
            return ticket == self._left[-1]
        return self._is_first_issued(ticket)

    def _is_first_issued(self, ticket: int) -> bool:
        return ticket < LIVE or ticket == next(iter(self._issued))

    def _hand_over(self, ticket: int) -> None:
        """Recorded ends before it were never asked for."""
        while self._left and self._left[-1] <= ticket:
            self._left.pop()
        self._issued.pop(ticket, None)
        self._is_taken_in = False
        self._quiet = 0

    def _look(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            asyncio.get_running_loop().call_soon(self._look_again)

    def _look_again(self) -> None:
        """Once in every turn of the event loop, while somebody waits and nobody before them is on the way."""
        self._is_looking = False
        self._quiet += 1
        if not self._waiting or not self._is_first_issued(self._waiting[0][0]):
            return
        if self._quiet >= QUIET:
            ticket, turn = self._waiting.pop(0)
            self._hand_over(ticket)
            if not turn.done():
                turn.set_result(None)
        if self._waiting:
            self._look()
