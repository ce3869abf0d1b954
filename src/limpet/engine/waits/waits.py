"""What a run waits for: a person, a time, a signal, another run. Waiting holds no effect, and can be parked.

A wait ends by an event of its own, which says how and by what; so the code sees the same end again. One that the code
itself cancels is withdrawn.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, NoReturn

from limpet.clock import earliest
from limpet.engine.execution.execution import Execution, OpenWait
from limpet.engine.replay.history import Record
from limpet.engine.waits.notices import notification_runs
from limpet.events import AnyBody, Wait
from limpet.events import bodies as b
from limpet.stores import Create
from limpet.stores.blobs import Blob

__all__ = ["RequestOutcome", "Waits"]

# On top of the time that it took the code to cancel something before.
PATIENCE = 10_000_000
Look = Callable[[], b.WaitEnded | None]
Opening = b.RequestOpened | b.TimerSet | b.WaitOpened | b.AgentCalled


class RequestOutcome(NamedTuple):
    """How a request ended: by somebody's answer, or by silence."""

    request: str
    answer: b.RequestAnswered | None
    expires: int | None


class _Silence(NamedTuple):
    """What is written when nobody has decided in time, and the runs that tell somebody else."""

    bodies: tuple[AnyBody, ...]
    runs: tuple[Create, ...] = ()


