"""One transaction in progress: its tables, its codec, and what operations have in common."""

from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from limpet.errors import NotFound
from limpet.events import AnyBody, Codec, Event, Head, Sealed, blobs_of, seal_all
from limpet.state import ENDED
from limpet.stores.backend import Tables, keys_of
from limpet.stores.blobs import Blob, is_name
from limpet.stores.projection import (
    Delta,
    GoalChanged,
    RequestChange,
    RequestClosed,
    RequestInserted,
    ScoreChange,
    ScoreSaved,
    apply,
    apply_request,
    project,
)
from limpet.stores.row_encryption import hide_goal, hide_request, hide_score
from limpet.stores.rows import ReadyRun, RequestRow, RunRow

__all__ = ["Transaction", "references", "request_of"]

PAGE = 1_000


class Transaction(Struct):
    """The context in which operations are performed."""

    tables: Tables
    codec: Codec
    blobs: dict[str, int] = {}
    """Numbers of blobs that are known to exist until the end of the transaction."""
    ready: list[ReadyRun] = []
    """Runs of other engines that became ready in the operation in progress."""
    _registered: dict[str, bool] = {}

    def row(self, run: str) -> RunRow:
        """Return a stream's row, locked. Raises NotFound."""
        row = self.tables.row(run)
        if row is None:
            raise NotFound(what="run", id=run)
        return row

    def is_registered(self, worker: str) -> bool:
        """Return whether a worker is registered when the transaction first asks."""
        if worker not in self._registered:
            self._registered[worker] = self.tables.worker(worker) is not None
        return self._registered[worker]

    def event(self, row: RunRow, seq: int) -> Event | None:
        """Return one event of a stream; a shared event comes from the fork's origin."""
        while row.origin is not None and row.origin_at is not None and seq <= row.origin_at:
            row = self.row(row.origin)
        found = self.tables.events(row, seq - 1, 1)
        return found[0] if found and found[0].seq == seq else None

    def log(self, row: RunRow, after: int = 0) -> Iterator[Event]:
        """Yield a stream's own events after a sequence, page by page."""
        while page := self.tables.events(row, after, PAGE):
            yield from page
            after = page[-1].seq

    def decode(self, event: Event) -> AnyBody:
        """Return the body of an event."""
        return event.decode(self.codec)

    def seal(self, head: Head, run: str, bodies: Iterable[AnyBody], *, fence: int, actor: str) -> tuple[Sealed, ...]:
        """Seal events after a head, with the store's time."""
        return seal_all(head, run, bodies, time=self.tables.now(), fence=fence, actor=actor, codec=self.codec)

    def write(self, row: RunRow, bodies: Sequence[AnyBody], actor: str) -> Head:
        """Seal bodies after a locked row's head, and write both."""
        blobs = self.need(references(bodies))
        sealed = self.seal(row.head, row.id, bodies, fence=row.fence, actor=actor)
        self.tables.insert(row.number, [each.event for each in sealed], [keys_of(each.body) for each in sealed])
        head = sealed[-1].event.head
        moved = replace(row, seq=head.seq, hash=head.hash, time=head.time)
        self.apply(row, moved, [project(each.event, each.body) for each in sealed])
        self.refer(row.number, blobs)
        return head

    def apply(self, before: RunRow, row: RunRow, deltas: Sequence[Delta]) -> None:
        """Apply the changes of events to the rows of a run."""
        now = self.tables.now()
        for delta in deltas:
            change = delta.row
            if isinstance(change, GoalChanged) and change.goal is not None:
                change = change._replace(goal=hide_goal(self.codec, row.id, change.goal))
            if change is not None:
                row = apply(row, change, now)
            self._apply_request(row, delta.request)
            self._apply_score(row, delta.score)
        self.tables.save(row)
        if row.engine and before.worker is None:  # the engine is told by the drive itself if one was under way
            self.note_ready(row)
        if before.worker is not None and row.worker is None:
            self.tables.free_slots(row.number, driven_only=row.status not in ENDED)
        if row.status in ENDED:
            for request in self.tables.open_requests(row.number):
                self._apply_request(row, RequestClosed(request.id, "withdrawn"))

    def note_ready(self, row: RunRow) -> None:
        """Note that a run of another engine may continue, unless it still waits."""
        if row.engine and row.worker is None and row.ready_at is not None and row.type == "run":
            self.ready.append(ReadyRun(row.id, row.agent, row.agent_version, row.seq, row.engine))

    def _apply_request(self, row: RunRow, change: RequestChange | None) -> None:
        if change is None:
            return
        if isinstance(change, RequestInserted):
            after: RequestRow | None = hide_request(self.codec, change.row)
            before = None
        else:
            before = self.tables.request(change.request)
            after = apply_request(before, change)
        if after is not None and after != before:
            self.tables.save_request(after, row.number)

    def _apply_score(self, row: RunRow, change: ScoreChange | None) -> None:
        if change is None:
            return
        score = hide_score(self.codec, change.row)
        if isinstance(change, ScoreSaved):
            self.tables.save_score(score, row.number)
        else:
            self.tables.drop_score(score, row.number)

    # Blobs

    def bring(self, blobs: Sequence[Blob], wanted: Collection[str]) -> None:
        """Store the blobs of an append, and lock those that are referred to."""
        if blobs:
            self.tables.put_blobs(blobs)
        names = {blob for blob in wanted if is_name(blob)}
        if names:
            self.blobs |= self.tables.find_blobs(names)

    def need(self, wanted: Iterable[str]) -> list[int]:
        """Return the numbers of blobs. Raises NotFound if one was never stored, or was collected."""
        numbers = []
        for blob in wanted:
            if blob not in self.blobs:
                raise NotFound(what="blob", id=blob)
            numbers.append(self.blobs[blob])
        return numbers

    def refer(self, number: int, blobs: Sequence[int]) -> None:
        """Record that a stream refers to blobs."""
        if blobs:
            self.tables.refer([(number, blob) for blob in blobs])


def references(bodies: Iterable[AnyBody]) -> list[str]:
    """Return the blobs that bodies refer to."""
    return [blob for body in bodies for blob in blobs_of(body)]


def request_of(change: RequestChange) -> str:
    """Return the request that a change is about."""
    return change.row.id if isinstance(change, RequestInserted) else change.request
