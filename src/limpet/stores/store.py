"""The store: an asynchronous interface in terms of the domain, over any backend.

Writes go through one writer, which groups them; reads run in parallel. The event loop never waits for a disk.
"""

import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple, Self, TypeVar

from msgspec import DecodeError, Raw, UnsetType
from msgspec.structs import replace

from limpet.clock import SECOND, Duration, SystemClock, microseconds
from limpet.errors import (
    BlobDamaged,
    ConnectionLost,
    DamagedEvent,
    IdConflict,
    InvalidAppend,
    InvalidArgument,
    InvalidValue,
    LimpetError,
    NewerVersion,
    NotFound,
    StaleServer,
    StoreBusy,
    StoreUnavailable,
    Tampered,
    Unsupported,
    WrongKeys,
)
from limpet.events import PLAIN, AnyBody, Codec, Event, Head, Packed, Payload, Plain, Sealed, blobs_of
from limpet.events import bodies as b
from limpet.ids import Ids, RandomIds, check_id
from limpet.redaction import NOTHING, Redaction
from limpet.secret import hidden
from limpet.stores import writes
from limpet.stores.backend import Backend, Capabilities, Outcome, StoreInfo
from limpet.stores.blobs import (
    CHUNK,
    INLINE,
    Blob,
    is_name,
    pack_blob,
    pack_canonical,
    pack_chunk,
    pack_value,
    unpack_chunk,
    whole_blob,
)
from limpet.stores.cipher import Cipher, MasterKeys, rotated
from limpet.stores.fork_reads import StepRange
from limpet.stores.rebuild import Derived, derive, derive_row, differences, earliest, latest
from limpet.stores.row_encryption import hide_filter, hide_row, reveal_contract, reveal_request, reveal_row
from limpet.stores.rows import (
    ContractRow,
    Feed,
    Late,
    Recent,
    RequestFilter,
    RequestRow,
    RowPage,
    RunFilter,
    RunRow,
    Snapshot,
    WorkerRow,
)
from limpet.stores.search import row_contains
from limpet.stores.threads import Executor, Threads
from limpet.stores.watch import Watch, Watching
from limpet.stores.writer import Writer

__all__ = ["LARGEST_PAGE", "LogPosition", "Store"]

log = logging.getLogger("limpet")

LARGEST_PAGE = 1_000
SCANNED = 10_000
"""Events to examine at a time when searching for some kinds."""
DIGEST = 32
WITHOUT_DIGEST = b'{"version":1,'
PATIENCE = "20s"
PAUSE = SECOND // 10
CLOCK = SystemClock()
T = TypeVar("T")
Events = TypeVar("Events", bound=Sequence[Event])
EVERYTHING = RunFilter()
OPEN = RequestFilter()


class LogPosition(NamedTuple):
    """Position of a log, and its fence."""

    seq: int
    fence: int
    status: str


