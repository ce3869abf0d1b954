"""The suite can fail: a memory store that is broken on purpose is found out, each way by at least one behaviour."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from limpet.clock import Clock
from limpet.errors import LimpetError
from limpet.events import Codec, Event
from limpet.events.bodies import RequestAnswered
from limpet.stores import Appended
from limpet.stores.backend import Extension, Outcome
from limpet.stores.conformance import Behaviour, Harness, behaviours
from limpet.stores.memory import MemoryBackend, MemoryTables
from limpet.stores.ops import Append, Op, Tell
from limpet.stores.rows import RequestRow, RunRow, WorkerRow


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

    def insert(self, number: int, events: Sequence[Event], commands: Sequence[str | None] | None = None) -> None:
        if commands is None:
            super().insert(number, events)


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
            if isinstance(op, Append) and isinstance(op.legs[0], Tell):
                self.seen += isinstance(op.legs[0].bodies[0], RequestAnswered)
                if self.seen % 2 == 0 and self.seen:
                    row = self.get(op.legs[0].run)
                    outcomes.append(_appended(row))
                    continue
            outcomes += super().commit([op], codec)
        return outcomes


def _appended(row: RunRow | None) -> Outcome:
    assert row is not None
    return Appended((row.head,))


def _with(tables: type[MemoryTables]) -> Callable[[Clock], MemoryBackend]:
    class Sabotaged(MemoryBackend):
        def make_tables(self, clock: Clock) -> MemoryTables:
            return tables(clock)

    Sabotaged.__name__ = tables.__name__
    return Sabotaged


CAUGHT_BY: list[tuple[Callable[[Clock], MemoryBackend], str]] = [
    (_with(NoFence), "fencing:a-superseded-worker-with-the-newest-head-writes-nothing"),
    (_with(NoTransaction), "appending:if-one-leg-misses-no-leg-is-written"),
    (_with(NoCompareAndSet), "appending:an-append-behind-the-head-is-told-what-it-missed"),
    (_with(NoReadBack), "appending:repeating-an-append-writes-it-once"),
    (_with(LosesCommands), "commands:a-command-is-in-the-log-when-it-returns"),
    (_with(ForgetsCommandIds), "commands:a-command-sent-twice-is-taken-once"),
    (_with(LosesWakeUps), "requests:an-answer-makes-the-waiting-run-runnable"),
    (_with(KeepsRequestsOpen), "requests:the-first-answer-stands"),
    (_with(TrustsTheDead), "expiry:a-dead-workers-runs-are-given-to-another"),
    (_with(GivesToEverybody), "claiming:a-claim-gives-the-run-to-the-worker"),
    (_with(Unfair), "claiming:the-longest-ready-comes-first"),
    (_with(KeepsSlots), "claiming:a-place-is-free-when-its-run-is-not-driven"),
    (_with(ForgetsDeaths), "expiry:each-death-is-counted-in-the-claim"),
    (_with(WrongClock), "requests:an-answer-after-expiry-is-refused"),
    (Shuffled, "reading:a-log-is-read-in-order"),
    (AcksBeforeCommit, "unknown:what-was-acknowledged-is-there-for-everybody"),
    (LosesAnAnswer, "requests:several-requests-are-answered-in-any-order"),
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