class Waits:
    """All waits of one execution."""

    def __init__(self, execution: Execution) -> None:
        self._x = execution
        self._slots: dict[str, OpenWait] = {}
        execution.waiting = self._slots
        self._taken: set[int] = set()
        self._silences: dict[str, _Silence] = {}
        """What was sent because nobody decided in time, and is not known to be written."""
        self.left: dict[str, int] = {}
        """Calls that the code is going to cancel again, each with how long that is waited for."""

    @property
    def open(self) -> tuple[OpenWait, ...]:
        """What the code waits for."""
        return tuple(self._slots.values())

    @property
    def next_wake(self) -> int | None:
        """When the first of them must be looked at."""
        return earliest(*(slot.wake for slot in self._slots.values()))

    def check(self) -> None:
        """End what has ended, in the order in which that came."""
        for hear in (*self._x.subscribers.values(),):
            hear()
        ended = [(slot, end) for slot in self.open if (end := slot.look()) is not None]
        for slot, _ in sorted(ended, key=lambda each: (each[1].event is None, each[1].event or each[0].wake or 0)):
            end = slot.look()  # once more: another may have taken it
            if end is not None and slot.name in self._slots:
                self._end(slot, end)

    async def expire(self) -> bool:
        """Write down of which requests nobody decided in time, until something comes from elsewhere; whether any."""
        now, heard = self._x.kit.now(), self._x.journal.heard
        due = [slot for slot in self.open if slot.request and slot.wake is not None and slot.wake <= now]
        for slot in due:
            if not await self._expire(slot, heard):
                break
        return bool(due)

    async def _expire(self, slot: OpenWait, heard: int) -> bool:
        """Write that down; if the reply is lost, just this is written again, so that it is there once."""
        x, name, request = self._x, slot.name, slot.request
        assert request is not None
        silence = self._silences[name] = self._silences.get(name) or self._silence(slot, request)
        written = await x.journal.append_if_current(*silence.bodies, heard=heard, legs=silence.runs)
        del self._silences[name]
        if not written or name not in self._slots:
            return written
        ended = silence.bodies[-1]
        if not isinstance(ended, b.WaitEnded):
            self._slots[name] = slot._replace(wake=self._expiry(request))
        elif not slot.ended.done():
            del self._slots[name]
            slot.ended.set_result((ended, x.return_order.issue_ticket()))
        return True

    def _silence(self, slot: OpenWait, request: b.RequestOpened) -> "_Silence":
        """What follows when nobody has decided in time: somebody else is asked, or the wait is over."""
        x, done = self._x, len(self._x.history.escalations.get(request.request, ()))
        if done < len(request.escalate) and slot.wake != x.deadline:
            period = max((request.expires or 0) - self._opened_at(request), 1)
            later = earliest(x.kit.now() + period, x.deadline)
            to = (request.escalate[done],)
            body = b.RequestExpired(request=request.request, outcome="escalated", to=to, expires=later)
            told = notification_runs(x, request, to)
            return _Silence((body, *told.called), told.runs)
        expired = b.RequestExpired(request=request.request, outcome="raised" if request.default is None else "default")
        return _Silence((expired, b.WaitEnded(name=slot.name, how="timeout")))

    def _opened_at(self, request: b.RequestOpened) -> int:
        record = self._x.history.records.get(request.name)
        return record.time if record is not None else 0

    def _end(self, slot: OpenWait, ended: b.WaitEnded) -> None:
        del self._slots[slot.name]
        if ended.event is not None:
            self._taken.add(ended.event)
        slot.ended.set_result((ended, self._x.settle(ended)))

    # The kinds of waits

    async def sleep(self, name: str, record: Record | None, until: int) -> None:
        """Until a time; a deadline before it ends the wait with an error."""
        opened = record.opened if record is not None else b.TimerSet(name=name, wake=until)
        assert isinstance(opened, b.TimerSet)
        wait = Wait(what="time", key=name)
        ended = await self._wait(record, opened, wait, opened.wake, lambda: self._timed(name, opened.wake, "fired"))
        if ended.how == "timeout":
            raise self._x.deadline_error(name)

    async def signal(self, name: str, record: Record | None, signal: str, expires: int | None) -> b.WaitEnded:
        """Until a signal comes, or a time."""
        opened = record.opened if record is not None else b.WaitOpened(name=name, signal=signal, expires=expires)
        assert isinstance(opened, b.WaitOpened)

        def look() -> b.WaitEnded | None:
            for seq in self._x.history.signals.get(opened.signal, ()):
                if seq not in self._taken:
                    return b.WaitEnded(name=name, how="received", event=seq)
            return self._timed(name, opened.expires, "timeout")

        return await self._wait(record, opened, Wait(what="signal", key=opened.signal), opened.expires, look)

    async def child(self, record: Record) -> b.WaitEnded:
        """Until another run returns; it was called before."""
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
        """The event with which a run that was called has returned, after what a resume took back."""
        assert isinstance(record.opened, b.AgentCalled)
        run = record.opened.run
        for seq, body in self._x.history.commands.items():
            if isinstance(body, b.AgentReturned) and body.run == run and seq > max(record.since, record.seq):
                return seq
        return None

    async def request(self, record: Record | None, opened: b.RequestOpened) -> RequestOutcome:
        """Until a person decides, or nobody has in time; the request is in the inbox when this begins to wait."""
        x = self._x
        if record is not None:
            assert isinstance(record.opened, b.RequestOpened)
            opened = record.opened

        def look() -> b.WaitEnded | None:
            found = x.history.answer_to(opened.request)
            return None if found is None else b.WaitEnded(name=opened.name, how="answered", event=found[0])

        expires = earliest(opened.expires, x.deadline)
        ended = await self._wait(record, opened, Wait(what="person", key=opened.request), expires, look)
        answer = x.history.commands.get(ended.event) if ended.event is not None else None
        assert answer is None or isinstance(answer, b.RequestAnswered)
        return RequestOutcome(opened.request, answer, self._expiry(opened))

    async def pause(self, name: str, until: int) -> None:
        """Until the next attempt of a step is due; the log knows that already."""
        if not self._x.kit.backoffs:
            return
        place, wait = f"{name}/retry", Wait(what="time", key=f"retry:{name}")
        ended: asyncio.Future[tuple[b.WaitEnded, int]] = asyncio.get_running_loop().create_future()

        def look() -> None:
            if self._x.kit.now() >= until or self._x.is_late:
                self._slots.pop(place, None)
                if not ended.done():
                    ended.set_result((b.WaitEnded(name=name, how="fired"), 0))

        self._slots[place] = OpenWait(place, wait, earliest(until, self._x.deadline), look, ended)
        self._x.changed()
        try:
            await ended
        finally:
            self._slots.pop(place, None)

    async def _wait(
        self, record: Record | None, opened: Opening, wait: Wait, wake: int | None, look: Look
    ) -> b.WaitEnded:
        x, name = self._x, opened.name
        await x.wait_until_open()
        if record is not None and isinstance(record.settled, b.WaitEnded):
            assert record.end is not None
            if record.settled.how != "withdrawn":
                await x.enter(record.end)
                return record.settled
        if record is not None and record.settled is not None:
            await self.until_cancelled(record)
        if record is None or self._was_closed(opened):
            await self._begin(opened)
        ended: asyncio.Future[tuple[b.WaitEnded, int]] = asyncio.get_running_loop().create_future()
        request = opened if isinstance(opened, b.RequestOpened) else None
        until = self._expiry(request) if request is not None else earliest(wake, x.deadline)
        self._slots[name] = OpenWait(name, wait, until, look, ended, request)
        x.touched = x.kit.clock.ticks()
        x.changed()
        try:
            end, ticket = await ended
        except asyncio.CancelledError:
            self._withdraw(name, request, ended)
            raise
        await x.finish(ticket)
        return end

    def _was_closed(self, opened: Opening) -> bool:
        """Whether the end of a failed run closed a request that nobody had decided: it is opened again."""
        if not isinstance(opened, b.RequestOpened) or self._x.journal.fold.is_asking(opened.request):
            return False
        history = self._x.history
        return opened.request not in history.expired and history.answer_to(opened.request) is None

    async def until_cancelled(self, record: Record) -> NoReturn:
        """The code cancelled this then, and is going to cancel it again: it stays open until it does."""
        x = self._x
        patience = x.kit.clock.ticks() + max(record.left - record.time, 0) + PATIENCE
        self.left[record.name] = patience
        take_back = x.kit.clock.call_later(patience - x.kit.clock.ticks(), x.changed)
        x.changed()
        try:
            await x.never_return()
        finally:
            take_back()
            self.left.pop(record.name, None)
        raise AssertionError

    def overdue(self) -> str | None:
        """A call that the code cancelled once, and does not cancel again."""
        now = self._x.kit.clock.ticks()
        return next((name for name, patience in self.left.items() if patience <= now), None)

    def _expiry(self, request: b.RequestOpened) -> int | None:
        """When a request is over: its time counts anew for each person it went on to."""
        done = self._x.history.escalations.get(request.request)
        return earliest(done[-1].expires if done else request.expires, self._x.deadline)

    async def _begin(self, opened: Opening) -> None:
        x = self._x
        if not isinstance(opened, b.RequestOpened):
            x.journal.add(opened)
            return
        told = notification_runs(x, opened, opened.to)
        with x.work():
            taken = await x.write_until_stored(lambda: x.journal.append_together(opened, *told.called, legs=told.runs))
            assert taken is None, f"{taken} tells of {opened.request} already"

    async def withdraw(self, name: str, *behind: AnyBody, blobs: Sequence[Blob] = ()) -> bool:
        """Withdraw a request, and write something behind that; not if it was decided meanwhile, or is not asked yet."""
        x, slot = self._x, self._slots.get(name)
        if slot is None or slot.request is None or not x.journal.fold.is_asking(slot.request.request):
            return False
        heard, withdrawn = x.journal.heard, b.WaitEnded(name=name, how="withdrawn", request=slot.request.request)
        with x.work():
            written = await x.write_until_stored(
                lambda: x.journal.append_if_current(withdrawn, *behind, heard=heard, blobs=blobs)
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
        """The code itself cancelled it; not because the run is parked or stopped."""
        if ended.done() and not ended.cancelled():
            self._x.return_order.cancel_ticket(ended.result()[1])
            return
        if self._slots.pop(name, None) is not None and not self._x.is_closed:
            id = request.request if request is not None else None
            self._x.journal.add(b.WaitEnded(name=name, how="withdrawn", request=id))

    def _timed(self, name: str, until: int | None, how: Literal["fired", "timeout"]) -> b.WaitEnded | None:
        """Whether its time, or the run's, has come."""
        now = self._x.kit.now()
        if until is not None and now >= until and (self._x.deadline is None or until <= self._x.deadline):
            return b.WaitEnded(name=name, how=how)
        return b.WaitEnded(name=name, how="timeout") if self._x.is_late else None