class Store:
    """A store of logs. Use `async with`, or `await store.open()` and `await store.close()`."""

    def __init__(
        self,
        backend: Backend,
        handover: Executor | None = None,
        *,
        keys: MasterKeys | None = None,
        compress: bool = False,
        ids: Ids | None = None,
        patience: Duration | None = None,
    ) -> None:
        self.patience = microseconds(PATIENCE if patience is None else patience)
        """How long callers wait for an unavailable or busy store, in microseconds."""
        self._backend = backend
        self._handover = handover or Threads()
        self._keys = keys
        self._ids = ids or RandomIds(CLOCK)
        self.codec: Codec = Plain(compress=True) if compress else PLAIN
        """Codec of everything that is written here."""
        self.redaction: Redaction = NOTHING
        """Redaction of values before they are packed. Secrets are hidden in any case."""
        self._compress = compress
        self._watching = Watching(backend, self._handover)
        self._writer = Writer(self._handover.lane("limpet-write"), self._commit, backend.reopen, self._watching)

    @property
    def capabilities(self) -> Capabilities:
        """Features that this store supports."""
        return self._backend.capabilities

    @property
    def failure(self) -> StoreUnavailable | None:
        """Why nothing can be written although the store has waited; a worker process exits then."""
        return self._writer.failure or self._backend.failure

    async def exists(self) -> bool:
        """Return whether a store exists at the URL, opened or not. Never creates one."""
        return await self._ask(self._backend.exists)

    async def open(self) -> Self:
        """Connect, create or migrate the schema, and unwrap the keys."""
        try:
            await self._writer.run_between(self._backend.open)
            await self._unwrap_keys()
            if await self._ask(lambda: self._backend.setting(writes.INDEXED)) is None:
                await self._index_steps()
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Finish pending operations and release all resources."""
        self._backend.interrupt()
        await self._handover.call(self._close)
        self._handover.close()

    async def reopen(self) -> None:
        """Reconnect and verify what is stored, as happens automatically after a failure."""
        await self._writer.run_between(self._backend.reopen)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def now(self) -> int:
        """Return the store's time, in microseconds."""
        return await self._ask(self._backend.now)

    async def about(self) -> StoreInfo:
        """Return the database behind the store."""
        return await self._ask(self._backend.about)

    # Writing

    async def append(self, *legs: writes.Leg, blobs: Sequence[Blob] = ()) -> writes.AppendOutcome:
        """Write all legs together or none, with their blobs. After `Appended`, they are durable.

        Repeating an append whose reply was lost is safe: events that are already in the log are not written again.
        """
        for leg in legs:
            writes.check_leg(leg)
            if isinstance(leg, writes.Extend):
                self._check_codec(leg.events)
        small = await self._small(blobs) if blobs else ()
        done = await self._submit(writes.Append(legs, small))
        return writes.Taken(reveal_row(self.codec, done.row), done.first) if isinstance(done, writes.Taken) else done

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

        Raises IdConflict if the id exists with another agent or input. `alike` may accept a stored input whose bytes
        differ but mean the same to today's code. A fork shares the events of its origin up to the fork point; they are
        not copied.
        """
        done = await self.append(writes.Create(run=run, bodies=(body,), actor=actor), blobs=blobs)
        match done:
            case writes.Taken(row, first):
                if not _same_start(first, body, alike):
                    raise IdConflict(what="run", id=run, reason=f"by agent {row.agent!r} with a different input")
                return row, False
            case writes.Appended(created=RunRow() as row):
                return row, True
            case _:  # The events were already in the log: a reply was lost.
                return await self.get(run), True

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

    async def register(self, worker: WorkerRow, *, lease: int) -> writes.Renewal:
        """Register a worker with a lease, in microseconds."""
        check_id(worker.id)
        return await self._submit(writes.Register(worker=worker, lease=lease))

    async def renew(self, worker: str, *, lease: int) -> writes.Renewal:
        """Renew a worker's lease. Raises NotFound if the worker was dropped; it must register again then."""
        return await self._submit(writes.Renew(worker=worker, lease=lease))

    async def retire(self, worker: str) -> None:
        """Remove a worker; its runs can be claimed immediately."""
        await self._submit(writes.Retire(worker=worker))

    async def claim(
        self,
        worker: str,
        *,
        limit: int,
        concurrency: Mapping[str, int] | None = None,
        skip: Sequence[str] = (),
        cleared: int = 0,
    ) -> tuple[writes.Claimed, ...]:
        """Claim runs of the agents that the worker serves, longest ready first, each under a higher fence.

        Agents in `skip` are left to other workers. `cleared` suspects made progress in this worker, which may hold as
        many more.
        """
        op = writes.Claim(
            worker=worker, limit=limit, concurrency=dict(concurrency or {}), skip=tuple(skip), cleared=cleared
        )
        return tuple(writes.Claimed(reveal_row(self.codec, row), died) for row, died in await self._submit(op))

    async def release(
        self, run: str, *, fence: int, worker: str, reason: str, retry_at: int | None = None, fruitless: bool = False
    ) -> None:
        """Release a run, which no worker claims before `retry_at`. `fruitless`: this worker could not drive it."""
        leg = writes.Release(run=run, fence=fence, actor=worker, reason=reason, retry_at=retry_at, fruitless=fruitless)
        await self.append(leg)

    async def save_snapshot(self, run: str, at: Head, data: bytes) -> None:
        """Save a run's state at a head."""
        data = _digest(run, at.seq, at.hash, data) + data
        await self._submit(writes.SaveSnapshot(run=run, seq=at.seq, hash=at.hash, data=data))

    async def drop_snapshots(self, run: str, seqs: Sequence[int]) -> None:
        """Delete snapshots; no result changes."""
        await self._submit(writes.DropSnapshots(run=run, seqs=tuple(seqs)))

    async def save_contracts(
        self, rows: Sequence[ContractRow], *, again: Collection[tuple[str, str]] = frozenset()
    ) -> None:
        """Save the contracts of agents, by agent and version. One with an unchanged hash is not written again.

        Those in `again` are written anyway: an older version that is deployed again becomes the newest.
        """
        for row in rows:
            writes.check_contract(row)
        if rows:
            await self._submit(writes.SaveContracts(rows=tuple(rows), again=frozenset(again)))

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

    async def prune(self, runs: Mapping[str, Head]) -> bool:
        """Delete runs and conversations with everything that belongs to them, together or not at all; return whether it
        did.

        Each comes with its last known head. Nothing is deleted if one has continued since, is another stream with the
        same id, has not ended, has a fork that is not among them, or is a conversation that other runs use. Blobs
        without references are collected later.
        """
        return await self._submit(writes.Prune(runs=tuple(runs.items())))

    async def rebuild(self, run: str) -> None:
        """Rebuild everything that is derived from a log: its row, labels, requests and references to blobs."""
        await self._submit(writes.Rebuild(run=run))

    async def rotate_keys(self) -> None:
        """Encrypt new data with a new key from now on, and wrap all keys with the current master key.

        Stored data is not rewritten. Other processes continue with their keys, and load new ones when needed.
        """
        if self._keys is None:
            raise Unsupported(what="keys")
        while True:
            before = await self._ask(self._backend.keys)
            after = rotated(before, self._keys, await self.now())
            if await self._submit(writes.SaveKeys(before=tuple(before), after=after)):
                break
        self.codec.learn([key.id for key in after])

    # Blobs

    def pack(self, value: object, *, inline: int = INLINE) -> tuple[Payload, tuple[Blob, ...]]:
        """Return a value as a payload: inline if it is small, else with the blob to pass to the append."""
        return pack_value(self.codec, self.redaction.value(hidden(value)), inline=inline)

    def pack_canonical(self, data: bytes) -> tuple[Payload, tuple[Blob, ...]]:
        """Return an encoded value as a payload, with its blob if the value is large."""
        return pack_canonical(self.codec, data)

    async def unpack(self, payload: Payload) -> Any:
        """Return the value of a payload, inline or in a blob."""
        if isinstance(payload.blob, UnsetType):
            return payload.value()
        return _value(payload.blob, b"".join([part async for part in self.read_blob(payload.blob)]))

    async def unpack_all(self, payloads: Sequence[Payload]) -> list[Any]:
        """Return the values of some payloads; those in small blobs are read together."""
        wanted = list({each.blob for each in payloads if isinstance(each.blob, str) and is_name(each.blob)})
        small = await self._ask(lambda: self._backend.small_blobs(wanted)) if len(wanted) > 1 else []
        there = {row.id: whole_blob(self.codec, row, chunk) for row, chunk in small}
        return [
            _value(each.blob, there[each.blob]) if each.blob in there else await self.unpack(each) for each in payloads
        ]

    async def put_blob(self, data: bytes | AsyncIterable[bytes]) -> Payload:
        """Store content before the event that will refer to it. Without a reference it is collected after an hour."""
        if isinstance(data, bytes):
            blob = pack_blob(self.codec, data)
            await self._upload(blob)
            return Payload(blob=blob.id, bytes=blob.size)
        upload, hasher, size, place = self._ids.new(), self.codec.hasher(), 0, 0
        async for part in _chunks(data):
            hasher.update(part)
            size += len(part)
            chunk = pack_chunk(self.codec, upload, place, part)
            await self._submit(writes.PutChunk(upload=upload, place=place, chunk=chunk))
            place += 1
        name = hasher.hexdigest()
        await self._submit(writes.EndUpload(upload=upload, blob=name, size=size, chunks=place))
        return Payload(blob=name, bytes=size)

    async def read_blob(self, blob: str) -> AsyncIterator[bytes]:
        """Yield a blob's content, chunk by chunk. Raises BlobDamaged, at the end at the latest, if it is not intact."""
        row = await self._ask(lambda: self._backend.blob(blob)) if is_name(blob) else None
        if row is None:
            raise NotFound(what="blob", id=blob)
        hasher, size = self.codec.hasher(), 0
        for place in range(row.chunks):
            data = unpack_chunk(self.codec, row, place, await self._chunk(blob, place))
            hasher.update(data)
            size += len(data)
            yield data
        if hasher.hexdigest() != blob:
            raise BlobDamaged(blob=blob, reason="the content does not match its name")
        if size != row.size:
            raise BlobDamaged(blob=blob, reason=f"has {size} bytes, but its row says {row.size}")

    async def collect_blobs(self, *, grace: Duration = "1h") -> int:
        """Delete the blobs that have had no references for this long; return their number."""
        collected, limit = 0, 500
        while True:
            found = await self._submit(writes.Collect(grace=microseconds(grace), limit=limit))
            collected += found
            if found < limit:
                return collected

    # Reading

    def decode(self, event: Event) -> AnyBody:
        """Return the body of an event."""
        return event.decode(self.codec)

    async def get(self, run: str) -> RunRow:
        """Return a run's row. Raises NotFound."""
        row = await self._ask(lambda: self._backend.get(run))
        if row is None:
            raise NotFound(what="run", id=run)
        return reveal_row(self.codec, row)

    async def has_command(self, run: str, command: str) -> bool:
        """Return whether a command with this id is in a run's log."""
        return any(known == command for _, known in await self._ask(lambda: self._backend.commands(run)))

    async def positions(self, runs: Sequence[str]) -> dict[str, LogPosition]:
        """Return the positions of some runs' logs; runs that do not exist are omitted."""
        found = await self._ask(lambda: [self._backend.get(run) for run in runs])
        return {row.id: LogPosition(row.seq, row.fence, row.status) for row in found if row is not None}

    async def read(
        self, run: str, *, after: int = 0, before: int | None = None, limit: int = LARGEST_PAGE, backwards: bool = False
    ) -> list[Event]:
        """Return a page of events with sequences strictly between `after` and `before`, in order or backwards."""
        _check_page(limit)
        return await self._ask(lambda: self._known(self._backend.read(run, after, before, limit, backwards)))

    async def read_steps(self, run: str, steps: StepRange) -> list[Event]:
        """Return all events of some steps, in order; `LogView` turns them into steps.

        Events that concern all steps (a fork) are included.
        """
        _check_page(steps.limit, LARGEST_PAGE + 1)  # one more, to find out whether there are more
        return await self._ask(lambda: self._known(self._backend.read_steps(run, steps)))

    async def log(self, run: str, *, after: int = 0, upto: int | None = None) -> AsyncIterator[Event]:
        """Yield a whole log, or up to an event, page by page."""
        before = None if upto is None else upto + 1
        while True:
            page = await self.read(run, after=after, before=before)
            for event in page:
                yield event
            if len(page) < LARGEST_PAGE:
                return
            after = page[-1].seq

    async def runs(self, where: RunFilter = EVERYTHING, *, before: int | None = None, limit: int = 50) -> RowPage:
        """Return matching runs, newest first; pass a page's `next` as `before` for the next page."""
        _check_page(limit)
        wanted = hide_filter(self.codec, where)
        page = await self._ask(lambda: self._backend.runs(wanted, before, limit))
        rows = tuple(reveal_row(self.codec, row) for row in page.rows)
        if where.text is None or not self.codec.is_private:
            return RowPage(rows, page.next)
        found = [row for row in rows if row_contains(row, where.text)]  # Hidden text is searched here.
        while len(found) < limit and page.next is not None:
            start = page.next
            page = await self._ask(lambda: self._backend.runs(wanted, start, limit))  # noqa: B023
            found += [row for each in page.rows if row_contains(row := reveal_row(self.codec, each), where.text)]
        more = page.next is not None or len(found) > limit
        return RowPage(tuple(found[:limit]), found[limit - 1].number if more and len(found) >= limit else None)

    async def count(self, where: RunFilter = EVERYTHING) -> int:
        """Return the number of matching runs."""
        if where.text is not None and self.codec.is_private:
            total, page = 0, await self.runs(where, limit=LARGEST_PAGE)
            while page.next is not None:
                total, page = total + len(page.rows), await self.runs(where, before=page.next, limit=LARGEST_PAGE)
            return total + len(page.rows)
        wanted = hide_filter(self.codec, where)
        return await self._ask(lambda: self._backend.count(wanted))

    async def counts(self) -> Mapping[tuple[str, str], int]:
        """Return the number of runs by (agent, status), from counters."""
        return await self._ask(self._backend.counts)

    async def requests(self, where: RequestFilter = OPEN, *, limit: int = LARGEST_PAGE) -> list[RequestRow]:
        """Return matching requests, oldest first."""
        _check_page(limit, LARGEST_PAGE + 1)  # one more, to find out whether there are more
        found = await self._ask(lambda: self._backend.requests(where, limit))
        return [reveal_request(self.codec, row) for row in found]

    async def count_requests(self) -> int:
        """Return the number of open requests."""
        return await self._ask(self._backend.count_requests)

    async def workers(self) -> list[WorkerRow]:
        """Return all registered workers."""
        return await self._ask(self._backend.workers)

    async def snapshot(self, run: str, *, at_most: int | None = None) -> Snapshot | None:
        """Return the newest intact snapshot, or the newest at or before a sequence; a damaged one is ignored.

        A fork without its own snapshot uses its origin's.
        """
        try:
            owner, found = await self._ask(lambda: self._newest(run, at_most))
            return None if found is None else self._open_snapshot(owner, found)
        except (Tampered, ValueError) as error:
            log.warning("run %s: ignoring a damaged snapshot: %s", run, error)
            return None

    async def own_snapshot(self, run: str, seq: int) -> Snapshot | None:
        """Return a run's snapshot at an event, or None. Raises Tampered if it is damaged."""
        found = await self._ask(lambda: self._backend.snapshot(run, seq))
        return self._open_snapshot(run, found) if found is not None and found.seq == seq else None

    def _open_snapshot(self, run: str, found: Snapshot) -> Snapshot | None:
        """Return a snapshot as saved, or None if an early version saved it without a digest. Raises Tampered."""
        try:
            data = self.codec.unpack(Packed(found.codec, found.key_id, found.data), f"snapshot:{run}:{found.seq}")
        except (ValueError, WrongKeys) as error:
            raise Tampered(run=run, seq=found.seq, reason=f"the snapshot cannot be read ({error})") from error
        if data.startswith(WITHOUT_DIGEST):
            return None
        if data[:DIGEST] != _digest(run, found.seq, found.hash, data[DIGEST:]):
            raise Tampered(run=run, seq=found.seq, reason="the snapshot is not as saved")
        return Snapshot(found.seq, found.hash, found.time, data[DIGEST:])

    def _newest(self, run: str, at_most: int | None) -> tuple[str, Snapshot | None]:
        found = self._backend.snapshot(run, at_most)
        if found is not None:
            return run, found
        row = self._backend.get(run)
        if row is None or row.origin is None or row.origin_at is None:
            return run, None
        return self._newest(row.origin, row.origin_at if at_most is None else min(at_most, row.origin_at))

    async def snapshots(self, run: str) -> list[tuple[int, int]]:
        """Return the (sequence, time) of every snapshot of a run."""
        return await self._ask(lambda: self._backend.snapshots(run))

    async def streams(self, *, after: int = 0, limit: int = LARGEST_PAGE) -> list[tuple[int, str]]:
        """Return the numbers and ids of all runs and conversations, in order; pass the last number as `after` to
        continue.
        """
        _check_page(limit)
        return await self._ask(lambda: self._backend.streams(after, limit))

    async def references(self, run: str) -> list[str]:
        """Return the blobs that a stream refers to."""
        return await self._ask(lambda: self._backend.references(run))

    async def late(self, run: str) -> list[Late]:
        """Return the late events of a run."""
        return await self._ask(lambda: self._backend.late(run))

    async def contracts(self, agent: str | None = None) -> list[ContractRow]:
        """Return the contracts of an agent, or of all agents, ordered by agent, time of saving, and version."""
        return await self._ask(lambda: self._contracts(agent))

    async def feed(self, after: str = "", *, limit: int = LARGEST_PAGE) -> Feed:
        """Return events of all streams after a cursor, each exactly once and none missed; continue from the page's
        `next`.
        """
        _check_page(limit)
        try:
            return await self._ask(lambda: self._feed(after, limit))
        except ValueError as error:
            raise InvalidArgument(path="after", reason=f"{after!r} is not a cursor that this store returned") from error

    async def recent(self, kinds: Sequence[str], *, before: str = "", scan: int = SCANNED) -> Recent:
        """Return events of some kinds among the latest of all, newest first; continue before the page's `next`."""
        try:
            return await self._ask(lambda: self._recent(before, kinds, scan))
        except ValueError as error:
            raise InvalidArgument(
                path="before", reason=f"{before!r} is not a cursor that this store returned"
            ) from error

    async def feed_end(self) -> str:
        """Return the cursor after which a feed has only events that are written from now on."""
        return await self._ask(self._backend.feed_end)

    async def check_rows(self, run: str) -> list[str]:
        """Describe how the rows of a stream differ from its log; empty if they do not."""
        while True:
            row = await self.get(run)
            requests = await self._ask(
                lambda: self._backend.requests(RequestFilter(status=None, run=run), row.seq + 1)  # noqa: B023
            )
            blobs = await self.references(run)
            labels = await self._ask(lambda: self._backend.labels(run))
            commands = await self._ask(lambda: self._backend.commands(run))
            steps = await self._ask(lambda: self._backend.steps(run))
            own = self.log(run, after=row.origin_at or 0)
            log = [(event, self.decode(event)) async for event in own if event.seq <= row.seq]
            if (await self.get(run)).seq == row.seq:
                break
        if not log:
            return ["run: no event of its own"]
        requests = [reveal_request(self.codec, each) for each in requests]
        since, derived = derive_row(row.number, log, earliest), derive(row.number, log, PLAIN, latest)
        derived = derived._replace(blobs=(*derived.blobs, *await self._late_blobs(run)))
        found = differences(Derived(row, tuple(requests), tuple(blobs), tuple(commands), tuple(steps)), derived, since)
        if sorted(labels) != sorted(hide_row(self.codec, derived.row).labels.items()):
            found.append(f"labels: {len(labels)} are indexed, but the log has {len(derived.row.labels)}")
        return found

    async def check_counts(self) -> list[str]:
        """Describe which counters differ from the true numbers."""
        found = await self._ask(self._backend.miscounted)
        return [
            f"{agent} {status}: the counter is {kept}, but there are {there}" for agent, status, kept, there in found
        ]

    async def check_strays(self) -> list[tuple[str, int, int]]:
        """Return rows without their stream or blob, and wrong slots: table, number, and how many."""
        return await self._ask(self._backend.strays)

    async def recount(self) -> None:
        """Recompute the counters from the rows."""
        await self._submit(writes.Recount())

    def watch(self) -> Watch:
        """Watch for changes, including those of other processes. Use `with`."""
        return Watch(self._watching)

    async def _ask(self, work: Callable[[], T]) -> T:
        """Read outside the event loop, waiting for an unavailable store."""
        return await self._retrying(lambda: self._handover.call(work), ConnectionLost, StaleServer, StoreBusy)

    async def _submit(self, op: writes.Op[T]) -> T:
        """Write, waiting for a busy store.

        The backend waits for an unavailable store, since only it can find out whether a commit took place.
        """
        return await self._retrying(lambda: self._writer.submit(op), StoreBusy)

    async def _retrying(self, ask: Callable[[], Awaitable[T]], *passing: type[LimpetError]) -> T:
        """Retry on transient errors until the patience is used up."""
        deadline = CLOCK.ticks() + self.patience
        while True:
            try:
                return await ask()
            except passing:
                if CLOCK.ticks() >= deadline:
                    raise
            await CLOCK.sleep(PAUSE)

    def _commit(self, batch: Sequence[writes.Op[Any]]) -> list[Outcome]:
        return self._backend.commit(batch, self.codec)

    async def _beside(self, op: writes.Transact) -> writes.Transacted | writes.Raised:
        done: Outcome = await self._handover.call_at_length(lambda: self._backend.transact(op, self.codec))
        if isinstance(done, LimpetError):
            raise done
        self._watching.changed()
        transacted: writes.Transacted | writes.Raised = done
        return transacted

    async def _small(self, blobs: Sequence[Blob]) -> tuple[Blob, ...]:
        """Upload large blobs; return the small ones, which are sent with what refers to them."""
        for blob in blobs:
            if len(blob.chunks) > 1:
                await self._upload(blob)
        return tuple(blob for blob in blobs if len(blob.chunks) == 1)

    async def _upload(self, blob: Blob) -> None:
        for place, chunk in enumerate(blob.chunks):
            await self._submit(writes.PutChunk(upload=blob.id, place=place, chunk=chunk))
        chunks = len(blob.chunks)
        await self._submit(writes.EndUpload(upload=blob.id, blob=blob.id, size=blob.size, chunks=chunks))

    async def _late_blobs(self, run: str) -> list[str]:
        """Return the blobs that late events refer to."""
        return [blob for late in await self.late(run) for blob in blobs_of(self.decode(late.event))]

    async def _chunk(self, blob: str, place: int) -> Packed:
        found = await self._ask(lambda: self._backend.chunk(blob, place))
        if found is None:
            raise NotFound(what="blob", id=blob)
        return found

    def _contracts(self, agent: str | None) -> list[ContractRow]:
        rows = [reveal_contract(self.codec, row) for row in self._backend.contracts(agent)]
        return sorted(rows, key=lambda row: (row.agent, row.saved, row.version))

    def _feed(self, after: str, limit: int) -> Feed:
        page = self._backend.feed(after, limit)
        self._known(page.events)
        return page

    def _recent(self, before: str, kinds: Sequence[str], scan: int) -> Recent:
        page = self._backend.recent(before, kinds, scan)
        self._known(page.events)
        return page

    def _known(self, events: Events) -> Events:
        """Load new keys here, outside the event loop."""
        if self.codec.is_private:
            self.codec.learn({event.key_id for event in events})
        return events

    def _check_codec(self, events: Sequence[Sealed]) -> None:
        """Raise InvalidAppend for events in plain text in an encrypted store, and the reverse."""
        for sealed in events:
            if bool(sealed.event.key_id) != self.codec.is_private:
                reason = f"event {sealed.event.seq} was not sealed by this store's codec"
                raise InvalidAppend(run=sealed.event.run, reason=reason)

    async def _unwrap_keys(self) -> None:
        """Unwrap the store's keys, or create the first ones. A store is created encrypted or not, and stays so."""
        settled = await self._ask(lambda: self._backend.setting(writes.ENCRYPTED))
        encrypted = settled == writes.YES
        if settled is None:  # Readers do not wait for writers.
            encrypted = await self._submit(writes.Settle(encrypted=self._keys is not None))
        if self._keys is None:
            if encrypted:
                raise WrongKeys(reason="the store is encrypted, and no keys were given")
            return
        if not encrypted:
            raise WrongKeys(reason="the store was created without encryption")
        if not await self._ask(self._backend.keys):
            first = rotated((), self._keys, await self.now())
            await self._submit(writes.SaveKeys(before=(), after=first))
        self.codec = await self._ask(self._cipher)

    async def _index_steps(self) -> None:
        """Index the events of a store that was created before events were indexed by step."""
        last = 0
        while page := await self._ask(lambda: self._backend.streams(last, LARGEST_PAGE)):  # noqa: B023
            last = page[-1][0]
            for _, run in page:
                try:
                    await self.rebuild(run)
                except (Tampered, DamagedEvent, NewerVersion, NotFound) as error:
                    log.warning("run %s: its steps cannot be indexed: %s", run, error)
        await self._submit(writes.MarkIndexed())

    def _cipher(self) -> Codec:
        assert self._keys is not None
        return Cipher(self._keys, self._backend.keys, compress=self._compress)

    def _close(self) -> None:
        self._watching.close()
        self._writer.close()
        self._backend.close()


