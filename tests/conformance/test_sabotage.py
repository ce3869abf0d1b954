"""The conformance suite can fail: each memory store that is broken on purpose fails at least one behaviour."""

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
from limpet.stores.backend import EventKeys, Outcome
from limpet.stores.blobs import Blob
from limpet.stores.conformance import Behaviour, Harness, behaviours
from limpet.stores.memory import MemoryBackend, MemoryTables
from limpet.stores.rows import ContractRow, DutyRow, Feed, RequestRow, RunRow, ScoreRow, TokenRow, WorkerRow
from limpet.stores.writes import Append, Extension, Op, SendCommands

Steps = Sequence[tuple[int, int | None]]
Requests = Sequence[RequestRow]
Scores = Sequence[ScoreRow]


class NoFence(MemoryTables):
    """Accepts every append after the head, under any fence."""

    def extend(self, extensions: Sequence[Extension], *, final: bool = False) -> list[int | None]:
        return super().extend([self._with_any_fence(each) for each in extensions], final=final)

    def _with_any_fence(self, wanted: Extension) -> Extension:
        row = self.row(wanted.run)
        return wanted if row is None or wanted.fence is None else replace(wanted, fence=row.fence)


class NoTransaction(MemoryTables):
    """Keeps the writes that were made before a refusal."""

    @contextmanager
    def undoable(self) -> Iterator[None]:
        yield


class NoCompareAndSet(MemoryTables):
    """Appends after the current head, whatever head the writer names."""

    def extend(self, extensions: Sequence[Extension], *, final: bool = False) -> list[int | None]:
        rows = [self.row(each.run) for each in extensions]
        moved = [
            each if row is None else replace(each, after=row.head) for row, each in zip(rows, extensions, strict=True)
        ]
        return super().extend(moved, final=final)


class NoDutyHolder(MemoryTables):
    """Forgets which worker holds a duty, so that several do it at the same time."""

    def save_duty(self, duty: DutyRow) -> None:
        super().save_duty(replace(duty, lease_until=0))


class NoTokenRevocation(MemoryTables):
    """Forgets that a token was revoked when it is used again."""

    def save_token(self, token: TokenRow) -> None:
        super().save_token(token if token.last_used is None else replace(token, revoked=None))


class ReplacesTokens(MemoryTables):
    """Replaces a token by another one with the same id."""

    def add_token(self, token: TokenRow) -> bool:
        self.save_token(token)
        return True


class NoDutyMemory(MemoryTables):
    """Forgets when a duty was last done, so that workers do it again and again."""

    def save_duty(self, duty: DutyRow) -> None:
        super().save_duty(replace(duty, done=None))


class NoReadBack(MemoryTables):
    """Reads events with wrong hashes, so that a repeated append looks like another worker's write."""

    def events(self, row: RunRow, after: int, limit: int) -> list[Event]:
        return [replace(event, hash=bytes(32)) for event in super().events(row, after, limit)]


class LosesCommands(MemoryTables):
    """Acknowledges commands without storing them."""

    def insert(self, number: int, events: Sequence[Event], keys: Sequence[EventKeys]) -> None:
        if all(each.command is None for each in keys):
            super().insert(number, events, keys)


class ForgetsCommandIds(MemoryTables):
    """Accepts a command that is sent twice as two commands."""

    def command(self, row: RunRow, command: str) -> Event | None:  # noqa: ARG002
        return None


class LosesWakeUps(MemoryTables):
    """Does not make the run runnable when a command arrives."""

    def save(self, row: RunRow) -> None:
        before = self.row(row.id)
        woken = before is not None and before.status == row.status == "waiting"
        super().save(replace(row, ready_at=None) if woken else row)


class KeepsRequestsOpen(MemoryTables):
    """Accepts a second decision on a request."""

    def save_request(self, row: RequestRow, number: int) -> None:
        super().save_request(replace(row, status="open"), number)


class NeverExpiresLeases(MemoryTables):
    """Never lets a lease expire."""

    def workers(self) -> list[WorkerRow]:
        return [replace(worker, lease_until=2**60) for worker in super().workers()]


class KeepsRunsClaimable(MemoryTables):
    """Keeps a claimed run claimable."""

    def save(self, row: RunRow) -> None:
        super().save(replace(row, ready_at=self.now()) if row.status == "running" else row)


