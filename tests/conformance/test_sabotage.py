"""The suite can fail: a memory store that is broken on purpose is found out, each way by at least one behaviour."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from limpet.clock import Clock
from limpet.errors import LimpetError
from limpet.events import Codec, Event, Packed
from limpet.events.bodies import RequestAnswered
from limpet.stores import Appended
from limpet.stores.backend import EventKeys, Extension, Outcome
from limpet.stores.blobs import Blob
from limpet.stores.conformance import Behaviour, Harness, behaviours
from limpet.stores.memory import MemoryBackend, MemoryTables
from limpet.stores.rows import ContractRow, Feed, RequestRow, RunRow, WorkerRow
from limpet.stores.writes import Append, Op, SendCommands

Steps = Sequence[tuple[int, int | None]]


class NoFence(MemoryTables):
    """Anybody may write who knows the head."""

    def extend(self, extensions: Sequence[Extension], *, final: bool = False) -> list[int | None]:
        return super().extend([self._with_any_fence(each) for each in extensions], final=final)

    def _with_any_fence(self, wanted: Extension) -> Extension:
        row = self.row(wanted.run)
        return wanted if row is None or wanted.fence is None else wanted._replace(fence=row.fence)


class NoTransaction(MemoryTables):
    """What was done before a refusal stays."""

    @contextmanager
    def undoable(self) -> Iterator[None]:
        yield


class NoCompareAndSet(MemoryTables):
    """Writes after whatever is there."""

    def extend(self, extensions: Sequence[Extension], *, final: bool = False) -> list[int | None]:
        rows = [self.row(each.run) for each in extensions]
        moved = [
            each if row is None else each._replace(after=row.head) for row, each in zip(rows, extensions, strict=True)
        ]
        return super().extend(moved, final=final)


class NoReadBack(MemoryTables):
    """A lost reply looks like somebody else's write."""

    def events(self, row: RunRow, after: int, limit: int) -> list[Event]:
        return [replace(event, hash=bytes(32)) for event in super().events(row, after, limit)]


class LosesCommands(MemoryTables):
    """A command is acknowledged and not stored."""

    def insert(self, number: int, events: Sequence[Event], keys: Sequence[EventKeys]) -> None:
        if all(each.command is None for each in keys):
            super().insert(number, events, keys)


class ForgetsCommandIds(MemoryTables):
    """A command sent twice is taken twice."""

    def command(self, row: RunRow, command: str) -> Event | None:  # noqa: ARG002
        return None


class LosesWakeUps(MemoryTables):
    """A command does not make the run runnable."""

    def save(self, row: RunRow) -> None:
        before = self.row(row.id)
        woken = before is not None and before.status == row.status == "waiting"
        super().save(replace(row, ready_at=None) if woken else row)


class KeepsRequestsOpen(MemoryTables):
    """A request can be decided again and again."""

    def save_request(self, row: RequestRow, number: int) -> None:
        super().save_request(replace(row, status="open"), number)


class TrustsTheDead(MemoryTables):
    """A lease never ends."""

    def workers(self) -> list[WorkerRow]:
        return [replace(worker, lease_until=2**60) for worker in super().workers()]


class GivesToEverybody(MemoryTables):
    """A claimed run stays claimable."""

    def save(self, row: RunRow) -> None:
        super().save(replace(row, ready_at=self.now()) if row.status == "running" else row)


class Unfair(MemoryTables):
    """The newest comes first."""

    def ready(self, agent: str, versions: Sequence[str], limit: int) -> list[RunRow]:
        newest = super().ready(agent, versions, 10_000)[::-1][:limit]
        return [replace(row, ready_at=0) for row in newest]


class KeepsSlots(MemoryTables):
    """A limit is used up for ever."""

    def free_slots(self, number: int, *, driven_only: bool) -> None:
        pass


class ForgetsDeaths(MemoryTables):
    """Poison is never seen."""

    def save(self, row: RunRow) -> None:
        super().save(replace(row, deaths=0))


