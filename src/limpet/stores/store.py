"""A store, as everything above sees it: asynchronous, in words of the domain, over any backend.

Writes go through one writer, which groups them; reads go beside it. The event loop never waits for a disk.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Self

from limpet.errors import InputConflict, InvalidValue, NotFound
from limpet.events import AnyBody, Event, Head, Payload, Sealed
from limpet.events import bodies as b
from limpet.ids import check_id
from limpet.stores import ops
from limpet.stores.backend import Backend, Capabilities
from limpet.stores.handover import Handover, Threads
from limpet.stores.rows import Late, Page, RequestFilter, RequestRow, RunFilter, RunRow, Snapshot, WorkerRow
from limpet.stores.watch import Watch, Watching
from limpet.stores.writer import Writer

__all__ = ["LARGEST_PAGE", "Store"]

LARGEST_PAGE = 1_000
EVERYTHING = RunFilter()
OPEN = RequestFilter()


class Store:
    """Where logs live. Use as `async with`, or `await store.open()` and `await store.close()`."""

    def __init__(self, backend: Backend, handover: Handover | None = None) -> None:
        self._backend = backend
        self._handover = handover or Threads()
        self._watching = Watching(backend, self._handover)
        self._writer = Writer(self._handover.lane("limpet-write"), backend.commit, self._watching)

    @property
    def capabilities(self) -> Capabilities:
        """What this store has."""
        return self._backend.capabilities

    async def open(self) -> Self:
        """Connect, and make or migrate the schema."""
        await self._writer.mend(self._backend.open)
        return self

    async def close(self) -> None:
        """Finish what was asked for, and give up everything that is held."""
        await self._handover.call(self._close)
        self._handover.close()

    async def reopen(self) -> None:
        """After a failure: connect again, verify what is stored, and take work again."""
        await self._writer.mend(self._backend.reopen)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def now(self) -> int:
        """The store's clock, in microseconds."""
        return await self._handover.call(self._backend.now)

    # Writing

    async def append(self, *legs: ops.Leg) -> ops.Appended | ops.Missed | ops.Taken:
        """Write all legs together or none; when it returns `Appended`, they are durable.

        Repeating an append whose reply was lost is safe: what is in the log already is not written again.
        """
        for leg in legs:
            ops.check_leg(leg)
        return await self._writer.submit(ops.Append(legs))

    async def create(
        self, run: str, body: b.RunCreated, *, actor: str, alike: Callable[[Payload], bool] | None = None
    ) -> tuple[RunRow, bool]:
        """The run of this id and whether it is new; one with another agent or input raises InputConflict.

        `alike` may say that a stored input, though its bytes differ, means the same to today's code.
        """
        done = await self.append(ops.Create(run=run, bodies=(body,), actor=actor))
        match done:
            case ops.Taken(row, first):
                if not _same_start(first, body, alike):
                    raise InputConflict(run=run, agent=row.agent)
                return row, False
            case _:
                return await self.get(run), True

    async def tell(self, run: str, *bodies: AnyBody, actor: str) -> Head:
        """Give a run commands, which are in its log when this returns; refused ones raise why."""
        done = await self.append(ops.Tell(run=run, bodies=bodies, actor=actor))
        assert isinstance(done, ops.Appended)
        assert done.heads[0] is not None
        return done.heads[0]

    async def register(self, worker: WorkerRow, *, lease: int) -> ops.Renewal:
        """A worker comes, for a lease in microseconds."""
        check_id(worker.id)
        return await self._writer.submit(ops.Register(worker=worker, lease=lease))

    async def renew(self, worker: str, *, lease: int) -> ops.Renewal:
        """A worker is alive; raises NotFound if it was given up, and must register again."""
        return await self._writer.submit(ops.Renew(worker=worker, lease=lease))

    async def retire(self, worker: str) -> None:
        """A worker goes; what it still has can be claimed at once."""
        await self._writer.submit(ops.Retire(worker=worker))

    async def claim(
        self, worker: str, *, limit: int, concurrency: Mapping[str, int] | None = None
    ) -> tuple[ops.Claimed, ...]:
        """Runnable runs of the agents that the worker serves, longest ready first, each under a higher fence."""
        return await self._writer.submit(ops.Claim(worker=worker, limit=limit, concurrency=dict(concurrency or {})))

    async def release(self, run: str, *, fence: int, worker: str, reason: str) -> None:
        """Give a run back."""
        await self.append(ops.Release(run=run, fence=fence, actor=worker, reason=reason))

    async def save_snapshot(self, run: str, at: Head, data: bytes) -> None:
        """Keep a state of a run as it was at a head."""
        await self._writer.submit(ops.SaveSnapshot(run=run, seq=at.seq, hash=at.hash, data=data))

    async def drop_snapshots(self, run: str, seqs: Sequence[int]) -> None:
        """Delete snapshots; no answer changes."""
        await self._writer.submit(ops.DropSnapshots(run=run, seqs=tuple(seqs)))

    async def keep_late(self, events: Sequence[Sealed]) -> None:
        """Keep what a superseded worker still has, beside the log."""
        await self._writer.submit(ops.KeepLate(events=tuple(events)))

    # Reading

    async def get(self, run: str) -> RunRow:
        """A run's row."""
        row = await self._handover.call(lambda: self._backend.get(run))
        if row is None:
            raise NotFound(what="run", id=run)
        return row

    async def read(
        self, run: str, *, after: int = 0, before: int | None = None, limit: int = LARGEST_PAGE, backwards: bool = False
    ) -> list[Event]:
        """A page of a log: events with sequences strictly between `after` and `before`, in order or backwards."""
        _check_page(limit)
        return await self._handover.call(lambda: self._backend.read(run, after, before, limit, backwards))

    async def log(self, run: str, *, after: int = 0) -> AsyncIterator[Event]:
        """A whole log, page by page."""
        while page := await self.read(run, after=after):
            for event in page:
                yield event
            after = page[-1].seq

    async def runs(self, where: RunFilter = EVERYTHING, *, before: int | None = None, limit: int = 50) -> Page:
        """Runs that match, newest first; pass a page's `next` as `before` to go on."""
        _check_page(limit)
        return await self._handover.call(lambda: self._backend.runs(where, before, limit))

    async def count(self, where: RunFilter = EVERYTHING) -> int:
        """How many runs match."""
        return await self._handover.call(lambda: self._backend.count(where))

    async def counts(self) -> Mapping[tuple[str, str], int]:
        """How many runs there are by (agent, status); kept up to date, never counted."""
        return await self._handover.call(self._backend.counts)

    async def requests(self, where: RequestFilter = OPEN, *, limit: int = LARGEST_PAGE) -> list[RequestRow]:
        """Requests that match, the oldest first."""
        _check_page(limit)
        return await self._handover.call(lambda: self._backend.requests(where, limit))

    async def workers(self) -> list[WorkerRow]:
        """All workers that were not given up yet."""
        return await self._handover.call(self._backend.workers)

    async def snapshot(self, run: str, *, at_most: int | None = None) -> Snapshot | None:
        """The newest snapshot, or the newest not after a sequence."""
        return await self._handover.call(lambda: self._backend.snapshot(run, at_most))

    async def snapshots(self, run: str) -> list[tuple[int, int]]:
        """The (sequence, time) of every snapshot of a run."""
        return await self._handover.call(lambda: self._backend.snapshots(run))

    async def late(self, run: str) -> list[Late]:
        """What came too late for a run."""
        return await self._handover.call(lambda: self._backend.late(run))

    def watch(self) -> Watch:
        """Hear of changes, of other processes too. Use as `with`."""
        return Watch(self._watching)

    def _close(self) -> None:
        self._watching.close()
        self._writer.close()
        self._backend.close()


def _same_start(stored: AnyBody, wanted: b.RunCreated, alike: Callable[[Payload], bool] | None) -> bool:
    if not isinstance(stored, b.RunCreated) or stored.agent != wanted.agent:
        return False
    return stored.input == wanted.input or (alike is not None and alike(stored.input))


def _check_page(limit: int) -> None:
    if not 1 <= limit <= LARGEST_PAGE:
        raise InvalidValue(path="limit", reason=f"a page has 1 to {LARGEST_PAGE} rows")