class ClaimsNewestFirst(MemoryTables):
    """Claims the newest run first."""

    def ready(self, agent: str, versions: Sequence[str], limit: int) -> list[RunRow]:
        newest = super().ready(agent, versions, 10_000)[::-1][:limit]
        return [replace(row, ready_at=0) for row in newest]


class KeepsSlots(MemoryTables):
    """Never frees a concurrency slot."""

    def free_slots(self, number: int, *, driven_only: bool) -> None:
        pass


class ForgetsDeaths(MemoryTables):
    """Does not count worker deaths."""

    def save(self, row: RunRow) -> None:
        super().save(replace(row, deaths=0))


class WrongClock(MemoryTables):
    """Uses another time in transactions than the store returns."""

    def now(self) -> int:
        return super().now() - 3_600_000_000


class Shuffled(MemoryBackend):
    """Reads events without ORDER BY."""

    def read(self, run: str, after: int, before: int | None, limit: int, backwards: bool) -> list[Event]:
        found = super().read(run, after, before, limit, backwards)
        return sorted(found, key=lambda event: event.hash)


class AcksBeforeCommit(MemoryBackend):
    """Acknowledges a batch before it is written: the work is done with the next batch."""

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
    """Acknowledges every second answer and discards it."""

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
    """Records no references to blobs."""

    def refer(self, references: Sequence[tuple[int, int]]) -> None:
        pass


class DropsReferencesButOne(MemoryTables):
    """Records only the first of several references of an append."""

    def refer(self, references: Sequence[tuple[int, int]]) -> None:
        super().refer(references[:1])


class CollectsReferencedBlobs(MemoryTables):
    """Collects old blobs, also those with references."""

    def collect(self, before: int, limit: int) -> int:
        for id, blob in self.blob_rows.items():
            self.blob_rows[id] = blob._replace(loose_since=blob.loose_since or 0)
        return super().collect(before, limit)


class CollectsWithoutGrace(MemoryTables):
    """Collects loose blobs without a grace period."""

    def collect(self, before: int, limit: int) -> int:  # noqa: ARG002
        return super().collect(self.now() + 1, limit)


class CollectsNothing(MemoryTables):
    """Never collects loose blobs."""

    def collect(self, before: int, limit: int) -> int:  # noqa: ARG002
        return 0


class CollectsOneBatch(MemoryTables):
    """Reports fewer loose blobs than it found, so that collection stops after one batch."""

    def collect(self, before: int, limit: int) -> int:
        return min(super().collect(before, limit), limit - 1)


class NeverTouches(MemoryTables):
    """Does not update the time of content that is put again."""

    def _touch(self, blob: str) -> bool:
        return blob in self.blob_rows


class StoresAgain(MemoryTables):
    """Stores content again each time that it is put."""

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
    """Accepts references to blobs that do not exist."""

    def find_blobs(self, blobs: Collection[str]) -> dict[str, int]:
        return dict.fromkeys(blobs, 0) | super().find_blobs(blobs)

    def refer(self, references: Sequence[tuple[int, int]]) -> None:
        super().refer([each for each in references if each[1]])


class TruncatesUploads(MemoryTables):
    """Finishes an upload with its first chunk only."""

    def put_chunk(self, upload: str, place: int, chunk: Packed) -> None:
        super().put_chunk(upload, place, chunk)
        whole = self.blob_rows[f"upload:{upload}"]
        self._put(self.blob_rows, f"upload:{upload}", whole._replace(chunks={0: whole.chunks[0]}))

    def end_upload(self, upload: str, blob: str, size: int, chunks: int) -> bool:  # noqa: ARG002
        return super().end_upload(upload, blob, size, 1)


class SwapsChunks(MemoryBackend):
    """Returns chunks in the wrong order."""

    def chunk(self, blob: str, place: int) -> Packed | None:
        row = self.blob(blob)
        return super().chunk(blob, place if row is None else row.chunks - 1 - place)


class SkippingFeed(MemoryBackend):
    """Skips an event after each full page, as a cursor over numbers assigned before the commit would."""

    def feed(self, after: str, limit: int) -> Feed:
        page = super().feed(after, limit)
        if len(page.events) < limit:
            return page
        return Feed(page.events, str(int(page.next) + 1))


