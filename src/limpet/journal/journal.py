"""The log of one run, as its owner writes it: in order, with one append in flight, and conflicts resolved.

Bodies gather in a buffer while an append is in flight, and are sent with the next one. If commands were written in
between, they are folded first and the owner's events are sealed again after them. An append whose reply was lost is
repeated with the same sealed events, and is written once. Events that must not follow an unseen command (`run.waiting`,
the end of a run, the use of a standing approval) go through `append_if_current`, with the last sequence that their
writer had seen when it decided.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from limpet.clock import SECOND
from limpet.errors import StoreBusy
from limpet.events import VOCABULARY, AnyBody, Head, Sealed, seal_all, verify
from limpet.events import bodies as b
from limpet.journal.conversation import ConversationWriter, OutgoingMessages
from limpet.journal.fair_lock import FairLock
from limpet.journal.snapshots import Learner, Loaded, LogFolder, fold_log, load_whole, save
from limpet.policy.checkpoint import snapshot_due
from limpet.policy.retention import snapshots_to_thin
from limpet.state import Fold, RunState
from limpet.state.patch import Working, changes_plan
from limpet.stores import Appended, Extend, Leg, Missed, SendCommands, Store, Taken
from limpet.stores.blobs import Blob
from limpet.stores.writes import Claimed, Work, check_leg

__all__ = ["Journal", "OnPlaced"]

OnPlaced = Callable[[], object]
"""Called when the events of an append get their place in the log, before any that are added later. Called again if they
are refused and get another place."""

FULL_BUFFER = 500
# How long an event may wait for a flush while a worker sweeps its journals, in microseconds.
MAX_WAIT = SECOND // 5


class _Flight(Struct, frozen=True):
    """An append in flight, or one that ended with an error: what was buffered, then the bodies of one caller."""

    events: tuple[Sealed, ...]
    gathered: tuple[AnyBody | OutgoingMessages, ...]
    last: tuple[AnyBody, ...]
    blobs: tuple[Blob, ...]
    legs: tuple[Leg, ...]
    """The caller's writes to other runs in the same append."""
    messages: Leg | None
    """The leg of the messages that were buffered."""
    on_placed: OnPlaced | None
    """Called when the caller's bodies get their place in the log."""