class WrongClock(MemoryTables):
    """Its own transactions see another time than the store tells."""

    def now(self) -> int:
        return super().now() - 3_600_000_000


class Shuffled(MemoryBackend):
    """The ORDER BY is missing."""

    def read(self, run: str, after: int, before: int | None, limit: int, backwards: bool) -> list[Event]:
        found = super().read(run, after, before, limit, backwards)
        return sorted(found, key=lambda event: event.hash)


class AcksBeforeCommit(MemoryBackend):
    """Success is told first, and the work is done with the next batch."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._clock = clock
        self._later: list[Op[Any]] = []

    def commit(self, ops: Sequence[Op[Any]], codec: Codec) -> list[Outcome]:
        if self._later:
            super().commit(self._later, codec)
        self._later = list(ops)
        real, self._tables = self._tables, deepcopy(self._tables, {id(self._clock): self._clock})
        try:
            return super().commit(ops, codec)
        finally:
            self._tables = real


class LosesAnAnswer(MemoryBackend):
    """Every second answer is acknowledged and thrown away."""

    seen = 0

    def commit(self, ops: Sequence[Op[Any]], codec: Codec) -> list[Outcome]:
        outcomes = []
        for op in ops:
            if isinstance(op, Append) and isinstance(op.legs[0], SendCommands):
                self.seen += isinstance(op.legs[0].bodies[0], RequestAnswered)
                if self.seen % 2 == 0 and self.seen:
                    row = self.get(op.legs[0].run)
                    outcomes.append(_appended(row))
                    continue
            outcomes += super().commit([op], codec)
        return outcomes


class DropsReferences(MemoryTables):
    """Nobody remembers who refers to a blob."""

    def refer(self, references: Sequence[tuple[int, int]]) -> None:
        pass


class DropsReferencesButOne(MemoryTables):
    """Of several blobs of an append the first is remembered."""

    def refer(self, references: Sequence[tuple[int, int]]) -> None:
        super().refer(references[:1])


class CollectsWhatIsHeld(MemoryTables):
    """Old is taken for loose."""

    def collect(self, before: int, limit: int) -> int:
        for id, blob in self.blob_rows.items():
            self.blob_rows[id] = blob._replace(loose_since=blob.loose_since or 0)
        return super().collect(before, limit)


class CollectsAtOnce(MemoryTables):
    """There is no hour of grace."""

    def collect(self, before: int, limit: int) -> int:  # noqa: ARG002
        return super().collect(self.now() + 1, limit)


class CollectsNothing(MemoryTables):
    """What is loose stays for ever."""

    def collect(self, before: int, limit: int) -> int:  # noqa: ARG002
        return 0


class CollectsOneBatch(MemoryTables):
    """It says that it found fewer than there were."""

    def collect(self, before: int, limit: int) -> int:
        return min(super().collect(before, limit), limit - 1)


class NeverTouches(MemoryTables):
    """Content that comes again is as old as when it came first."""

    def _touch(self, blob: str) -> bool:
        return blob in self.blob_rows


class StoresAgain(MemoryTables):
    """Content is stored as often as it comes."""

    def put_blobs(self, blobs: Sequence[Blob]) -> None:
        for blob in blobs:
            if blob.id in self.blob_rows:
                self._add_blob(f"{blob.id}/{len(self.blob_rows)}", blob.id, blob.size, dict(enumerate(blob.chunks)))
        super().put_blobs(blobs)

    def end_upload(self, upload: str, blob: str, size: int, chunks: int) -> bool:
        if blob in self.blob_rows:
            found = self.blob_rows.pop(f"upload:{upload}")
            self._add_blob(f"{blob}/{len(self.blob_rows)}", found.name, size, found.chunks)
            return True
        return super().end_upload(upload, blob, size, chunks)


class FindsEverything(MemoryTables):
    """An event may refer to a blob that nobody stored."""

    def find_blobs(self, blobs: Collection[str]) -> dict[str, int]:
        return dict.fromkeys(blobs, 0) | super().find_blobs(blobs)

    def refer(self, references: Sequence[tuple[int, int]]) -> None:
        super().refer([each for each in references if each[1]])


class NamesHalfAnUpload(MemoryTables):
    """A blob has its name before its last chunk is there."""

    def put_chunk(self, upload: str, place: int, chunk: Packed) -> None:
        super().put_chunk(upload, place, chunk)
        whole = self.blob_rows[f"upload:{upload}"]
        self._put(self.blob_rows, f"upload:{upload}", whole._replace(chunks={0: whole.chunks[0]}))

    def end_upload(self, upload: str, blob: str, size: int, chunks: int) -> bool:  # noqa: ARG002
        return super().end_upload(upload, blob, size, 1)


class SwapsChunks(MemoryBackend):
    """The order of chunks is left to chance."""

    def chunk(self, blob: str, place: int) -> Packed | None:
        row = self.blob(blob)
        return super().chunk(blob, place if row is None else row.chunks - 1 - place)


class SkippingFeed(MemoryBackend):
    """A cursor by numbers that were given before they were committed: it passes what is still on its way."""

    def feed(self, after: str, limit: int) -> Feed:
        page = super().feed(after, limit)
        if len(page.events) < limit:
            return page
        return Feed(page.events, str(int(page.next) + 1))


class RepeatingFeed(MemoryBackend):
    """The last event of a page is the first of the next."""

    def feed(self, after: str, limit: int) -> Feed:
        page = super().feed(after, limit)
        return Feed(page.events, str(int(page.next) - 1)) if len(page.events) > 1 else page


class ForgetfulFeed(MemoryBackend):
    """A page without events begins anew."""

    def feed(self, after: str, limit: int) -> Feed:
        page = super().feed(after, limit)
        return page if page.events else Feed((), "")


class FeedWithoutConversations(MemoryBackend):
    """Only runs are followed."""

    def feed(self, after: str, limit: int) -> Feed:
        page = super().feed(after, limit)
        rows = {event.run: self.get(event.run) for event in page.events}
        return Feed(tuple(each for each in page.events if getattr(rows[each.run], "type", "") == "run"), page.next)


class EarlyEnd(MemoryBackend):
    """The end lies before the last event."""

    def feed_end(self) -> str:
        return str(max(0, int(super().feed_end()) - 1))


class RebuildsWithoutRequests(MemoryTables):
    """The inbox is empty after a rebuild."""

    def rewrite(self, row: RunRow, requests: Sequence[RequestRow], blobs: Sequence[int], steps: Steps) -> None:  # noqa: ARG002
        super().rewrite(row, (), blobs, steps)


class RebuildsWithoutReferences(MemoryTables):
    """Blobs are nobody's after a rebuild."""

    def rewrite(self, row: RunRow, requests: Sequence[RequestRow], blobs: Sequence[int], steps: Steps) -> None:  # noqa: ARG002
        for reference in [each for each in self.references if each[0] == row.number]:
            self._drop(self.references, reference)
        super().rewrite(row, requests, (), steps)