class RepeatingFeed(MemoryBackend):
    """Returns the last event of a page again as the first of the next."""

    def feed(self, after: str, limit: int) -> Feed:
        page = super().feed(after, limit)
        return Feed(page.events, str(int(page.next) - 1)) if len(page.events) > 1 else page


class ForgetfulFeed(MemoryBackend):
    """Starts from the beginning after an empty page."""

    def feed(self, after: str, limit: int) -> Feed:
        page = super().feed(after, limit)
        return page if page.events else Feed((), "")


class FeedWithoutConversations(MemoryBackend):
    """Omits conversations from the feed."""

    def feed(self, after: str, limit: int) -> Feed:
        page = super().feed(after, limit)
        rows = {event.run: self.get(event.run) for event in page.events}
        return Feed(tuple(each for each in page.events if getattr(rows[each.run], "type", "") == "run"), page.next)


class EarlyEnd(MemoryBackend):
    """Returns an end of the feed before the last event."""

    def feed_end(self) -> str:
        return str(max(0, int(super().feed_end()) - 1))


class RebuildsWithoutRequests(MemoryTables):
    """Loses open requests in a rebuild."""

    def rewrite(self, row: RunRow, requests: Requests, scores: Scores, blobs: Sequence[int], steps: Steps) -> None:  # noqa: ARG002
        super().rewrite(row, (), scores, blobs, steps)


class RebuildsWithoutScores(MemoryTables):
    """Loses scores in a rebuild."""

    def rewrite(self, row: RunRow, requests: Requests, scores: Scores, blobs: Sequence[int], steps: Steps) -> None:  # noqa: ARG002
        super().rewrite(row, requests, (), blobs, steps)


class KeepsFirstScores(MemoryTables):
    """Keeps the first score of a person instead of the newest."""

    def save_score(self, row: ScoreRow, number: int) -> None:
        if not any(each.name == row.name and each.by == row.by for each in self.score_rows.values()):
            super().save_score(row, number)


class KeepsWithdrawnScores(MemoryTables):
    """Keeps scores that were withdrawn."""

    def drop_score(self, row: ScoreRow, number: int) -> None:
        pass


class RebuildsWithoutReferences(MemoryTables):
    """Loses references to blobs in a rebuild."""

    def rewrite(self, row: RunRow, requests: Requests, scores: Scores, blobs: Sequence[int], steps: Steps) -> None:  # noqa: ARG002
        for reference in [each for each in self.references if each[0] == row.number]:
            self._drop(self.references, reference)
        super().rewrite(row, requests, scores, (), steps)


class RebuildsAsNew(MemoryTables):
    """Loses the worker of a run in a rebuild."""

    def rewrite(self, row: RunRow, requests: Requests, scores: Scores, blobs: Sequence[int], steps: Steps) -> None:
        freed = row if row.worker is None else replace(row, status="pending", worker=None, ready_at=row.time)
        super().rewrite(freed, requests, scores, blobs, steps)


class RebuildsWithoutSteps(MemoryTables):
    """Loses the index of steps in a rebuild."""

    def rewrite(self, row: RunRow, requests: Requests, scores: Scores, blobs: Sequence[int], steps: Steps) -> None:  # noqa: ARG002
        super().rewrite(row, requests, scores, blobs, ())


class IndexesOnlyStarts(MemoryTables):
    """Indexes only the first event of each step."""

    def insert(self, number: int, events: Sequence[Event], keys: Sequence[EventKeys]) -> None:
        starts = [event.kind == "step.started" for event in events]
        found = [each if start else each._replace(step=None) for start, each in zip(starts, keys, strict=True)]
        super().insert(number, events, found)


class ForgetsSteps(MemoryTables):
    """Does not update the step number in the row."""

    def _extended(self, wanted: Extension) -> int | None:
        return super()._extended(replace(wanted, step=0))


class SavesContractsAgain(MemoryTables):
    """Writes contracts again that are stored already."""

    def save_contracts(self, rows: Sequence[ContractRow]) -> None:
        self.contract_rows |= {(row.agent, row.version): row for row in rows}


