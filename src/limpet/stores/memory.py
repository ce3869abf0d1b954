"""A store in memory, for tests, simulations, and runs that need not outlive their process.

It encodes, fences and refuses exactly as the durable stores do, since it runs the same operations. A list of undo steps
makes its transactions atomic.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from threading import Event as Flag
from threading import RLock
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from limpet.clock import Clock, SystemClock
from limpet.errors import NotFound, ReadOnlyStore, Unsupported
from limpet.events import Codec, Event, Packed
from limpet.stores.backend import Capabilities, EventKeys, Outcome, StoreInfo, Tables
from limpet.stores.blobs import Blob, BlobRow
from limpet.stores.commit import commit
from limpet.stores.fork_reads import EventRange, Origin, StepRange, origin_of, read_log, read_steps
from limpet.stores.rows import (
    ContractRow,
    DutyRow,
    Feed,
    KeyRow,
    Late,
    Place,
    Recent,
    RequestFilter,
    RequestRow,
    RowPage,
    RunFilter,
    RunRow,
    ScoreFilter,
    ScoreRow,
    Snapshot,
    TokenRow,
    WorkerRow,
)
from limpet.stores.search import row_matches, score_fits
from limpet.stores.writes import Extension, Op, Transact

__all__ = ["MemoryBackend", "MemoryTables"]

K = TypeVar("K")
V = TypeVar("V")


class MemoryBackend:
    """Rows in dictionaries, behind one lock."""

    capabilities = Capabilities(processes=False, durable=False, sees_death=False)
    read_only: ReadOnlyStore | None = None

    def __init__(self, clock: Clock | None = None) -> None:
        self._lock = RLock()
        self._tables = self.make_tables(clock or SystemClock())

    def make_tables(self, clock: Clock) -> "MemoryTables":
        """Return the tables that this backend uses."""
        return MemoryTables(clock)

    def exists(self) -> bool:
        """Return True: a store in memory always exists."""
        return True

    @property
    def failure(self) -> None:
        """None: memory does not fail."""

    def open(self) -> None:
        """Do nothing: there is no connection."""

    def interrupt(self) -> None:
        """Do nothing: no call waits."""

    def close(self) -> None:
        """Do nothing. Rows stay as long as the backend, so that a test can open it again."""

    def reopen(self) -> None:
        """Do nothing: memory does not fail."""

    def now(self) -> int:
        """Return the store's time."""
        return self._tables.now()

    def commit(self, ops: Sequence[Op[Any]], codec: Codec) -> list[Outcome]:
        """Perform all operations in one transaction."""
        return commit(self._transaction, ops, codec)

    def commit_now(self, extension: Extension) -> None:
        """Do nothing: the lane is fast enough."""

    is_untidy = False

    def tidy(self) -> None:
        """Do nothing: there is no such work."""

    def transact(self, op: Transact, codec: Codec) -> Outcome:  # noqa: ARG002
        """Raise Unsupported: there is no connection for a caller's writes."""
        raise Unsupported(what="transactions")

    def changes(self, stop: Flag) -> Iterator[None]:  # noqa: ARG002 - there is nothing to wait for
        """Return no changes, since other processes cannot write here."""
        return iter(())

    @contextmanager
    def _transaction(self) -> Iterator[Tables]:
        with self._lock, self._tables.undoable():
            yield self._tables
            self._tables.undo_steps.clear()

    # Reading

    def get(self, run: str) -> RunRow | None:
        """Return a stream's row."""
        with self._lock:
            return self._tables.row(run)

    def read(self, run: str, after: int, before: int | None, limit: int, backwards: bool) -> list[Event]:
        """Return events with sequences strictly between `after` and `before`."""
        with self._lock:
            return read_log(self._own, self._origin, run, EventRange(after, before, limit, backwards))

    def _own(self, run: str, span: EventRange) -> list[Event]:
        row = self._row(run)
        events, shared = self._tables.log[row.number], row.origin_at or 0
        end = None if span.before is None else max(span.before - 1 - shared, 0)
        found = events[max(span.after - shared, 0) : end]
        return (found[::-1] if span.backwards else found)[: span.limit]

    def read_steps(self, run: str, span: StepRange) -> list[Event]:
        """Return all events of some steps, and those that concern all steps, in order."""
        with self._lock:
            return read_steps(self._own_steps, self._origin, run, span)

    def _own_steps(self, run: str, span: StepRange) -> list[tuple[int, Event]]:
        known = self._tables.steps[self._number(run)].items()
        found = [(step, event) for step, events in known for event in events if event.seq <= span.upto]
        numbers = sorted({step for step, _ in found if span.after < step < span.before}, reverse=span.backwards)
        wanted = {0, *numbers[: span.limit]}
        return [(step, event) for step, event in found if step in wanted]

    def _origin(self, run: str) -> Origin | None:
        return origin_of(self._row(run))

    def runs(self, where: RunFilter, before: int | None, limit: int) -> RowPage:
        """Return matching rows with numbers below `before`, newest first."""
        matching = [row for row in self._matching(where) if before is None or row.number < before]
        rows = sorted(matching, key=lambda row: -row.number)[: limit + 1]
        return RowPage(tuple(rows[:limit]), rows[limit - 1].number if len(rows) > limit else None)

    def latest(self, where: RunFilter, before: Place | None, limit: int) -> list[RunRow]:
        """Return matching rows before a place in the order of last events, the newest first."""
        matching = [row for row in self._matching(where) if before is None or row.place < before]
        return sorted(matching, key=lambda row: row.place, reverse=True)[:limit]

    def count(self, where: RunFilter) -> int:
        """Return the number of matching rows."""
        return len(self._matching(where))

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Return the number of runs by (agent, status)."""
        return Counter((row.agent, row.status) for row in self._matching(RunFilter()))

    def miscounted(self) -> list[tuple[str, str, int, int]]:
        """Return nothing: runs are counted on demand."""
        return []

    def strays(self) -> list[tuple[str, int, int]]:
        """Return nothing: no other program can change these rows."""
        return []

    def streams(self, after: int, limit: int) -> list[tuple[int, str]]:
        """Return the numbers and ids of all streams after a number."""
        with self._lock:
            found = sorted((row.number, row.id) for row in self._tables.streams.values() if row.number > after)
        return found[:limit]

    def commands(self, run: str) -> list[tuple[int, str]]:
        """Return the commands among a stream's own events."""
        with self._lock:
            mine = self._number(run)
            known = self._tables.commands.items()
            return sorted((event.seq, command) for (number, command), event in known if number == mine)

    def steps(self, run: str) -> list[tuple[int, int]]:
        """Return the sequences of a stream's own events that are found by step, each with its step."""
        with self._lock:
            known = self._tables.steps[self._number(run)].items()
            return sorted((event.seq, step) for step, events in known for event in events)

    def labels(self, run: str) -> list[tuple[str, str]]:
        """Return the labels by which a stream is found."""
        with self._lock:
            self._number(run)
            return list(self._tables.streams[run].labels.items())

    def requests(self, where: RequestFilter, limit: int) -> list[RequestRow]:
        """Return matching requests, oldest first."""
        with self._lock:
            rows = list(self._tables.request_rows.values())
        found = [row for row in rows if _request_matches(row, where)]
        return sorted(found, key=lambda row: (row.opened, row.id))[:limit]

    def count_requests(self) -> int:
        """Return the number of open requests."""
        with self._lock:
            return sum(row.status == "open" for row in self._tables.request_rows.values())

    def scores(self, where: ScoreFilter, limit: int) -> list[ScoreRow]:
        """Return matching scores, newest first."""
        with self._lock:
            rows = list(self._tables.score_rows.values())
        found = [row for row in rows if _score_matches(row, where)]
        return sorted(found, key=_score_place, reverse=True)[:limit]

    def workers(self) -> list[WorkerRow]:
        """Return all workers."""
        with self._lock:
            return self._tables.workers()

    def slot_holder(self, run: str) -> str | None:
        """Return another run that holds a slot which this one needs."""
        with self._lock:
            return self._tables.slot_holder(run)

    def due(self, engine: str, after: tuple[int, int], until: int, limit: int) -> list[RunRow]:
        """Return the runs of an engine that no worker holds and that are ready by a time, longest ready first."""
        with self._lock:
            rows = list(self._tables.streams.values())
        found = [
            ((row.ready_at, row.number), row)
            for row in rows
            if row.engine == engine and row.ready_at is not None and row.ready_at <= until
        ]
        return [row for place, row in sorted(found, key=lambda each: each[0]) if place > after][:limit]

    def duties(self) -> list[DutyRow]:
        """Return all duties, by name."""
        with self._lock:
            return sorted(self._tables.duty_rows.values(), key=lambda each: each.name)

    def read_token(self, token: str) -> TokenRow | None:
        """Return a token's row."""
        with self._lock:
            return self._tables.token(token)

    def read_tokens(self, before: tuple[int, str] | None, limit: int) -> list[TokenRow]:
        """Return tokens, newest first."""
        with self._lock:
            rows = list(self._tables.token_rows.values())
        listed = [row for row in rows if row.purpose == "token"]
        found = [row for row in listed if before is None or (row.created, row.id) < before]
        return sorted(found, key=lambda row: (row.created, row.id), reverse=True)[:limit]

    def snapshot(self, run: str, at_most: int | None) -> Snapshot | None:
        """Return the newest snapshot, or the newest at or before a sequence."""
        with self._lock:
            mine = self._snapshots(run)
        found = [each for each in mine if at_most is None or each.seq <= at_most]
        return max(found, key=lambda each: each.seq, default=None)

    def snapshots(self, run: str) -> list[tuple[int, int]]:
        """Return the (sequence, time) of every snapshot of a run."""
        with self._lock:
            return sorted((each.seq, each.time) for each in self._snapshots(run))

    def late(self, run: str) -> list[Late]:
        """Return the late events of a run."""
        with self._lock:
            return list(self._tables.late_rows.get(self._number(run), []))

    def contracts(self, agent: str | None) -> list[ContractRow]:
        """Return the contracts of an agent, or of all agents."""
        with self._lock:
            rows = list(self._tables.contract_rows.values())
        return [row for row in rows if agent is None or row.agent == agent]

    def feed(self, after: str, limit: int) -> Feed:
        """Return events of all streams, in the order in which they were written."""
        begin = int(after or 0)
        if not 0 <= begin <= int(self.feed_end()):
            raise ValueError("ahead of the store's end")
        with self._lock:
            everything = self._tables.everything
            found: list[Event] = []
            cursors: list[str] = []
            while begin < len(everything) and len(found) < limit:
                event = everything[begin]
                begin += 1
                if event is not None:
                    found.append(event)
                    cursors.append(str(begin))
        return Feed(tuple(found), str(begin), tuple(cursors))

    def recent(self, before: str, kinds: Sequence[str], scan: int) -> Recent:
        """Return events of some kinds among the last `scan` events before a cursor, newest first."""
        with self._lock:
            there = [(place, each) for place, each in enumerate(self._tables.everything) if each is not None]
        there = [(place, event) for place, event in there if not before or place < int(before)][-scan:]
        found = [(place, event) for place, event in reversed(there) if event.kind in kinds]
        events, cursors = tuple(event for _, event in found), tuple(str(place) for place, _ in found)
        if len(there) < scan:
            return Recent(events, None, 0, cursors)
        return Recent(events, str(there[0][0]), there[0][1].time, cursors)

    def feed_end(self) -> str:
        """Return the cursor after the last event."""
        with self._lock:
            return str(len(self._tables.everything))

    def references(self, run: str) -> list[str]:
        """Return the blobs that a stream refers to."""
        with self._lock:
            number = self._number(run)
            return [self._tables.blob_names[blob] for run, blob in self._tables.references if run == number]

    def blob(self, blob: str) -> BlobRow | None:
        """Return a stored blob's row."""
        with self._lock:
            found = self._tables.blob_rows.get(blob)
        return None if found is None else BlobRow(blob, found.size, len(found.chunks), found.name)

    def chunk(self, blob: str, place: int) -> Packed | None:
        """Return one chunk of a stored blob."""
        with self._lock:
            found = self._tables.blob_rows.get(blob)
        return None if found is None else found.chunks.get(place)

    def small_blobs(self, blobs: Sequence[str]) -> list[tuple[BlobRow, Packed]]:
        """Return those of the blobs that have one chunk, with it."""
        found = ((self.blob(each), self.chunk(each, 0)) for each in blobs)
        return [(row, chunk) for row, chunk in found if row is not None and chunk is not None and row.chunks == 1]

    def about(self) -> StoreInfo:
        """Return "memory" as the database."""
        return StoreInfo("memory")

    def setting(self, name: str) -> str | None:
        """Return the value of a setting, or None."""
        with self._lock:
            return self._tables.settings.get(name)

    def keys(self) -> list[KeyRow]:
        """Return the wrapped keys."""
        with self._lock:
            return self._tables.keys()

    def _snapshots(self, run: str) -> list[Snapshot]:
        number = self._number(run)
        return [each for (owner, _), each in self._tables.snapshot_rows.items() if owner == number]

    def _number(self, run: str) -> int:
        return self._row(run).number

    def _row(self, run: str) -> RunRow:
        row = self._tables.row(run)
        if row is None:
            raise NotFound(what="run", id=run)
        return row

    def _matching(self, where: RunFilter) -> list[RunRow]:
        with self._lock:
            rows = list(self._tables.streams.values())
            scores = list(self._tables.score_rows.values())
        scored = where.scored and {score.run for score in scores if score_fits(score, where.scored)}
        return [row for row in rows if row_matches(row, where) and (scored is None or row.id in scored)]