class RebuildsAsNew(MemoryTables):
    """A rebuilt run belongs to nobody."""

    def rewrite(self, row: RunRow, requests: Sequence[RequestRow], blobs: Sequence[int], steps: Steps) -> None:
        freed = row if row.worker is None else replace(row, status="pending", worker=None, ready_at=row.time)
        super().rewrite(freed, requests, blobs, steps)


class RebuildsWithoutSteps(MemoryTables):
    """No step is found after a rebuild."""

    def rewrite(self, row: RunRow, requests: Sequence[RequestRow], blobs: Sequence[int], steps: Steps) -> None:  # noqa: ARG002
        super().rewrite(row, requests, blobs, ())


class IndexesOnlyStarts(MemoryTables):
    """Only the first event of a step is found with it."""

    def insert(self, number: int, events: Sequence[Event], keys: Sequence[EventKeys]) -> None:
        starts = [event.kind == "step.started" for event in events]
        found = [each if start else each._replace(step=None) for start, each in zip(starts, keys, strict=True)]
        super().insert(number, events, found)


class ForgetsSteps(MemoryTables):
    """A row does not follow its log."""

    def _extended(self, wanted: Extension) -> int | None:
        return super()._extended(wanted._replace(step=0))


class SavesContractsAgain(MemoryTables):
    """What is stored already is written again."""

    def save_contracts(self, rows: Sequence[ContractRow]) -> None:
        self.contract_rows |= {(row.agent, row.version): row for row in rows}


