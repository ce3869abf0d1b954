"""Waits of a run for a person, a time, a signal or another run. A waiting run can be parked.

A wait ends with its own event, which records how it ended, so the code sees the same end on replay. If the code cancels
a wait, it is withdrawn.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, NoReturn

from limpet.clock import earliest
from limpet.engine.execution.execution import Execution
from limpet.engine.execution.gate import OpenWait
from limpet.engine.execution.run_log import RunLog
from limpet.engine.replay.history import Record
from limpet.engine.replay.return_order import DeferredTicket
from limpet.engine.waits.notifications import notification_runs
from limpet.events import AnyBody, Wait
from limpet.events import bodies as b
from limpet.journal import OnPlaced
from limpet.stores import Create
from limpet.stores.blobs import Blob

__all__ = ["RequestOutcome", "Waits"]

# Time to wait for the code to repeat a recorded cancellation, in addition to the time that it took before.
CANCEL_TIMEOUT = 10_000_000
Check = Callable[[], b.WaitEnded | None]
Opening = b.RequestOpened | b.TimerSet | b.WaitOpened | b.AgentCalled


class RequestOutcome(NamedTuple):
    """The end of a request: an answer, or None if it expired."""

    request: str
    answer: b.RequestAnswered | None
    expires: int | None


class _Expiration(NamedTuple):
    """Events to write when a request has expired, and the runs that notify the next person."""

    bodies: tuple[AnyBody, ...]
    runs: tuple[Create, ...] = ()
    ticket: DeferredTicket | None = None
    """Ticket of the wait, if that ends."""


class Waits:
    """All waits of one execution."""

    def __init__(self, execution: Execution) -> None:
        self._x = execution
        self._slots: dict[str, OpenWait] = {}
        execution.gate.waiting = self._slots
        self._taken: set[int] = set()
        self._expirations: dict[str, _Expiration] = {}
        """Expirations that were sent but may not be written yet, by the name of the wait."""
        self.awaiting_cancel: dict[str, int] = {}
        """Calls that the code cancelled according to the log and should cancel again, each with its time limit."""

    @property
    def open(self) -> tuple[OpenWait, ...]:
        """The open waits."""
        return tuple(self._slots.values())

    @property
    def next_wake(self) -> int | None:
        """Time of the first wait that is due, or None."""
        return earliest(*(slot.wake for slot in self._slots.values()), self._x.deadline if self._slots else None)

    def check(self) -> None:
        """End the waits that are over, in the order of their events."""
        if not (self._slots or self._x.subscribers):
            return
        for notify in (*self._x.subscribers.values(),):
            notify()
        ended = [(slot, end) for slot in self.open if (end := slot.check()) is not None]
        for slot, _ in sorted(ended, key=lambda each: (each[1].event is None, each[1].event or each[0].wake or 0)):
            end = slot.check()  # checked again, because another wait may have taken the event
            if end is not None and slot.name in self._slots and not slot.ended.done():
                self._end(slot, end)

    async def expire(self) -> bool:
        """Record expired requests, until other events arrive. Returns whether any were due."""
        now, last_seen = self._x.kit.now(), self._x.journal.last_seen
        due = [slot for slot in self.open if slot.request and self._is_due(slot, now)]
        for slot in due:
            if not await self._expire(slot, last_seen):
                break
        return bool(due)

    def _is_due(self, slot: OpenWait, now: int) -> bool:
        due = earliest(slot.wake, self._x.deadline)
        return due is not None and due <= now

    async def _expire(self, slot: OpenWait, last_seen: int) -> bool:
        """Record the expiration of one request.

        After a lost reply, exactly the same is written again, so that it is written once.
        """
        x, name, request = self._x, slot.name, slot.request
        assert request is not None
        expiration = self._expirations[name] = self._expirations.get(name) or self._expiration(slot, request)
        bodies, ticket = expiration.bodies, expiration.ticket
        written = await x.journal.append_if_current(
            *bodies, last_seen=last_seen, legs=expiration.runs, on_placed=None if ticket is None else ticket.issue
        )
        self._expirations.pop(name, None)
        is_open = written and name in self._slots
        if ticket is None:
            if is_open:  # The next person is asked.
                self._slots[name] = slot._replace(wake=self._expiry(request))
        elif is_open and not slot.ended.done():
            del self._slots[name]
            assert isinstance(bodies[-1], b.WaitEnded)
            slot.ended.set_result((bodies[-1], ticket.take()))
        else:
            ticket.cancel()
        return written

    def _expiration(self, slot: OpenWait, request: b.RequestOpened) -> "_Expiration":
        """Return what follows the expiration of a request: the next person is asked, or the wait ends."""
        x, done = self._x, len(self._x.history.escalations.get(request.request, ()))
        if done < len(request.escalate) and not x.is_late:
            period = max((request.expires or 0) - self._opened_at(request), 1)
            to = (request.escalate[done],)
            expires = x.kit.now() + period
            body = b.RequestExpired(request=request.request, outcome="escalated", to=to, expires=expires)
            notifications = notification_runs(x, request, to)
            return _Expiration((body, *notifications.called), notifications.runs)
        expired = b.RequestExpired(request=request.request, outcome="raised" if request.default is None else "default")
        return _Expiration((expired, b.WaitEnded(name=slot.name, how="timeout")), ticket=x.return_order.defer_ticket())

    def _opened_at(self, request: b.RequestOpened) -> int:
        record = self._x.history.records.get(request.name)
        return record.time if record is not None else 0

    def _forget_expiration(self, name: str) -> None:
        """Forget an expiration that may not be written: the wait has ended in another way."""
        sent = self._expirations.pop(name, None)
        if sent is not None and sent.ticket is not None:
            sent.ticket.cancel()

    def _end(self, slot: OpenWait, ended: b.WaitEnded) -> None:
        del self._slots[slot.name]
        self._forget_expiration(slot.name)
        if ended.event is not None:
            self._taken.add(ended.event)
        slot.ended.set_result((ended, self._x.recorder.settle(ended)))

    # Kinds of waits

    async def sleep(self, name: str, record: Record | None, until: int) -> None:
        """Wait until a time. Raises DeadlineExceeded if the run's deadline is earlier."""
        opened = record.opened if record is not None else b.TimerSet(name=name, wake=until)
        assert isinstance(opened, b.TimerSet)
        wait = Wait(what="time", key=name)
        ended = await self._wait(record, opened, wait, opened.wake, lambda: self._timed(name, opened.wake, "fired"))
        if ended.how == "timeout":
            raise self._x.deadline_error(name)

    async def signal(self, name: str, record: Record | None, signal: str, expires: int | None) -> b.WaitEnded:
        """Wait for a signal, or until a time."""
        opened = record.opened if record is not None else b.WaitOpened(name=name, signal=signal, expires=expires)
        assert isinstance(opened, b.WaitOpened)

        def look() -> b.WaitEnded | None:
            for seq in self._x.history.signals.get(opened.signal, ()):
                if seq not in self._taken:
                    return b.WaitEnded(name=name, how="received", event=seq)
            return self._timed(name, opened.expires, "timeout")

        return await self._wait(record, opened, Wait(what="signal", key=opened.signal), opened.expires, look)

    async def child(self, record: Record) -> b.WaitEnded:
        """Wait for a called run to return."""
        opened = record.opened
        assert isinstance(opened, b.AgentCalled)

        def look() -> b.WaitEnded | None:
            seq = self.returned(record)
            if seq is not None:
                return b.WaitEnded(name=opened.name, how="returned", event=seq)
            return self._timed(opened.name, None, "timeout")

        ended = await self._wait(record, opened, Wait(what="run", key=opened.run), None, look)
        if ended.how == "timeout":
            raise self._x.deadline_error(opened.name)
        return ended

    def returned(self, record: Record) -> int | None:
        """Return the event with which a called run returned, ignoring returns that a resume has undone."""
        assert isinstance(record.opened, b.AgentCalled)
        run = record.opened.run
        for seq, body in self._x.history.commands.items():
            if isinstance(body, b.AgentReturned) and body.run == run and seq > max(record.ignored_return, record.seq):
                return seq
        return None

    async def request(self, record: Record | None, opened: b.RequestOpened) -> RequestOutcome:
        """Wait until a person decides or the request expires. The request is in the inbox before the wait starts."""
        x = self._x
        if record is not None:
            assert isinstance(record.opened, b.RequestOpened)
            opened = record.opened

        def look() -> b.WaitEnded | None:
            found = x.history.answer_to(opened.request)
            return None if found is None else b.WaitEnded(name=opened.name, how="answered", event=found[0])

        ended = await self._wait(record, opened, Wait(what="person", key=opened.request), None, look)
        answer = x.history.commands.get(ended.event) if ended.event is not None else None
        assert answer is None or isinstance(answer, b.RequestAnswered)
        expires = earliest(self._expiry(opened), x.deadline_of(opened.name))
        return RequestOutcome(opened.request, answer, expires)

    async def pause(self, name: str, until: int) -> None:
        """Wait until the next attempt of a step is due; the log already has that time."""
        if not self._x.kit.backoffs:
            return
        place, wait = f"{name}/retry", Wait(what="time", key=f"retry:{name}")
        ended: asyncio.Future[tuple[b.WaitEnded, int]] = asyncio.get_running_loop().create_future()

        def look() -> None:
            if self._x.kit.now() >= until or self._x.is_late:
                self._slots.pop(place, None)
                if not ended.done():
                    ended.set_result((b.WaitEnded(name=name, how="fired"), 0))

        self._add(OpenWait(place, wait, until, look, ended))
        try:
            await ended
        finally:
            self._slots.pop(place, None)

    async def _wait(
        self, record: Record | None, opened: Opening, wait: Wait, wake: int | None, look: Check
    ) -> b.WaitEnded:
        with self._x.noting_cancellation(opened.name):
            return await self._until_ended(record, opened, wait, wake, look)

    async def _until_ended(
        self, record: Record | None, opened: Opening, wait: Wait, wake: int | None, look: Check
    ) -> b.WaitEnded:
        x, name = self._x, opened.name
        request = opened if isinstance(opened, b.RequestOpened) else None
        try:
            await x.gate.wait_until_open()
        except asyncio.CancelledError:
            is_open = record is not None and record.settled is None and not self._was_closed(opened)
            if is_open and not x.gate.is_closed:
                self.note_withdrawn(name, request)
            raise
        if record is not None and isinstance(record.settled, b.WaitEnded):
            assert record.end is not None
            if record.settled.how != "withdrawn":
                await x.recorder.enter(record.end)
                return record.settled
        if record is not None and record.settled is not None:
            await self.until_cancelled(record)
        if record is None or self._was_closed(opened):
            await self._begin(opened)
        ended: asyncio.Future[tuple[b.WaitEnded, int]] = asyncio.get_running_loop().create_future()
        until = wake if request is None else self._expiry(request)
        self._add(OpenWait(name, wait, until, look, ended, request))
        try:
            end, ticket = await ended
        except asyncio.CancelledError:
            self._withdraw(name, request, ended)
            raise
        await x.recorder.finish(ticket)
        return end

    def _add(self, wait: OpenWait) -> None:
        self._slots[wait.name] = wait
        self._x.gate.note_wait()

    def _was_closed(self, opened: Opening) -> bool:
        """Return whether a timer or an undecided request was closed when the run failed, so it is opened again."""
        if isinstance(opened, b.TimerSet):
            return not self._x.journal.fold.is_waiting(opened.name)
        if not isinstance(opened, b.RequestOpened) or self._x.journal.fold.is_asking(opened.request):
            return False
        history = self._x.history
        return opened.request not in history.expired and history.answer_to(opened.request) is None

    async def until_cancelled(self, record: Record) -> NoReturn:
        """Wait for the code to cancel this call, as it did before."""
        x = self._x
        give_up_at = x.kit.clock.ticks() + max(record.cancelled_at - record.time, 0) + CANCEL_TIMEOUT
        self.awaiting_cancel[record.name] = give_up_at
        cancel_timer = x.kit.clock.call_later(give_up_at - x.kit.clock.ticks(), x.gate.wake_driver)
        x.gate.wake_driver()
        try:
            with x.noting_cancellation(record.name):
                await x.gate.never_return()
        finally:
            cancel_timer()
            self.awaiting_cancel.pop(record.name, None)
            x.gate.wake_driver()  # perhaps only waits are left
        raise AssertionError

    def overdue(self) -> str | None:
        """Return a call that the code cancelled before but has not cancelled again in time, or None."""
        now = self._x.kit.clock.ticks()
        return next((name for name, give_up_at in self.awaiting_cancel.items() if give_up_at <= now), None)

    def _expiry(self, request: b.RequestOpened) -> int | None:
        """Return when a request expires, apart from the run's deadline. After an escalation, the period starts again
        for the next person.
        """
        done = self._x.history.escalations.get(request.request)
        return done[-1].expires if done else request.expires

    async def _begin(self, opened: Opening) -> None:
        x = self._x
        if not isinstance(opened, b.RequestOpened):
            x.journal.add(opened)
            return
        notifications = notification_runs(x, opened, opened.to)

        async def write() -> None:
            taken = await x.recorder.write_until_stored(
                lambda: x.journal.append_together(opened, *notifications.called, legs=notifications.runs)
            )
            assert taken is None, f"{taken} already notifies of {opened.request}"

        await x.recorder.write_to_end(write, lambda _: self.note_withdrawn(opened.name, opened))
        run_log = RunLog(x.run, x.agent.name, x.memory.created.agent_version)
        run_log.info('asks "%s" (request %s)', opened.question, opened.request, step=opened.number)

    async def withdraw(
        self, name: str, *more: AnyBody, blobs: Sequence[Blob] = (), on_placed: OnPlaced | None = None
    ) -> bool:
        """Withdraw a request, and write other events with that.

        Returns False if the request was decided meanwhile, or is not open yet.
        """
        x, slot = self._x, self._slots.get(name)
        if slot is None or slot.request is None or not x.journal.fold.is_asking(slot.request.request):
            return False
        last_seen, withdrawn = (
            x.journal.last_seen,
            b.WaitEnded(name=name, how="withdrawn", request=slot.request.request),
        )
        with x.gate.work():
            written = await x.recorder.write_until_stored(
                lambda: x.journal.append_if_current(
                    withdrawn, *more, last_seen=last_seen, blobs=blobs, on_placed=on_placed
                )
            )
        if written:
            self._slots.pop(name, None)
        return written

    def _withdraw(
        self,
        name: str,
        request: b.RequestOpened | None,
        ended: "asyncio.Future[tuple[b.WaitEnded, int]]",
    ) -> None:
        """Record that the code cancelled the wait, unless the run is being parked or stopped."""
        if ended.done() and not ended.cancelled():
            self._x.return_order.cancel_ticket(ended.result()[1])
            return
        self._forget_expiration(name)
        if self._slots.pop(name, None) is not None and not self._x.gate.is_closed:
            self.note_withdrawn(name, request)

    def note_withdrawn(self, name: str, request: b.RequestOpened | None = None) -> None:
        """Record that the code cancelled a wait that is open in the log."""
        id = request.request if request is not None else None
        self._x.journal.add(b.WaitEnded(name=name, how="withdrawn", request=id))

    def _timed(self, name: str, until: int | None, how: Literal["fired", "timeout"]) -> b.WaitEnded | None:
        """Return the end of a wait if its time or the run's deadline has passed, else None."""
        now = self._x.kit.now()
        if until is not None and now >= until and (self._x.deadline is None or until <= self._x.deadline):
            return b.WaitEnded(name=name, how=how)
        return b.WaitEnded(name=name, how="timeout") if self._x.is_late else None
