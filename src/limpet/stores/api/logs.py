"""Logs: append to them, create and command runs, and read their events."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from limpet.errors import IdConflict, InvalidAppend, LimpetError, StoreBusy, Unsupported
from limpet.events import AnyBody, Event, Head, Payload, Sealed, blobs_of
from limpet.events import bodies as b
from limpet.ids import check_id
from limpet.stores import writes
from limpet.stores.api.base import LARGEST_PAGE, check_page
from limpet.stores.api.payloads import Payloads
from limpet.stores.append import plan_extension
from limpet.stores.backend import Outcome
from limpet.stores.blobs import Blob
from limpet.stores.fork_reads import StepRange
from limpet.stores.row_encryption import reveal_row
from limpet.stores.rows import Late, RunRow

__all__ = ["LogPosition", "Logs"]


class LogPosition(NamedTuple):
    """Position of a log and its fence, with the status, agent and version of the run."""

    seq: int
    fence: int
    status: str
    agent: str = ""
    version: str = ""


class _Created(NamedTuple):
    """A run that was to be created."""

    row: RunRow
    is_new: bool
    claimed: writes.Claimed | None = None


class Logs(Payloads):
    """Logs of a store."""

    async def append(self, *legs: writes.Leg, blobs: Sequence[Blob] = ()) -> writes.AppendOutcome:
        """Write all legs together or none, with their blobs. After `Appended`, they are durable.

        Repeating an append whose reply was lost is safe: events that are already in the log are not written again.
        """
        for leg in legs:
            writes.check_leg(leg)
            if isinstance(leg, writes.Extend):
                self._check_codec(leg.events)
        if len(legs) == 1 and not blobs and isinstance(leg, writes.Extend) and await self.extend(leg):
            return writes.Appended((leg.events[-1].event.head,))
        small = await self._small(blobs) if blobs else ()
        done = await self._submit(writes.Append(legs, small))
        if isinstance(done, writes.Appended):
            self._recent_values.note_stored(blob.id for blob in small)
            if done.ready:
                self.on_ready(done.ready)
        return writes.Taken(reveal_row(self.codec, done.row), done.first) if isinstance(done, writes.Taken) else done

    async def extend(self, leg: writes.Extend) -> bool:
        """Add events that change nothing but the log, and that their writer has checked; return whether this was done.

        If it was not, `append` does it, or finds out why not.
        """
        planned = plan_extension(leg)
        if not planned.is_plain:
            return False
        try:
            return await self._writer.submit(planned.extension)
        except StoreBusy:
            return False

    async def create(
        self,
        run: str,
        body: b.RunCreated | b.RunForked,
        *,
        actor: str,
        alike: Callable[[Payload], bool] | None = None,
        blobs: Sequence[Blob] = (),
    ) -> tuple[RunRow, bool]:
        """Create a run, or return the existing one; the second value is whether it is new.

        Raises IdConflict if the id exists with another agent, input or options. `alike` may accept a stored input whose
        bytes differ but mean the same to today's code. A fork shares the events of its origin up to the fork point;
        they are not copied.
        """
        created = await self._create(writes.Create(run=run, bodies=(body,), actor=actor), alike, blobs)
        return created.row, created.is_new

    async def _create(
        self, leg: writes.Create, alike: Callable[[Payload], bool] | None, blobs: Sequence[Blob]
    ) -> "_Created":
        run, body = leg.run, leg.bodies[0]
        assert isinstance(body, b.RunCreated | b.RunForked)
        match await self.append(leg, blobs=blobs):
            case writes.Taken(row, first):
                if not _same_start(first, body, alike):
                    raise IdConflict(what="run", id=run, reason=f"by agent {row.agent!r} with a different input")
                if not _same_options(first, body):
                    raise IdConflict(what="run", id=run, reason=f"by agent {row.agent!r} with other options")
                return _Created(row, is_new=False)
            case writes.Appended(created=RunRow() as row, claimed=claimed):
                return _Created(row, is_new=True, claimed=claimed)
            case _:  # The events were already in the log: a reply was lost.
                return _Created(await self.get(run), is_new=True)

    async def send_commands(
        self,
        run: str,
        *bodies: AnyBody,
        actor: str,
        blobs: Sequence[Blob] = (),
        judged: tuple[str, ...] | None = None,
    ) -> Head:
        """Send commands to a run; they are in its log when this returns. Raises if one is refused.

        `judged` is whom a request was for when its answer was checked. If it is for others by now, the answer is
        refused.
        """
        done = await self.append(writes.SendCommands(run=run, bodies=bodies, actor=actor, judged=judged), blobs=blobs)
        assert isinstance(done, writes.Appended)
        assert done.heads[0] is not None
        return done.heads[0]

    async def send_checked(self, run: str, *bodies: AnyBody, actor: str, seq: int) -> bool:
        """Send commands that were checked when the run's last event was `seq`, and return whether they were sent.

        Nothing is written if others wrote to the run since. A repeated command counts as sent.
        """
        done = await self.append(writes.SendCommands(run=run, bodies=bodies, actor=actor, seq=seq))
        return not isinstance(done, writes.Missed)

    async def transact(
        self, run: str, *, after: Head, fence: int, actor: str, work: writes.Work, is_current: bool = False
    ) -> writes.Transacted:
        """Commit the writes of `work` on the given connection together with the events that it returns, or neither.

        `work` is a plain function that must not wait for anything else. It gets an apsw or psycopg connection inside a
        transaction, which it cannot end, and must not touch Limpet's tables. If it raises, nothing is written, and the
        exception is raised here. It may be called again if the connection was lost. With `is_current`, this raises
        StoreBusy and writes nothing if others wrote after the head.
        """
        op = writes.Transact(run=check_id(run), after=after, fence=fence, actor=actor, work=work, is_current=is_current)
        match self.capabilities.transactions:
            case "none":
                raise Unsupported(what="transactions")
            case "between":
                done = await self._writer.submit(op)
            case "beside":
                done = await self._beside(op)
        if isinstance(done, writes.Raised):
            raise done.error
        return done

    async def keep_late(self, events: Sequence[Sealed], *, blobs: Sequence[Blob] = ()) -> None:
        """Store late events of a superseded worker, beside the log."""
        self._check_codec(events)
        await self._submit(writes.KeepLate(events=tuple(events), blobs=await self._small(blobs)))

    async def load(self, events: Sequence[Event], *, actor: str) -> RunRow:
        """Load a whole log from another store; its blobs must be stored first. A run that has not ended is paused."""
        if not events:
            raise InvalidAppend(run="", reason="a log must have at least one event")
        for event in events:
            check_id(event.run)
            if bool(event.key_id) != self.codec.is_private:
                raise InvalidAppend(run=event.run, reason=f"event {event.seq} was not sealed by this store's codec")
        return reveal_row(self.codec, await self._submit(writes.Load(events=tuple(events), actor=actor)))

    async def has_command(self, run: str, command: str) -> bool:
        """Return whether a command with this id is in a run's log."""
        return any(known == command for _, known in await self._ask(lambda: self._backend.commands(run)))

    async def rows(self, runs: Sequence[str]) -> dict[str, RunRow]:
        """Return the rows of some streams; those that do not exist are omitted."""
        return {row.id: reveal_row(self.codec, row) for row in await self._found(runs)}

    async def positions(self, runs: Sequence[str]) -> dict[str, LogPosition]:
        """Return the positions of some runs' logs; runs that do not exist are omitted."""
        return {
            row.id: LogPosition(row.seq, row.fence, row.status, row.agent, row.agent_version)
            for row in await self._found(runs)
        }

    async def _found(self, runs: Sequence[str]) -> list[RunRow]:
        found = await self._ask(lambda: [self._backend.get(run) for run in runs])
        return [row for row in found if row is not None]

    async def read(
        self, run: str, *, after: int = 0, before: int | None = None, limit: int = LARGEST_PAGE, backwards: bool = False
    ) -> list[Event]:
        """Return a page of events with sequences strictly between `after` and `before`, in order or backwards."""
        check_page(limit)
        return await self._ask(lambda: self._known(self._backend.read(run, after, before, limit, backwards)))

    async def read_steps(self, run: str, steps: StepRange) -> list[Event]:
        """Return all events of some steps, in order; `LogView` turns them into steps.

        Events that concern all steps (a fork) are included.
        """
        check_page(steps.limit, LARGEST_PAGE + 1)  # one more, to find out whether there are more
        return await self._ask(lambda: self._known(self._backend.read_steps(run, steps)))

    async def log(self, run: str, *, after: int = 0, upto: int | None = None) -> AsyncIterator[Event]:
        """Yield a whole log, or up to an event, page by page."""
        async for page in self.pages(run, after=after, upto=upto):
            for event in page:
                yield event

    async def pages(self, run: str, *, after: int = 0, upto: int | None = None) -> AsyncIterator[list[Event]]:
        """Yield the pages of a log. Reading a long log takes less time by page than by event."""
        before = None if upto is None else upto + 1
        while True:
            page = await self.read(run, after=after, before=before)
            yield page
            if len(page) < LARGEST_PAGE:
                return
            after = page[-1].seq

    async def late(self, run: str) -> list[Late]:
        """Return the late events of a run."""
        return await self._ask(lambda: self._backend.late(run))

    async def references(self, run: str) -> list[str]:
        """Return the blobs that a stream refers to."""
        return await self._ask(lambda: self._backend.references(run))

    async def _beside(self, op: writes.Transact) -> writes.Transacted | writes.Raised:
        done: Outcome = await self._handover.call_at_length(lambda: self._backend.transact(op, self.codec))
        if isinstance(done, LimpetError):
            raise done
        self._watching.changed()
        transacted: writes.Transacted | writes.Raised = done
        return transacted

    async def _late_blobs(self, run: str) -> list[str]:
        """Return the blobs that late events refer to."""
        return [blob for late in await self.late(run) for blob in blobs_of(self.decode(late.event))]


def _same_start(stored: AnyBody, wanted: b.RunCreated | b.RunForked, alike: Callable[[Payload], bool] | None) -> bool:
    if isinstance(wanted, b.RunForked):
        return isinstance(stored, b.RunForked) and stored == replace(
            wanted, deadline=stored.deadline, by=stored.by, via=stored.via, asked=stored.asked
        )
    if not isinstance(stored, b.RunCreated) or (stored.agent, stored.effects) != (wanted.agent, wanted.effects):
        return False
    return stored.input == wanted.input or (alike is not None and alike(stored.input))


def _same_options(stored: AnyBody, wanted: b.RunCreated | b.RunForked) -> bool:
    """Return whether a repeated start has the options of the first; True if one of them does not tell."""
    return not isinstance(stored, type(wanted)) or not (stored.asked and wanted.asked) or stored.asked == wanted.asked