class KeepsOldContracts(MemoryTables):
    """What changed is taken for what is there."""

    def save_contracts(self, rows: Sequence[ContractRow]) -> None:
        super().save_contracts([row for row in rows if (row.agent, row.version) not in self.contract_rows])


class KeepsOneVersion(MemoryTables):
    """A new version takes the place of the old one."""

    def save_contracts(self, rows: Sequence[ContractRow]) -> None:
        for row in rows:
            for key in [key for key in self.contract_rows if key[0] == row.agent]:
                self._drop(self.contract_rows, key)
            super().save_contracts([row])


class SavesOneContract(MemoryTables):
    """Of several contracts the first is kept."""

    def save_contracts(self, rows: Sequence[ContractRow]) -> None:
        super().save_contracts(rows[:1])


class FindsAgentsByPrefix(MemoryBackend):
    """A pattern where a name is meant."""

    def contracts(self, agent: str | None) -> list[ContractRow]:
        return [row for row in super().contracts(None) if row.agent.startswith(agent or "")]


def _appended(row: RunRow | None) -> Outcome:
    assert row is not None
    return Appended((row.head,))


class ListsRunsOnly(MemoryBackend):
    """Conversations are no streams."""

    def streams(self, after: int, limit: int) -> list[tuple[int, str]]:
        return [each for each in super().streams(after, limit) if not each[1].startswith("c")]


class OverlooksForks(MemoryTables):
    """Nobody needs anybody's beginning."""

    def needing(self, streams: Sequence[str]) -> list[str]:  # noqa: ARG002
        return []


def _with(tables: type[MemoryTables]) -> Callable[[Clock], MemoryBackend]:
    class Sabotaged(MemoryBackend):
        def make_tables(self, clock: Clock) -> MemoryTables:
            return tables(clock)

    Sabotaged.__name__ = tables.__name__
    return Sabotaged