def _value(blob: object, data: bytes) -> Any:
    """Return a blob's content, if it is JSON."""
    try:
        return Payload(json=Raw(data)).value()
    except DecodeError as error:
        raise InvalidValue(path="$", reason=f"blob {blob} is not JSON") from error


def _same_start(stored: AnyBody, wanted: b.RunCreated | b.RunForked, alike: Callable[[Payload], bool] | None) -> bool:
    if isinstance(wanted, b.RunForked):
        return isinstance(stored, b.RunForked) and replace(stored, deadline=None) == replace(wanted, deadline=None)
    if not isinstance(stored, b.RunCreated) or (stored.agent, stored.effects) != (wanted.agent, wanted.effects):
        return False
    return stored.input == wanted.input or (alike is not None and alike(stored.input))


def _digest(run: str, seq: int, hash: bytes, data: bytes) -> bytes:
    """Return the digest that is saved with a snapshot, so that damage is detected."""
    return sha256(b"\0".join((b"limpet.snapshot.1", run.encode(), b"%d" % seq, hash, data))).digest()


async def _chunks(parts: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the same bytes in parts of one size, at least one part."""
    gathered = bytearray()
    async for part in parts:
        gathered += part
        while len(gathered) > CHUNK:
            yield bytes(gathered[:CHUNK])
            del gathered[:CHUNK]
    yield bytes(gathered)


def _check_page(limit: int, most: int = LARGEST_PAGE) -> None:
    if not 1 <= limit <= most:
        raise InvalidArgument(path="limit", reason=f"must be between 1 and {most}")