class StoredBlob(NamedTuple):
    """A blob in memory."""

    number: int
    size: int
    name: str
    chunks: Mapping[int, Packed]
    loose_since: int | None
    """When it was last stored, if there is no reference to it."""


class MemoryTables:
    """The rows, each change with a step that undoes it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_number = 0
        self._last_blob = 0
        self.everything: list[Event | None] = []
        self.blob_rows: dict[str, StoredBlob] = {}
        self.blob_names: dict[int, str] = {}
        self.references: dict[tuple[int, int], None] = {}
        self.key_rows: dict[str, KeyRow] = {}
        self.settings: dict[str, str] = {}
        self.streams: dict[str, RunRow] = {}
        self.log: dict[int, list[Event]] = {}
        self.commands: dict[tuple[int, str], Event] = {}
        self.steps: dict[int, dict[int, list[Event]]] = {}
        """Events by stream and step."""
        self.request_rows: dict[str, RequestRow] = {}
        self.score_rows: dict[tuple[str, str, str, int], ScoreRow] = {}
        self.worker_rows: dict[str, WorkerRow] = {}
        self.duty_rows: dict[str, DutyRow] = {}
        self.token_rows: dict[str, TokenRow] = {}
        self.slots: dict[tuple[str, int], tuple[int, bool]] = {}
        self.snapshot_rows: dict[tuple[int, int], Snapshot] = {}
        self.late_rows: dict[int, list[Late]] = {}
        self.contract_rows: dict[tuple[str, str], ContractRow] = {}
        self.undo_steps: list[Callable[[], object]] = []

    def now(self) -> int:
        """Return the store's time."""
        return self._clock.now()

    @contextmanager
    def undoable(self) -> Iterator[None]:
        """Undo everything done inside the block if it raises."""
        mark = len(self.undo_steps)
        try:
            yield
        except BaseException:
            for step in reversed(self.undo_steps[mark:]):
                step()
            del self.undo_steps[mark:]
            raise

    def expect(self, runs: Collection[str], creations: int) -> None:
        """Do nothing: one lock covers everything."""

    def row(self, run: str) -> RunRow | None:
        """Return the stream's row."""
        return self.streams.get(run)

    def row_if_free(self, found: RunRow) -> RunRow | None:
        """Return the stream's row."""
        return self.streams.get(found.id)

    def peek(self, run: str) -> RunRow | None:
        """Return the stream's row."""
        return self.streams.get(run)

    def add(self, row: RunRow) -> int:
        """Insert the row of a new stream and return its number."""
        self._last_number += 1
        self._put(self.streams, row.id, replace(row, number=self._last_number))
        self._put(self.log, self._last_number, [])
        self._put(self.steps, self._last_number, {})
        return self._last_number

    def extend(self, extensions: Sequence[Extension], *, final: bool = False) -> list[int | None]:  # noqa: ARG002
        """Move each head if its condition is met, and add its events."""
        return [self._extended(each) for each in extensions]

    def _extended(self, wanted: Extension) -> int | None:
        row, fence = self.streams.get(wanted.run), wanted.fence
        if row is None or (row.seq, row.hash) != (wanted.after.seq, wanted.after.hash):
            return None
        allowed = row.type == "conversation" if fence is None else row.fence == fence and row.worker is not None
        if not allowed:
            return None
        head = wanted.events[-1].head
        moved = replace(row, seq=head.seq, hash=head.hash, time=head.time, step=max(row.step, wanted.step))
        self._put(self.streams, row.id, replace(moved, deaths=0) if wanted.settled else moved)
        self.insert(row.number, wanted.events, [EventKeys(step=step) for step in wanted.steps])
        return row.number

    def save(self, row: RunRow) -> None:
        """Replace a row."""
        self._put(self.streams, row.id, row)

    def insert(self, number: int, events: Sequence[Event], keys: Sequence[EventKeys]) -> None:
        """Insert events, each with the keys by which it is found."""
        self._extend(self.log[number], events)
        self._extend(self.everything, events)
        for event, (command, step) in zip(events, keys, strict=True):
            if command is not None:
                self._put(self.commands, (number, command), event)
            if step is not None:
                steps = self.steps[number]
                if step not in steps:
                    self._put(steps, step, [])
                self._extend(steps[step], [event])

    def events(self, row: RunRow, after: int, limit: int) -> list[Event]:
        """Return the stream's own events after a sequence, in order."""
        begin = max(after - (row.origin_at or 0), 0)
        return self.log[row.number][begin : begin + limit]

    def logs(self, rows: Sequence[RunRow]) -> list[list[Event]]:
        """Return all events of each of these streams."""
        return [list(self.log[row.number]) for row in rows]

    def command(self, row: RunRow, command: str) -> Event | None:
        """Return the event with a command id."""
        return self.commands.get((row.number, command))

    def rewrite(
        self,
        row: RunRow,
        requests: Sequence[RequestRow],
        scores: Sequence[ScoreRow],
        blobs: Sequence[int],
        steps: Sequence[tuple[int, int | None]],
    ) -> None:
        """Replace everything that is derived from a stream's log."""
        known = {event.seq: event for event in self.log[row.number]}
        found: dict[int, list[Event]] = {}
        for seq, step in steps:
            if step is not None:
                found.setdefault(step, []).append(known[seq])
        self._put(self.steps, row.number, found)
        self._put(self.streams, row.id, row)
        for mine in [each.id for each in self.request_rows.values() if each.run == row.id]:
            self._drop(self.request_rows, mine)
        for request in requests:
            self._put(self.request_rows, request.id, request)
        for key in [key for key in self.score_rows if key[0] == row.id]:
            self._drop(self.score_rows, key)
        for score in scores:
            self.save_score(score, row.number)
        self.refer([(row.number, blob) for blob in blobs])

    def recount(self) -> None:
        """Do nothing: runs are counted on demand."""

    def needing(self, streams: Sequence[str]) -> list[str]:
        """Return the forks of these streams, and the runs that use one of them as their conversation."""
        return [row.id for row in self.streams.values() if row.origin in streams or row.conversation in streams]

    def delete(self, numbers: Sequence[int]) -> None:
        """Delete streams with everything that belongs to them."""
        gone = {row.id for row in self.streams.values() if row.number in numbers}
        for place, event in enumerate(self.everything):
            if event is not None and event.run in gone:
                self._erase(place, event)
        tables: list[tuple[dict[Any, Any], Callable[[Any], bool]]] = [
            (self.streams, lambda run: run in gone),
            (self.log, lambda number: number in numbers),
            (self.steps, lambda number: number in numbers),
            (self.commands, lambda key: key[0] in numbers),
            (self.request_rows, lambda request: self.request_rows[request].run in gone),
            (self.score_rows, lambda key: key[0] in gone),
            (self.snapshot_rows, lambda key: key[0] in numbers),
            (self.late_rows, lambda number: number in numbers),
        ]
        for table, belongs in tables:
            for key in [key for key in table if belongs(key)]:
                self._drop(table, key)
        for number in numbers:
            self.free_slots(number, driven_only=False)
        self._let_go(numbers)

    def _erase(self, place: int, event: Event) -> None:
        """Erase an event of the feed; its position is never used again."""
        self.undo_steps.append(lambda: self.everything.__setitem__(place, event))
        self.everything[place] = None

    def _let_go(self, numbers: Sequence[int]) -> None:
        """Remove the references of these streams. Blobs without other references become loose."""
        referred = [key for key in self.references if key[0] in numbers]
        for key in referred:
            self._drop(self.references, key)
        held = {blob for _, blob in self.references}
        for _, blob in referred:
            name = self.blob_names[blob]
            if blob not in held and name in self.blob_rows:
                self._put(self.blob_rows, name, self.blob_rows[name]._replace(loose_since=self.now()))

    def put_blobs(self, blobs: Sequence[Blob]) -> None:
        """Store blobs that do not exist yet."""
        for blob in blobs:
            if not self._touch(blob.id):
                self._add_blob(blob.id, blob.id, blob.size, dict(enumerate(blob.chunks)))

    def find_blobs(self, blobs: Collection[str]) -> dict[str, int]:
        """Return the numbers of the blobs that exist."""
        return {blob: self.blob_rows[blob].number for blob in blobs if blob in self.blob_rows}

    def refer(self, references: Sequence[tuple[int, int]]) -> None:
        """Record that streams refer to blobs, which are then not loose."""
        for reference in references:
            self._put(self.references, reference, None)
        for _, number in references:
            name = self.blob_names[number]
            self._put(self.blob_rows, name, self.blob_rows[name]._replace(loose_since=None))

    def put_chunk(self, upload: str, place: int, chunk: Packed) -> None:
        """Store one chunk of an upload."""
        name = f"upload:{upload}"
        if name not in self.blob_rows:
            self._add_blob(name, upload, 0, {})
        found = self.blob_rows[name]
        more = found._replace(chunks={**found.chunks, place: chunk}, loose_since=self.now())
        self._put(self.blob_rows, name, more)

    def end_upload(self, upload: str, blob: str, size: int, chunks: int) -> bool:
        """Name an upload, or drop it if a blob of that name exists."""
        name = f"upload:{upload}"
        found = self.blob_rows.get(name)
        if self._touch(blob):
            self._drop(self.blob_rows, name)
            return True
        if found is None or len(found.chunks) != chunks:
            return False
        self._drop(self.blob_rows, name)
        self._put(self.blob_rows, blob, found._replace(size=size, loose_since=self.now()))
        self._put(self.blob_names, found.number, blob)
        return True

    def collect(self, before: int, limit: int) -> int:
        """Delete up to `limit` blobs that have been loose since before a time."""
        loose = [
            id for id, blob in self.blob_rows.items() if blob.loose_since is not None and blob.loose_since < before
        ]
        for id in loose[:limit]:
            self._drop(self.blob_rows, id)
        return len(loose[:limit])

    def _touch(self, blob: str) -> bool:
        found = self.blob_rows.get(blob)
        if found is not None and found.loose_since is not None:
            self._put(self.blob_rows, blob, found._replace(loose_since=self.now()))
        return found is not None

    def _add_blob(self, id: str, name: str, size: int, chunks: Mapping[int, Packed]) -> None:
        self._last_blob += 1
        self._put(self.blob_names, self._last_blob, id)
        self._put(self.blob_rows, id, StoredBlob(self._last_blob, size, name, chunks, self.now()))

    def settle(self, name: str, value: str) -> str:
        """Return the value of a setting; set it first if it has none."""
        if name not in self.settings:
            self._put(self.settings, name, value)
        return self.settings[name]

    def is_new(self) -> bool:
        """Return whether no stream was ever created."""
        return self._last_number == 0

    def keys(self) -> list[KeyRow]:
        """Return the wrapped keys."""
        return list(self.key_rows.values())

    def save_keys(self, keys: Sequence[KeyRow]) -> None:
        """Replace the wrapped keys."""
        for id in list(self.key_rows):
            self._drop(self.key_rows, id)
        for key in keys:
            self._put(self.key_rows, key.id, key)

    def lend(self) -> AbstractContextManager[Any]:
        """Raise Unsupported: there is no connection for a caller's writes."""
        raise Unsupported(what="transactions")

    def request(self, request: str) -> RequestRow | None:
        """Return a request's row."""
        return self.request_rows.get(request)

    def save_request(self, row: RequestRow, number: int) -> None:
        """Insert or replace a request's row."""
        assert self.streams[row.run].number == number
        self._put(self.request_rows, row.id, row)

    def open_requests(self, number: int) -> list[RequestRow]:
        """Return the open requests of a run."""
        mine = (row for row in self.request_rows.values() if row.status == "open")
        return [row for row in mine if self.streams[row.run].number == number]

    def save_score(self, row: ScoreRow, number: int) -> None:
        """Insert a score's row, or replace the one with the same key."""
        assert self.streams[row.run].number == number
        self._put(self.score_rows, _score_key(row), row)

    def drop_score(self, row: ScoreRow, number: int) -> None:
        """Delete the score's row with the same key."""
        assert self.streams[row.run].number == number
        self._drop(self.score_rows, _score_key(row))

    def workers(self) -> list[WorkerRow]:
        """Return all workers."""
        return list(self.worker_rows.values())

    def worker(self, worker: str) -> WorkerRow | None:
        """Return a worker's row."""
        return self.worker_rows.get(worker)

    def lock_worker(self, worker: WorkerRow) -> bool:
        """Return whether a worker's row is unchanged."""
        return self.worker_rows.get(worker.id) == worker

    def save_worker(self, worker: WorkerRow) -> None:
        """Insert or replace a worker's row."""
        self._put(self.worker_rows, worker.id, worker)

    def drop_worker(self, worker: str) -> None:
        """Delete a worker's row."""
        self._drop(self.worker_rows, worker)

    def duty(self, name: str) -> DutyRow:
        """Return a duty's row."""
        if name not in self.duty_rows:
            self._put(self.duty_rows, name, DutyRow(name=name))
        return self.duty_rows[name]

    def save_duty(self, duty: DutyRow) -> None:
        """Replace a duty's row."""
        self._put(self.duty_rows, duty.name, duty)

    def token(self, token: str) -> TokenRow | None:
        """Return a token's row."""
        return self.token_rows.get(token)

    def add_token(self, token: TokenRow) -> bool:
        """Insert a token's row; return False if there is one with its id."""
        if token.id in self.token_rows:
            return False
        self._put(self.token_rows, token.id, token)
        return True

    def save_token(self, token: TokenRow) -> None:
        """Replace a token's row."""
        self._put(self.token_rows, token.id, token)

    def drop_sessions(self, before: int) -> None:
        """Delete sessions and login codes that expired before a time."""
        for row in list(self.token_rows.values()):
            if row.purpose != "token" and row.expires is not None and row.expires < before:
                self._drop(self.token_rows, row.id)

    def is_dead(self, worker: WorkerRow) -> bool:  # noqa: ARG002 - all workers are in this process
        """Return False: all workers are in this process."""
        return False

    def held_by(self, worker: str) -> list[RunRow]:
        """Return the runs that a worker holds."""
        return [row for row in self.streams.values() if row.worker == worker]

    def ready_agents(self, agents: Collection[str]) -> list[str]:
        """Return those of the agents that have runs which are ready now."""
        now = self.now()
        found = {row.agent for row in self.streams.values() if row.ready_at is not None and row.ready_at <= now}
        return [agent for agent in agents if agent in found]

    def ready(self, agent: str, versions: Sequence[str], limit: int) -> list[RunRow]:
        """Return runs of an agent that may be claimed now, longest ready first."""
        now = self.now()
        found = [
            (row.ready_at, row.number, row)
            for row in self.streams.values()
            if row.agent == agent
            and not row.engine
            and row.agent_version in versions
            and row.ready_at is not None
            and row.ready_at <= now
            and self._exclusive_is_free(row)
        ]
        return [row for _, _, row in sorted(found, key=lambda each: each[:2])[:limit]]

    def take_slot(self, name: str, size: int, number: int, *, driven: bool) -> bool:
        """Take one of `size` slots for a run, or keep the one it has."""
        taken = {place: holder for (slot, place), (holder, _) in self.slots.items() if slot == name}
        if number in taken.values():
            return True
        free = [place for place in range(size) if place not in taken]
        if not free or len(taken) >= size:
            return False
        self._put(self.slots, (name, free[0]), (number, driven))
        return True

    def free_slots(self, number: int, *, driven_only: bool) -> None:
        """Free the slots of a run."""
        for slot, (holder, driven) in list(self.slots.items()):
            if holder == number and (driven or not driven_only):
                self._drop(self.slots, slot)

    def slot_holder(self, run: str) -> str | None:
        """Return another run that holds a slot which this one needs."""
        row = self.row(run)
        if row is None:
            return None
        for name in (f"exclusive:{row.exclusive}", f"agent:{row.agent}"):
            taken = sorted((place, holder) for (slot, place), (holder, _) in self.slots.items() if slot == name)
            for _, number in taken:
                if number != row.number:
                    return next(each.id for each in self.streams.values() if each.number == number)
        return None

    def save_snapshot(self, number: int, snapshot: Snapshot) -> None:
        """Insert or replace a snapshot."""
        self._put(self.snapshot_rows, (number, snapshot.seq), snapshot)

    def drop_snapshots(self, number: int, seqs: Sequence[int]) -> None:
        """Delete snapshots."""
        for seq in seqs:
            self._drop(self.snapshot_rows, (number, seq))

    def save_late(self, number: int, late: Late) -> None:
        """Store a late event, once."""
        kept = self.late_rows.setdefault(number, [])
        if all(each.event.hash != late.event.hash for each in kept):
            self._extend(kept, [late])

    def save_contracts(self, rows: Sequence[ContractRow]) -> None:
        """Insert contracts, or replace those with another hash."""
        for row in rows:
            stored = self.contract_rows.get((row.agent, row.version))
            if stored is None or stored.hash != row.hash:
                self._put(self.contract_rows, (row.agent, row.version), row)

    def _exclusive_is_free(self, row: RunRow) -> bool:
        holder = self.slots.get((f"exclusive:{row.exclusive}", 0))
        return row.exclusive is None or row.cancelling or holder is None or holder[0] == row.number

    def _put(self, table: dict[K, V], key: K, value: V) -> None:
        if key in table:
            before = table[key]
            self.undo_steps.append(lambda: table.__setitem__(key, before))
        else:
            self.undo_steps.append(lambda: table.pop(key))
        table[key] = value

    def _drop(self, table: dict[K, V], key: K) -> None:
        if key in table:
            before = table.pop(key)
            self.undo_steps.append(lambda: table.__setitem__(key, before))

    def _extend(self, rows: list[V], new: Sequence[V]) -> None:
        length = len(rows)
        self.undo_steps.append(lambda: rows.__delitem__(slice(length, None)))
        rows.extend(new)


def _request_matches(row: RequestRow, where: RequestFilter) -> bool:
    return (
        (where.status is None or row.status == where.status)
        and (where.id is None or row.id == where.id)
        and (where.run is None or row.run == where.run)
        and (where.to is None or where.to in row.to)
        and (where.risk is None or row.risk == where.risk)
        and (where.opened_until is None or row.opened <= where.opened_until)
        and (where.after is None or (row.opened, row.id) > where.after)
    )


def _score_key(row: ScoreRow) -> tuple[str, str, str, int]:
    return row.run, row.name, row.by, row.step


def _score_place(row: ScoreRow) -> tuple[int, str, int]:
    return row.time, row.run, row.seq


def _score_matches(row: ScoreRow, where: ScoreFilter) -> bool:
    return (
        (where.run is None or row.run == where.run)
        and (where.name is None or row.name == where.name)
        and (where.by is None or row.by == where.by)
        and (where.step is None or row.step == where.step)
        and (where.time_from is None or row.time >= where.time_from)
        and (where.before is None or _score_place(row) < where.before)
    )