CAUGHT_BY: list[tuple[Callable[[Clock], MemoryBackend], str]] = [
    (_with(NoFence), "fences:a-superseded-worker-with-the-newest-head-writes-nothing"),
    (_with(NoTransaction), "append:if-one-leg-misses-no-leg-is-written"),
    (_with(NoCompareAndSet), "append:an-append-behind-the-head-is-told-what-it-missed"),
    (_with(NoReadBack), "append:repeating-an-append-writes-it-once"),
    (_with(LosesCommands), "commands:a-command-is-in-the-log-when-it-returns"),
    (_with(ForgetsCommandIds), "commands:a-command-sent-twice-is-taken-once"),
    (_with(LosesWakeUps), "requests:an-answer-makes-the-waiting-run-runnable"),
    (_with(KeepsRequestsOpen), "requests:the-first-answer-stands"),
    (_with(TrustsTheDead), "expiry:a-dead-workers-runs-are-given-to-another"),
    (_with(GivesToEverybody), "claim:a-claim-gives-the-run-to-the-worker"),
    (_with(Unfair), "claim:the-longest-ready-comes-first"),
    (_with(KeepsSlots), "claim:a-place-is-free-when-its-run-is-not-driven"),
    (_with(ForgetsDeaths), "expiry:each-death-is-counted-in-the-claim"),
    (_with(WrongClock), "requests:an-answer-after-expiry-is-refused"),
    (Shuffled, "reads:a-log-is-read-in-order"),
    (AcksBeforeCommit, "unknown_events:what-was-acknowledged-is-there-for-everybody"),
    (LosesAnAnswer, "requests:several-requests-are-answered-in-any-order"),
    (_with(DropsReferences), "blobs:what-is-referred-to-is-never-collected"),
    (_with(DropsReferencesButOne), "blobs:every-payload-of-an-event-is-held"),
    (_with(CollectsWhatIsHeld), "blobs:many-runs-share-a-blob"),
    (_with(CollectsAtOnce), "blobs:a-loose-blob-lives-for-an-hour"),
    (_with(CollectsNothing), "blobs:a-blob-that-is-not-referred-to-is-loose"),
    (_with(CollectsOneBatch), "blobs:many-loose-blobs-are-all-collected"),
    (_with(NeverTouches), "blobs:putting-a-blob-again-starts-its-hour-anew"),
    (_with(StoresAgain), "blobs:content-is-stored-once"),
    (_with(FindsEverything), "blobs:an-append-that-refers-to-nothing-is-refused"),
    (_with(FindsEverything), "blobs:if-one-leg-refers-to-nothing-no-leg-is-written"),
    (_with(NoTransaction), "blobs:if-one-leg-refers-to-nothing-no-leg-is-written"),
    (_with(NamesHalfAnUpload), "blobs:a-blob-of-several-chunks-is-read-chunk-by-chunk"),
    (SwapsChunks, "blobs:blobs-around-the-size-of-a-chunk-come-back"),
    (SkippingFeed, "feed:everything-comes-once-in-the-order-of-each-log"),
    (SkippingFeed, "feed:a-reader-misses-nothing-while-several-stores-write"),
    (RepeatingFeed, "feed:a-place-can-be-used-again"),
    (ForgetfulFeed, "feed:a-reader-at-the-end-gets-what-comes-next"),
    (FeedWithoutConversations, "feed:conversations-are-in-the-feed"),
    (EarlyEnd, "feed:the-end-of-the-feed-gives-only-what-is-written-later"),
    (_with(RebuildsWithoutRequests), "rebuild:an-open-request-is-what-its-log-says"),
    (_with(RebuildsWithoutReferences), "rebuild:blobs-are-held-after-a-rebuild"),
    (_with(RebuildsAsNew), "rebuild:a-run-that-is-driven-is-what-its-log-says"),
    (_with(RebuildsWithoutSteps), "steps:steps-are-found-after-a-rebuild"),
    (_with(IndexesOnlyStarts), "steps:a-page-of-steps-has-all-their-events"),
    (_with(ForgetsSteps), "rebuild:a-run-that-is-driven-is-what-its-log-says"),
    (_with(SavesContractsAgain), "contracts:the-same-contract-again-is-not-written"),
    (_with(SavesContractsAgain), "contracts:only-what-has-changed-is-written"),
    (_with(KeepsOldContracts), "contracts:a-changed-contract-replaces-the-old"),
    (_with(KeepsOneVersion), "contracts:versions-of-an-agent-stand-side-by-side"),
    (_with(SavesOneContract), "contracts:many-contracts-are-saved-at-once"),
    (FindsAgentsByPrefix, "contracts:an-agent-is-found-by-its-whole-name"),
    (AcksBeforeCommit, "contracts:another-store-on-the-same-data-sees-the-same"),
    (ListsRunsOnly, "lists:every-stream-is-listed-once-in-order"),
    (_with(OverlooksForks), "prune:what-a-fork-shares-is-not-pruned"),
]
ALL = {str(behaviour): behaviour for behaviour in behaviours(MemoryBackend.capabilities)}


@pytest.mark.parametrize(("backend", "behaviour"), CAUGHT_BY, ids=lambda each: getattr(each, "__name__", None))
def test_sabotage_is_found_out(backend: Callable[[Clock], MemoryBackend], behaviour: str) -> None:
    """The behaviour that promises this fails on a store that is broken in this way, and only there."""
    assert _fails(ALL[behaviour], backend)
    assert not _fails(ALL[behaviour], MemoryBackend)


def _fails(behaviour: Behaviour, backend: Callable[[Clock], MemoryBackend]) -> bool:
    try:
        behaviour.run(Harness(backend=cache(backend)))
    except (AssertionError, LimpetError, IndexError, ValueError):
        return True
    return False
