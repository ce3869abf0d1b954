"""The log of one run, as its owner writes it: in order, one append in flight, conflicts resolved.

Bodies gather in a buffer while an append is on its way and go out in the next. If commands slipped in between, they are
folded first and the owner's events are sealed again after them. An append whose reply was lost is repeated as it was
sealed, and lands once. What must not follow an unseen command (`run.waiting`, the end of a run, the use of a standing
permission) goes through `append_if_current`, with what its writer had heard when it decided.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

from limpet.errors import StoreBusy
from limpet.events import VOCABULARY, AnyBody, Sealed, seal_all, verify
from limpet.events import bodies as b
from limpet.journal.conversation import OutgoingMessages
from limpet.journal.snapshots import Learner, Loaded, load_whole, save
from limpet.policy.checkpoint import snapshot_due
from limpet.policy.retention import snapshots_to_thin
from limpet.state import Fold, RunState
from limpet.state.patch import Working
from limpet.stores import Appended, Extend, Leg, Missed, Store, Taken
from limpet.stores.blobs import Blob
from limpet.stores.writes import Claimed, Work, check_leg

__all__ = ["Journal"]

MUCH = 500


class _Flight(NamedTuple):
    """What is on its way, or was when an error came: what had gathered, and after it what is not sent by itself."""

    events: tuple[Sealed, ...]
    gathered: tuple[AnyBody, ...]
    last: tuple[AnyBody, ...]
    blobs: tuple[Blob, ...]
    legs: tuple[Leg, ...] = ()
    """What happens to other runs in the same append."""


class Journal:
    """A claimed run's log: what it says so far, and the way to add to it."""

    def __init__(
        self, store: Store, claimed: Claimed, loaded: Loaded, now: Callable[[], int], learner: Learner | None = None
    ) -> None:
        assert claimed.row.worker is not None
        self.run, self.fence, self._actor = claimed.row.id, claimed.row.fence, claimed.row.worker
        self.head = claimed.row.head
        self.heard = self.head.seq
        """The last event that came from elsewhere, as far as this journal has folded."""
        self._store = store
        self._now = now
        self._learner = learner
        self._fold = Fold(loaded.state)
        self._ahead = Working(loaded.state.working)
        self._buffer: list[AnyBody] = []
        self._blobs: list[Blob] = []
        self._flight: _Flight | None = None
        self._landed: list[AnyBody] = []
        """What others sent again after its reply was lost, and its writer will ask for."""
        self._turn = asyncio.Lock()
        self._snapshot_bytes = loaded.snapshot_bytes
        self._tail_bytes, self._tail_events = loaded.tail_bytes, loaded.tail_events

    @classmethod
    async def open(
        cls, store: Store, claimed: Claimed, now: Callable[[], int], *, learner: Learner | None = None
    ) -> Self:
        """The journal of a run that was just claimed; `now` is an estimate of the store's clock.

        `learner` is told every event of the log, from the first to the last, whoever wrote it, as soon as it is known
        to be stored: for whoever must know more than the state. A snapshot may have kept what it has learnt.
        """
        loaded = await load_whole(store, claimed.row.id, at_most=claimed.row.seq, learner=learner)
        return cls(store, claimed, loaded, now, learner)

    @property
    def state(self) -> RunState:
        """What the log folds to, as far as it is known to be stored."""
        return self._fold.freeze()

    @property
    def fold(self) -> Fold:
        """The same under construction; to be looked at only."""
        return self._fold

    def add(self, *bodies: AnyBody, blobs: Sequence[Blob] = ()) -> None:
        """Put events into the log with the next flush, and the blobs that they refer to into the store.

        Raises InvalidArgument or InvalidPatch, with nothing added, for a wrong type or a wrong patch.
        """
        _check_types(bodies)
        self._check(bodies, keep=True)
        self._buffer.extend(bodies)
        self._blobs.extend(blobs)

    @property
    def pending(self) -> Sequence[AnyBody]:
        """What was added and is not known to be stored."""
        return (*(self._flight.gathered if self._flight is not None else ()), *self._buffer)

    @property
    def has_much(self) -> bool:
        """Whether so much has gathered that it should go out, though nobody waits for it."""
        return len(self._buffer) >= MUCH

    async def flush(self) -> None:
        """Return when everything added so far is durable; raises LeaseLost if the run is somebody else's now."""
        async with self._turn:
            await self._flush()

    async def append(self, *bodies: AnyBody, blobs: Sequence[Blob] = ()) -> None:
        """Add events and wait until they are durable."""
        self.add(*bodies, blobs=blobs)
        await self.flush()

    async def transact(self, work: Work, *, heard: int | None = None) -> None:
        """Commit what `work` writes on the store's connection together with the events that it returns, or neither.

        See `Store.transact`. If it raises ConnectionLost nobody knows; `refresh` shows whether it took place. With
        `heard`, it raises StoreBusy, with nothing written, if something came from elsewhere since then.
        """

        def checked(connection: Any) -> tuple[Sequence[AnyBody], Sequence[Blob]]:
            bodies, blobs = work(connection)
            _check_types(bodies)
            self._check(bodies)
            return bodies, blobs

        async with self._turn:
            await self._flush()
            if heard is not None and heard < self.heard:
                raise StoreBusy(reason="something came from elsewhere")
            done = await self._store.transact(
                self.run,
                after=self.head,
                fence=self.fence,
                actor=self._actor,
                work=checked,
                is_current=heard is not None,
            )
            self._hear(done.missed)
            self._take_in(done.events)
            self._check([sealed.body for sealed in done.events], keep=True)

    async def append_together(self, *bodies: AnyBody, legs: Sequence[Leg], blobs: Sequence[Blob] = ()) -> Taken | None:
        """Append, and do something to other runs, in one transaction: both happen or neither.

        If another run was to be created and there is one of that id, nothing was written, and it is given back.
        """
        _check_types(bodies, legs)
        self._check(bodies)
        async with self._turn:
            done = await self._send_last(bodies, tuple(legs), blobs)
            while isinstance(done, Missed):
                done = await self._send_last(bodies, tuple(legs), ())  # the blobs have gathered
            if isinstance(done, Taken):
                return done
            self._check(bodies, keep=True)
            return None

    async def say(self, saying: OutgoingMessages) -> None:
        """Append to a conversation, and note it here, in one transaction; whoever writes there meanwhile comes first.

        Repeating it after an error is safe, with the same object.
        """
        await saying.talk.look()
        blobs: Sequence[Blob] = saying.blobs
        async with self._turn:
            while True:
                note, leg = saying.prepare()
                _check_types((note,), (leg,))
                done = await self._send_last((note,), (leg,), blobs)
                blobs = ()  # they have gathered
                match done:
                    case Appended():
                        saying.talk.landed(leg)
                        return
                    case Taken():
                        saying.again(done.row)
                    case Missed() if done.run == saying.talk.id:
                        saying.again(done.events)
                    case _:
                        pass

    async def append_if_current(
        self, *bodies: AnyBody, heard: int, blobs: Sequence[Blob] = (), legs: Sequence[Leg] = ()
    ) -> bool:
        """Append, after what has gathered, unless something came from elsewhere since `heard`; then say false.

        Whoever gets false looks at the state, which knows more by then, and decides anew. `legs` tell other runs
        something in the same transaction.
        """
        _check_types(bodies, legs)
        async with self._turn:
            done = await self._send_last(bodies, tuple(legs), blobs, heard)
            assert not isinstance(done, Taken), "other runs are told something, not created"
            return isinstance(done, Appended)

    async def _send_last(
        self, bodies: tuple[AnyBody, ...], legs: tuple[Leg, ...], blobs: Sequence[Blob], heard: int | None = None
    ) -> Appended | Missed | Taken | None:
        """Send what has gathered and these after it; repeated, if just this was sent and its reply was lost."""
        landed = next((each for each in self._landed if each is bodies[0]), None)
        if landed is not None:
            self._landed = [each for each in self._landed if each is not landed]
            return Appended((self.head,))  # somebody else sent it meanwhile
        flight = self._flight
        if flight is not None:
            done = await self._send(flight)
            if (flight.last, flight.legs) == (bodies, legs):
                return done
            self._note_landed(flight, done)
        if heard is not None and heard < self.heard:
            return None
        self._blobs.extend(blobs)
        return await self._send(self._take(bodies, legs))

    async def refresh(self) -> None:
        """Fold what came from elsewhere, without writing anything."""
        async with self._turn:
            if (flight := self._flight) is not None:
                self._note_landed(flight, await self._send(flight))
            while page := await self._store.read(self.run, after=self.head.seq):
                verify(page[:1], self.head)  # another run may have taken the id of a pruned one
                self._hear([Sealed(event, self._store.decode(event)) for event in page])

    def abandon(self) -> None:
        """Give up what was refused, and what gathered behind it: nobody would take it."""
        self._flight = None
        self._buffer.clear()
        self._blobs.clear()

    async def keep_late(self) -> None:
        """After LeaseLost: keep what could not be written, beside the log."""
        async with self._turn:
            flight, self._flight = self._flight or self._take(), None
            rest = self._seal(self._buffer)
            self._buffer.clear()
            if flight.events or rest:
                await self._store.keep_late(flight.events + rest, blobs=(*flight.blobs, *self._blobs))
            self._blobs.clear()

    @property
    def is_snapshot_due(self) -> bool:
        """Whether the tail has outgrown the last snapshot; not while the learner may know what is not stored yet."""
        return not self.pending and snapshot_due(
            tail_bytes=self._tail_bytes, tail_events=self._tail_events, snapshot_bytes=self._snapshot_bytes
        )

    async def snapshot(self) -> None:
        """Cache the state, and thin out what was cached if that is too much by now."""
        memory = self._learner.dump() if self._learner is not None else None
        self._tail_bytes = self._tail_events = 0
        self._snapshot_bytes = await save(self._store, self.head, self.state, memory)
        too_many = snapshots_to_thin([seq for seq, _ in await self._store.snapshots(self.run)])
        if too_many:
            await self._store.drop_snapshots(self.run, too_many)

    def _check(self, bodies: Sequence[AnyBody], *, keep: bool = False) -> None:
        """Refuse a patch that does not fit what came before it; with `keep`, what comes next is checked against it."""
        ahead = self._ahead if keep and len(bodies) == 1 else Working(self._ahead.freeze())
        for body in bodies:
            _look_ahead(ahead, body)
        if keep:
            self._ahead = ahead

    def _take(self, last: tuple[AnyBody, ...] = (), legs: tuple[Leg, ...] = ()) -> _Flight:
        """Seal what has gathered, and what comes after it."""
        gathered, blobs = tuple(self._buffer), tuple(self._blobs)
        self._buffer.clear()
        self._blobs.clear()
        return _Flight(self._seal((*gathered, *last)), gathered, last, blobs, legs)

    def _seal(self, bodies: Sequence[AnyBody]) -> tuple[Sealed, ...]:
        now, codec = self._now(), self._store.codec
        return seal_all(self.head, self.run, bodies, time=now, fence=self.fence, actor=self._actor, codec=codec)

    async def _flush(self) -> None:
        while self._flight or self._buffer:
            flight = self._flight or self._take()
            self._note_landed(flight, await self._send(flight))

    def _note_landed(self, flight: _Flight, done: Appended | Missed | Taken) -> None:
        """What was sent here for somebody who lost the reply."""
        if flight.last and isinstance(done, Appended):
            self._landed.append(flight.last[0])

    async def _send(self, flight: _Flight) -> Appended | Missed | Taken:
        """Send once, and fold what was written: these events, or what others wrote first.

        What had gathered, and was not written, gathers again.
        """
        self._flight = flight
        leg = Extend(run=self.run, after=self.head, fence=self.fence, events=flight.events)
        done = await self._store.append(leg, *flight.legs, blobs=flight.blobs)
        self._flight = None
        if isinstance(done, Appended):
            self._take_in(flight.events)
            return done
        self._buffer[:0] = flight.gathered
        self._blobs[:0] = flight.blobs
        if isinstance(done, Missed) and done.run == self.run:
            self._hear(done.events)
        return done

    def _hear(self, events: Sequence[Sealed]) -> None:
        """Fold what came from elsewhere, or from here with a reply that was lost."""
        if not events:
            return
        self._take_in(events)
        self.heard = self.head.seq
        if any(isinstance(sealed.body, _CHANGING) for sealed in events):
            self._ahead = Working(self.state.working)
            for body in self.pending:
                _look_ahead(self._ahead, body)

    def _take_in(self, events: Sequence[Sealed]) -> None:
        for sealed in events:
            self._fold.add(sealed.event, sealed.body)
            if self._learner is not None:
                self._learner.learn(sealed.event, sealed.body, self._fold)
            self._tail_bytes += len(sealed.event.body)
        self._tail_events += len(events)
        self.head = events[-1].event.head


def _check_types(bodies: Sequence[AnyBody], legs: Sequence[Leg] = ()) -> None:
    """Refuse what could not be read again, before anything of it is on its way."""
    for body in bodies:
        VOCABULARY.check(body)
    for leg in legs:
        check_leg(leg)


_CHANGING = (b.StatePatched, b.ArtifactStored, b.RiskFlagged)


def _look_ahead(working: Working, body: AnyBody) -> None:
    """What the working state will be, so that a patch that does not fit is refused before it is stored."""
    match body:
        case b.StatePatched():
            working.apply(body.patch)
        case b.ArtifactStored():
            working.put_stored(body)
        case b.RiskFlagged():
            working.flag(body.flag)
        case _:
            pass