class KeepsOldContracts(MemoryTables):
    """Keeps the old contract when a changed one is saved."""

    def save_contracts(self, rows: Sequence[ContractRow]) -> None:
        super().save_contracts([row for row in rows if (row.agent, row.version) not in self.contract_rows])


class KeepsOneVersion(MemoryTables):
    """Replaces older versions of a contract."""

    def save_contracts(self, rows: Sequence[ContractRow]) -> None:
        for row in rows:
            for key in [key for key in self.contract_rows if key[0] == row.agent]:
                self._drop(self.contract_rows, key)
            super().save_contracts([row])


class SavesOneContract(MemoryTables):
    """Saves only the first of several contracts."""

    def save_contracts(self, rows: Sequence[ContractRow]) -> None:
        super().save_contracts(rows[:1])


class FindsAgentsByPrefix(MemoryBackend):
    """Finds contracts by a prefix of the agent's name."""

    def contracts(self, agent: str | None) -> list[ContractRow]:
        return [row for row in super().contracts(None) if row.agent.startswith(agent or "")]


def _appended(row: RunRow | None) -> Outcome:
    assert row is not None
    return Appended((row.head,))


class ListsRunsOnly(MemoryBackend):
    """Omits conversations from the list of streams."""

    def streams(self, after: int, limit: int) -> list[tuple[int, str]]:
        return [each for each in super().streams(after, limit) if not each[1].startswith("c")]


class IgnoresForks(MemoryTables):
    """Ignores that forks need their origins."""

    def needing(self, streams: Sequence[str]) -> list[str]:  # noqa: ARG002
        return []


def _with(tables: type[MemoryTables]) -> Callable[[Clock], MemoryBackend]:
    class Sabotaged(MemoryBackend):
        def make_tables(self, clock: Clock) -> MemoryTables:
            return tables(clock)

    Sabotaged.__name__ = tables.__name__
    return Sabotaged