class Journal:
    """The log of a claimed run: its state so far, and appends to it."""

    def __init__(
        self, store: Store, claimed: Claimed, loaded: Loaded, now: Callable[[], int], learner: Learner | None = None
    ) -> None:
        assert claimed.row.worker is not None
        self.run, self.fence, self._actor = claimed.row.id, claimed.row.fence, claimed.row.worker
        self.head = claimed.row.head
        self.last_seen = self.head.seq
        """Sequence of the last event written by others that this journal has folded."""
        self.on_heard: Callable[[], object] = lambda: None
        """Called after events that others wrote have been folded."""
        self._store = store
        self._now = now
        self._learner = learner
        self._fold = loaded.fold
        self._ahead = loaded.fold.working.copy()
        self._buffer: list[AnyBody | OutgoingMessages] = []
        self._talk: ConversationWriter | None = None
        """The conversation to which this run has added messages; None if there is none."""
        self._waits_since: int | None = None
        """Since when events may wait for a flush, in monotonic microseconds; None if no sweep has found any."""
        self._blobs: list[Blob] = []
        self._flight: _Flight | None = None
        self._landed: list[AnyBody] = []
        """First body of each append whose reply was lost and that another call has repeated successfully. When its
        caller repeats it, the caller gets `Appended` without sending it again.
        """
        self._lock = FairLock()
        self._snapshot_bytes = loaded.snapshot_bytes
        self._tail_bytes, self._tail_events = loaded.tail_bytes, loaded.tail_events

    @classmethod
    async def open(
        cls, store: Store, claimed: Claimed, now: Callable[[], int], *, learner: Learner | None = None
    ) -> Self:
        """Open the journal of a run that was just claimed; `now` estimates the store's clock.

        `learner` observes the log: it gets every event in order, from every writer, as soon as the event is known to be
        stored. A snapshot may contain its dump.
        """
        if claimed.log:
            loaded = fold_log(claimed.log, learner)
        else:
            loaded = await load_whole(store, claimed.row.id, at_most=claimed.row.seq, learner=learner)
        return cls(store, claimed, loaded, now, learner)

    @property
    def state(self) -> RunState:
        """The run's state, from all events that are known to be stored."""
        return self._fold.freeze()

    @property
    def fold(self) -> Fold:
        """The same state as a read-only fold."""
        return self._fold

    @property
    def working(self) -> Working:
        """The working state after all events that were added, read-only."""
        return self._ahead

    def add(self, *bodies: AnyBody, blobs: Sequence[Blob] = ()) -> None:
        """Buffer events, and the blobs that they refer to, for the next flush.

        Raises InvalidArgument or InvalidPatch, with nothing added, for a wrong type or an invalid patch.
        """
        _check_types(bodies)
        self._buffer.extend(self._check(bodies, keep=True))
        self._blobs.extend(blobs)

    def note(self, body: AnyBody) -> None:
        """Buffer an event of a step for the next flush, like `add`: it changes no working state, and has no blobs."""
        self._buffer.append(body)

    def say(self, talk: ConversationWriter, messages: OutgoingMessages, blobs: Sequence[Blob] = ()) -> None:
        """Buffer messages to the run's conversation for the next flush, like `add`.

        They are written in the same append as the event that notes them here. If others write to the conversation
        first, they follow those messages. The head of the conversation must be known.
        """
        assert talk is self._talk or not self.has_messages
        _check_types((messages.note(talk.next), *messages.bodies))
        self._talk = talk
        self._buffer.append(messages)
        self._blobs.extend(blobs)

    @property
    def has_messages(self) -> bool:
        """Whether messages were added that are not known to be stored."""
        return self._talk is not None and any(isinstance(each, OutgoingMessages) for each in self.pending)

    @property
    def pending(self) -> Sequence[AnyBody | OutgoingMessages]:
        """Bodies and messages that were added and are not known to be stored."""
        return (*(self._flight.gathered if self._flight is not None else ()), *self._buffer)

    @property
    def has_much(self) -> bool:
        """Whether the buffer is so full (500 events) that it should be flushed, although no caller waits for it."""
        return len(self._buffer) >= FULL_BUFFER

    def sweep(self, last: int, now: int) -> bool:
        """Return whether events may have waited for a flush for 200 ms, given when the last sweep was.

        Events that this sweep finds first may be as old as the last one. This returns False while an append is in
        progress, which could store them.
        """
        if self._lock.is_held or not (self._buffer or self._flight):
            return False
        if self._waits_since is None:
            self._waits_since = last
        return now - self._waits_since >= MAX_WAIT

    async def flush(self) -> None:
        """Return when everything added so far is durable. Raises LeaseLost if another worker holds the run."""
        lock = self._lock
        if not lock.take_now():
            await lock.take()
        try:
            if self._flight is None and self._buffer and not self._blobs:
                # The usual case, sent once: there are no messages, and no other events came first.
                self._flight = flight = self._take()
                if flight.messages is None and await self._store.extend(self._leg(flight)):
                    self._flight = None
                    self._take_in(flight.events)
            if self._flight is not None or self._buffer:
                await self._flush()
        finally:
            lock.release()

    async def append(self, *bodies: AnyBody, blobs: Sequence[Blob] = ()) -> None:
        """Add events and wait until they are durable."""
        self.add(*bodies, blobs=blobs)
        await self.flush()

    async def transact(self, work: Work, *, last_seen: int | None = None, on_placed: OnPlaced | None = None) -> None:
        """Commit the writes of `work` on the store's connection together with the events that it returns, or neither.

        See `Store.transact`. After ConnectionLost it is unknown whether this was committed; `refresh` shows it. With
        `last_seen`, this raises StoreBusy, with nothing written, if others wrote events after that sequence.
        """

        def checked(connection: Any) -> tuple[Sequence[AnyBody], Sequence[Blob]]:
            bodies, blobs = work(connection)
            _check_types(bodies)
            return self._check(bodies), blobs

        async with self._lock:
            await self._flush()
            if last_seen is not None and last_seen < self.last_seen:
                raise StoreBusy(
                    reason=f"others wrote to {self.run} first", fix="Retry: call `refresh` and decide again."
                )
            if on_placed is not None:
                on_placed()
            done = await self._store.transact(
                self.run,
                after=self.head,
                fence=self.fence,
                actor=self._actor,
                work=checked,
                is_current=last_seen is not None,
            )
            self._hear(done.missed)
            self._take_in(done.events)
            self._check([sealed.body for sealed in done.events], keep=True)

    async def append_together(
        self, *bodies: AnyBody, legs: Sequence[Leg], blobs: Sequence[Blob] = (), on_placed: OnPlaced | None = None
    ) -> Taken | None:
        """Append events to this run and, in the same transaction, the `legs` for other runs: both or neither.

        If a run to be created already exists, nothing is written, and this returns `Taken`.
        """
        _check_types(bodies, legs)
        bodies = self._check(bodies)
        async with self._lock:
            done = await self._send_last(bodies, tuple(legs), blobs, on_placed=on_placed)
            while isinstance(done, Missed):  # The blobs are already buffered.
                done = await self._send_last(bodies, tuple(legs), (), on_placed=on_placed)
            if isinstance(done, Taken):
                return done
            self._check(bodies, keep=True)
            return None

    async def append_with_command(
        self, *bodies: AnyBody, leg: SendCommands, last_seen: int | None = None, blobs: Sequence[Blob] = ()
    ) -> Missed | bool:
        """Append events to this run and send a command to another stream, in the same transaction: both or neither.

        Returns `Missed` if the other stream refuses the command because of what others wrote there. With `last_seen`,
        returns False, with nothing written, if others wrote to this run after that sequence.
        """
        _check_types(bodies, (leg,))
        async with self._lock:
            while True:
                done = await self._send_last(bodies, (leg,), blobs, last_seen)
                blobs = ()  # The blobs are already buffered.
                if isinstance(done, Missed) and done.run == leg.run:
                    return done
                if not isinstance(done, Missed) or last_seen is not None:
                    return isinstance(done, Appended)

    async def append_if_current(
        self,
        *bodies: AnyBody,
        last_seen: int,
        blobs: Sequence[Blob] = (),
        legs: Sequence[Leg] = (),
        on_placed: OnPlaced | None = None,
    ) -> bool:
        """Append the buffered events and then these, unless others wrote events after `last_seen`.

        Returns whether they were appended. If it returns False, the state contains the new events, and the caller must
        decide again. `legs` send commands to other runs in the same transaction.
        """
        _check_types(bodies, legs)
        async with self._lock:
            done = await self._send_last(bodies, tuple(legs), blobs, last_seen, on_placed)
            assert not isinstance(done, Taken), "legs of append_if_current create no runs"
            return isinstance(done, Appended)

    async def _send_last(
        self,
        bodies: tuple[AnyBody, ...],
        legs: tuple[Leg, ...],
        blobs: Sequence[Blob],
        last_seen: int | None = None,
        on_placed: OnPlaced | None = None,
    ) -> Appended | Missed | Taken | None:
        """Send the buffer, then these bodies. If exactly these were sent and the reply was lost, repeat that append."""
        landed = next((each for each in self._landed if each is bodies[0]), None)
        if landed is not None:
            self._landed = [each for each in self._landed if each is not landed]
            return Appended((self.head,))  # Another call has sent it in the meantime.
        flight = self._flight
        if flight is not None:
            done = await self._send(flight)
            if (flight.last, flight.legs) == (bodies, legs):
                return done
            self._note_landed(flight, done)
        if last_seen is not None and last_seen < self.last_seen:
            return None
        self._blobs.extend(blobs)
        return await self._send(self._take(bodies, legs, on_placed))

    async def refresh(self) -> None:
        """Fold events that others wrote, without writing anything."""
        async with self._lock:
            if (flight := self._flight) is not None:
                self._note_landed(flight, await self._send(flight))
            while page := await self._store.read(self.run, after=self.head.seq):
                verify(page[:1], self.head)  # A new run may have the id of a pruned one.
                self._hear([Sealed(event, self._store.decode(event)) for event in page])

    def abandon(self) -> None:
        """Discard the append that was refused, and everything buffered after it."""
        self._flight = None
        self._buffer.clear()
        self._blobs.clear()

    async def keep_late(self) -> None:
        """After LeaseLost, store the events that could not be written, as late results outside the log."""
        async with self._lock:
            flight, self._flight = self._flight or self._take(), None
            rest = self._take()
            if flight.events or rest.events:
                await self._store.keep_late(flight.events + rest.events, blobs=(*flight.blobs, *rest.blobs))

    @property
    def is_snapshot_due(self) -> bool:
        """Whether the events since the last snapshot outweigh it.

        None is due while events are pending: a snapshot must contain stored events only, and the learner may already
        know pending ones.
        """
        is_long = snapshot_due(
            tail_bytes=self._tail_bytes, tail_events=self._tail_events, snapshot_bytes=self._snapshot_bytes
        )
        return is_long and not self.pending

    async def snapshot(self) -> None:
        """Save the state as a snapshot, and delete some older snapshots if there are too many."""
        head, state, learner = self.head, self.state, self._learner
        self._tail_bytes = self._tail_events = 0
        if learner is not None and learner.is_partial:
            memory = await self._dump_whole(learner, head)
        else:
            memory = learner.dump() if learner is not None else None
        self._snapshot_bytes = await save(self._store, head, state, memory)
        too_many = snapshots_to_thin([seq for seq, _ in await self._store.snapshots(self.run)])
        if too_many:
            await self._store.drop_snapshots(self.run, too_many)

    async def _dump_whole(self, learner: Learner, head: Head) -> bytes | None:
        """Return the dump of a learner that has forgotten a part of the log: learn it again."""
        fresh = learner.fresh()
        folder = LogFolder(self._store, Fold(None), fresh)
        async for event in self._store.log(self.run, upto=head.seq):
            folder.add(event)
        folder.end()
        if self.head is head:
            learner.recover(fresh)
        return fresh.dump()

    def _check(self, bodies: Sequence[AnyBody], *, keep: bool = False) -> tuple[AnyBody, ...]:
        """Return the bodies, with the position in the plan after each patch.

        Raises InvalidPatch for a patch that does not match the state. With `keep`, later checks include it.
        """
        ahead = self._ahead if keep and len(bodies) == 1 else self._ahead.copy()
        checked = tuple(_look_ahead(ahead, body) for body in bodies)
        if keep:
            self._ahead = ahead
        return checked

    def _take(
        self, last: tuple[AnyBody, ...] = (), legs: tuple[Leg, ...] = (), on_placed: OnPlaced | None = None
    ) -> _Flight:
        """Seal the buffer, then the given bodies."""
        gathered, blobs = tuple(self._buffer), tuple(self._blobs)
        bodies, messages = _addressed(gathered, self._talk)
        now, codec = self._now(), self._store.codec
        events = seal_all(
            self.head, self.run, (*bodies, *last), time=now, fence=self.fence, actor=self._actor, codec=codec
        )
        self._waits_since = None
        self._buffer.clear()
        self._blobs.clear()
        if on_placed is not None:
            on_placed()
        return _Flight(events, gathered, last, blobs, legs, messages, on_placed)

    def _leg(self, flight: _Flight) -> Extend:
        return Extend(run=self.run, after=self.head, fence=self.fence, events=flight.events)

    async def _flush(self) -> None:
        while self._flight or self._buffer:
            flight = self._flight or self._take()
            done = await self._send(flight)
            if flight.last:
                self._note_landed(flight, done)

    def _note_landed(self, flight: _Flight, done: Appended | Missed | Taken) -> None:
        """Remember an append that was sent again on behalf of a caller who lost its reply."""
        if flight.last and isinstance(done, Appended):
            self._landed.append(flight.last[0])

    async def _send(self, flight: _Flight) -> Appended | Missed | Taken:
        """Send, and fold what was written: these events, or those that others wrote first.

        Buffered bodies that were not written return to the buffer. If others wrote to the conversation first, this
        sends everything again, with the messages after theirs.
        """
        while True:
            self._flight = flight
            legs = flight.legs if flight.messages is None else (flight.messages, *flight.legs)
            done = await self._store.append(self._leg(flight), *legs, blobs=flight.blobs)
            self._flight = None
            if isinstance(done, Appended):
                if self._talk is not None and flight.messages is not None:
                    self._talk.landed(flight.messages)
                self._take_in(flight.events)
                return done
            self._buffer[:0] = flight.gathered
            self._blobs[:0] = flight.blobs
            if self._talk is None or flight.messages is None or not self._talk.hear(done):
                break
            flight = self._take(flight.last, flight.legs, flight.on_placed)
        if isinstance(done, Missed) and done.run == self.run:
            self._hear(done.events)
        return done

    def _hear(self, events: Sequence[Sealed]) -> None:
        """Fold events that others wrote, or that were written here with a lost reply."""
        if not events:
            return
        self._take_in(events)
        self.last_seen = self.head.seq
        self.on_heard()
        if any(isinstance(sealed.body, _CHANGING) for sealed in events):
            self._ahead = self._fold.working.copy()
            for body in self.pending:
                if not isinstance(body, OutgoingMessages):
                    _look_ahead(self._ahead, body)

    def _take_in(self, events: Sequence[Sealed]) -> None:
        fold, learner = self._fold, self._learner
        first, last = events[0], events[-1]
        if len(events) == 2 and type(first.body) is b.StepStarted and type(last.body) is b.StepCompleted:
            fold.add_step(first.event, first.body, last.event, last.body)
            if learner is not None:
                learner.learn_step(first.event, first.body, last.event, last.body, fold)
        else:
            for sealed in events:
                fold.add(sealed.event, sealed.body)
                if learner is not None:
                    learner.learn(sealed.event, sealed.body, fold)
        for sealed in events:
            self._tail_bytes += len(sealed.event.body)
        self._tail_events += len(events)
        self.head = events[-1].event.head


def _check_types(bodies: Sequence[AnyBody], legs: Sequence[Leg] = ()) -> None:
    """Raise InvalidArgument for a body with a wrong type, or InvalidAppend for a malformed leg, before sending."""
    for body in bodies:
        VOCABULARY.check(body)
    for leg in legs:
        check_leg(leg)


def _addressed(
    gathered: Sequence[AnyBody | OutgoingMessages], talk: ConversationWriter | None
) -> tuple[Sequence[AnyBody], Leg | None]:
    """Return the bodies for the run's log, and the leg of the messages among what was buffered."""
    if talk is None:  # the run has said nothing
        return gathered, None  # type: ignore[return-value] # There are no messages.
    bodies, messages = list[AnyBody](), list[AnyBody]()
    for each in gathered:
        if isinstance(each, OutgoingMessages):
            bodies.append(each.note(talk.next + len(messages)))
            messages += each.bodies
        else:
            bodies.append(each)
    return bodies, talk.leg(messages) if messages else None


_CHANGING = (b.StatePatched, b.ArtifactStored, b.RiskFlagged, b.BudgetExtended)


def _look_ahead(working: Working, body: AnyBody) -> AnyBody:
    """Apply a body to the expected working state, so that an invalid patch is refused before it is stored.

    Returns the body; one that changes the plan says where the plan then is, so that rows need not fold the log.
    """
    match body:
        case b.StatePatched():
            working.apply(body.patch)
            if changes_plan(body.patch):
                return replace(body, item=working.position, items=len(working.plan))
        case b.ArtifactStored():
            working.put_stored(body)
        case b.RiskFlagged():
            working.flag(body.flag, body.detail)
        case _:
            pass
    return body