CAUGHT_BY: list[tuple[Callable[[Clock], MemoryBackend], str]] = [
    (_with(NoFence), "fences:a-superseded-worker-with-the-newest-head-is-refused"),
    (_with(NoTransaction), "append:if-one-leg-is-stale-no-leg-is-written"),
    (_with(NoCompareAndSet), "append:a-stale-append-returns-the-missed-events"),
    (_with(NoDutyHolder), "duties:a-duty-that-another-worker-holds-is-not-taken"),
    (_with(NoDutyMemory), "duties:a-done-duty-is-due-again-after-its-interval"),
    (_with(NoTokenRevocation), "tokens:a-revoked-token-stays-revoked-when-it-is-used"),
    (_with(ReplacesTokens), "tokens:a-token-id-is-used-once"),
    (_with(NoReadBack), "append:repeating-an-append-writes-it-once"),
    (_with(LosesCommands), "commands:a-command-is-the-last-event-of-the-log-when-it-returns"),
    (_with(ForgetsCommandIds), "commands:a-command-sent-twice-is-recorded-once"),
    (_with(LosesWakeUps), "requests:an-answer-makes-the-waiting-run-runnable"),
    (_with(KeepsRequestsOpen), "requests:a-second-answer-is-refused"),
    (_with(NeverExpiresLeases), "expiry:a-dead-workers-runs-are-claimed-under-a-higher-fence"),
    (_with(KeepsRunsClaimable), "claim:a-claimed-run-belongs-to-one-worker"),
    (_with(ClaimsNewestFirst), "claim:runs-are-claimed-in-the-order-they-became-ready"),
    (_with(KeepsSlots), "claim:a-concurrency-slot-is-freed-when-its-run-stops-running"),
    (_with(ForgetsDeaths), "expiry:each-worker-death-is-counted"),
    (_with(WrongClock), "requests:an-answer-after-expiry-is-refused"),
    (Shuffled, "reads:a-log-is-read-in-order"),
    (AcksBeforeCommit, "unknown_events:acknowledged-writes-are-visible-in-every-store"),
    (LosesAnAnswer, "requests:several-requests-are-answered-in-any-order"),
    (_with(DropsReferences), "blobs:a-blob-with-references-is-never-collected"),
    (_with(DropsReferencesButOne), "blobs:every-payload-of-an-event-counts-as-a-reference"),
    (_with(CollectsReferencedBlobs), "blobs:a-blob-stays-while-any-run-refers-to-it"),
    (_with(CollectsWithoutGrace), "blobs:a-loose-blob-is-kept-for-an-hour"),
    (_with(CollectsNothing), "blobs:a-blob-without-references-is-collected"),
    (_with(CollectsOneBatch), "blobs:many-loose-blobs-are-all-collected"),
    (_with(NeverTouches), "blobs:putting-a-blob-again-restarts-its-grace-period"),
    (_with(StoresAgain), "blobs:content-is-stored-once"),
    (_with(FindsEverything), "blobs:an-append-that-refers-to-a-missing-blob-is-refused"),
    (_with(FindsEverything), "blobs:if-one-leg-refers-to-a-missing-blob-no-leg-is-written"),
    (_with(NoTransaction), "blobs:if-one-leg-refers-to-a-missing-blob-no-leg-is-written"),
    (_with(TruncatesUploads), "blobs:a-blob-of-several-chunks-is-read-chunk-by-chunk"),
    (SwapsChunks, "blobs:blobs-around-the-chunk-size-are-read-back-unchanged"),
    (SkippingFeed, "feed:the-feed-has-every-event-once-in-log-order"),
    (SkippingFeed, "feed:a-reader-misses-no-event-while-several-stores-write"),
    (RepeatingFeed, "feed:a-cursor-can-be-used-again"),
    (ForgetfulFeed, "feed:a-reader-at-the-end-gets-only-new-events"),
    (FeedWithoutConversations, "feed:conversations-are-in-the-feed"),
    (EarlyEnd, "feed:feed-end-returns-a-cursor-before-later-events"),
    (_with(RebuildsWithoutRequests), "rebuild:the-row-of-an-open-request-matches-its-log"),
    (_with(RebuildsWithoutScores), "scores:scores-are-found-after-a-rebuild"),
    (_with(KeepsFirstScores), "scores:the-newest-score-of-a-person-counts"),
    (_with(KeepsWithdrawnScores), "scores:a-withdrawn-score-is-not-listed"),
    (_with(RebuildsWithoutReferences), "rebuild:referenced-blobs-are-not-collected-after-a-rebuild"),
    (_with(RebuildsAsNew), "rebuild:the-row-of-a-running-run-matches-its-log"),
    (_with(RebuildsWithoutSteps), "steps:steps-are-found-after-a-rebuild"),
    (_with(IndexesOnlyStarts), "steps:a-page-of-steps-has-all-their-events"),
    (_with(ForgetsSteps), "rebuild:the-row-of-a-running-run-matches-its-log"),
    (_with(SavesContractsAgain), "contracts:an-unchanged-contract-is-not-written-again"),
    (_with(SavesContractsAgain), "contracts:only-changed-contracts-are-written"),
    (_with(KeepsOldContracts), "contracts:a-changed-contract-replaces-the-old-one"),
    (_with(KeepsOneVersion), "contracts:a-new-version-does-not-change-older-contracts"),
    (_with(SavesOneContract), "contracts:a-thousand-contracts-can-be-saved-together"),
    (FindsAgentsByPrefix, "contracts:contracts-are-found-by-exact-agent-name"),
    (AcksBeforeCommit, "contracts:other-stores-on-the-same-data-see-the-contracts"),
    (ListsRunsOnly, "lists:streams-lists-every-stream-once-oldest-first"),
    (_with(IgnoresForks), "prune:a-run-with-a-fork-is-not-pruned"),
]
ALL = {str(behaviour): behaviour for behaviour in behaviours(MemoryBackend.capabilities)}


@pytest.mark.parametrize(("backend", "behaviour"), CAUGHT_BY, ids=lambda each: getattr(each, "__name__", None))
def test_conformance_suite_finds_a_broken_store(backend: Callable[[Clock], MemoryBackend], behaviour: str) -> None:
    """The behaviour fails on the broken store, and passes on the correct one."""
    assert _fails(ALL[behaviour], backend)
    assert not _fails(ALL[behaviour], MemoryBackend)


def _fails(behaviour: Behaviour, backend: Callable[[Clock], MemoryBackend]) -> bool:
    try:
        behaviour.run(Harness(backend=cache(backend)))
    except (AssertionError, LimpetError, IndexError, ValueError):
        return True
    return False
