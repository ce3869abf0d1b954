"""A load of all kinds of writes by many writers. Every write leaves a mark that must be found exactly once.

All writers append to common runs under one fence, and seal again after events of others. A write that raised
ConnectionLost is repeated unchanged.
"""

import asyncio
import random  # noqa: TID251 - seeded choices
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import apsw
import psycopg

from limpet.errors import ConnectionLost
from limpet.events import AnyBody, Head, inline, seal_all
from limpet.events import bodies as b
from limpet.journal import verify_run
from limpet.stores import Appended, Create, Extend, Missed, SendCommands, Store, WorkerRow
from limpet.stores.blobs import Blob

__all__ = ["EVERYTHING", "LEASE", "Common", "Load", "check", "claim_common", "make_rows", "recorded", "rows"]

T = TypeVar("T")
LEASE = 3_600_000_000
EVERYTHING = ("append", "two_runs", "command", "append_and_command", "create", "append_and_create", "claim", "transact")
SQLITE = "sqlite:///"
MAKE = "CREATE TABLE mine (id TEXT PRIMARY KEY)"


class Common(NamedTuple):
    """The runs that all writers share, with their fence."""

    fence: int
    runs: tuple[str, ...]


async def claim_common(store: Store, count: int) -> Common:
    """Create and claim the common runs."""
    for number in range(count):
        await store.create(f"common-{number}", created("common"), actor="test")
    await store.register(WorkerRow(id="common", agents={"common": ("1",)}), lease=LEASE)
    claimed = await store.claim("common", limit=count)
    assert len(claimed) == count
    [fence] = {each.row.fence for each in claimed}
    return Common(fence, tuple(each.row.id for each in claimed))


def make_rows(url: str) -> None:
    """Create the caller's own table in the store at this URL."""
    if url.startswith(SQLITE):
        apsw.Connection(url.removeprefix(SQLITE)).execute(MAKE)
        return
    with psycopg.connect(_server(url), autocommit=True) as db:
        db.execute(MAKE.encode())


def rows(url: str) -> list[str]:
    """Return the ids in the caller's own table, where ids are unique."""
    if url.startswith(SQLITE):
        return [str(id) for (id,) in apsw.Connection(url.removeprefix(SQLITE)).execute("SELECT id FROM mine")]
    with psycopg.connect(_server(url), autocommit=True) as db:
        return [id for (id,) in db.execute("SELECT id FROM mine").fetchall()]


def created(agent: str) -> b.RunCreated:
    """Return the first event of a run."""
    return b.RunCreated(agent=agent, agent_version="1", input=inline(None))


def recorded(mark: str) -> b.ValueRecorded:
    """Return an owner's event with a mark."""
    return b.ValueRecorded(name=mark, value=inline("x" * 100))


def signalled(mark: str) -> b.SignalReceived:
    """Return a command with a mark."""
    return b.SignalReceived(command=mark, signal="go", value=inline(None))


class Load:
    """One writer with several tasks. Its marks start with its name."""

    def __init__(self, store: Store, name: str, common: Common, *, kinds: Sequence[str] = EVERYTHING) -> None:
        self._store, self._name, self._common, self._kinds = store, name, common, kinds
        self._heads: dict[str, Head] = {}
        self._chance = random.Random(name)
        self._number = 0
        self._moved = asyncio.Event()
        self.done: Counter[str] = Counter()
        """Number of completed writes per kind."""
        self.lost = 0
        """Number of ConnectionLost errors."""
        self.marks: set[str] = set()
        """Marks of all acknowledged writes, each of which must be found exactly once."""
        self.rows: set[str] = set()
        """Ids that must be found in the caller's own table."""

    async def begin(self) -> None:
        """Read the heads of the common runs, and register as a worker."""
        for run in self._common.runs:
            self._heads[run] = (await self.sure(lambda: self._store.get(run))).head  # noqa: B023
        worker = WorkerRow(id=self._name, agents={f"of-{self._name}": ("1",)})
        await self.sure(lambda: self._store.register(worker, lease=LEASE))

    async def run(self, go_on: Callable[[], bool], *, tasks: int = 8) -> None:
        """Work with several tasks while `go_on` returns True."""
        await self.begin()
        async with asyncio.TaskGroup() as group:
            for _ in range(tasks):
                group.create_task(self._work(go_on))

    async def _work(self, go_on: Callable[[], bool]) -> None:
        while go_on():
            self._number += 1
            mark, kind = f"{self._name}-{self._number}", self._chance.choice(self._kinds)
            self.marks |= await getattr(self, kind)(mark)
            self.done[kind] += 1
            self._moved.set()

    async def more(self, count: int) -> None:
        """Wait until `count` more writes are done."""
        wanted = self.done.total() + count
        while self.done.total() < wanted:
            self._moved.clear()
            await self._moved.wait()

    async def sure(self, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call that raised ConnectionLost, unchanged."""
        while True:
            try:
                return await work()
            except ConnectionLost:
                self.lost += 1

    # Kinds of writes; each returns its marks

    async def append(self, mark: str) -> set[str]:
        """Append one event."""
        await self._extend([self._any()], (mark,))
        return {mark}

    async def two_runs(self, mark: str) -> set[str]:
        """Append two events to two runs, in any order."""
        marks = (f"{mark}-a", f"{mark}-b")
        await self._extend(self._chance.sample(self._common.runs, 2), marks)
        return set(marks)

    async def command(self, mark: str) -> set[str]:
        """Send one command."""
        run = self._any()
        await self.sure(lambda: self._store.send_commands(run, signalled(mark), actor=self._name))
        return {mark}

    async def append_and_command(self, mark: str) -> set[str]:
        """Append an event to one run and send a command to another."""
        run, other = self._chance.sample(self._common.runs, 2)
        await self._extend(
            [run], (mark,), SendCommands(run=other, bodies=(signalled(f"{mark}-commanded"),), actor=self._name)
        )
        return {mark, f"{mark}-commanded"}

    async def create(self, mark: str) -> set[str]:
        """Create a run."""
        await self.sure(lambda: self._store.create(mark, created("created"), actor=self._name))
        return {mark}

    async def append_and_create(self, mark: str) -> set[str]:
        """Append an event and create a run in one write."""
        called = Create(run=f"{mark}-called", bodies=(created("created"),), actor=self._name)
        await self._extend([self._any()], (mark,), called)
        return {mark, f"{mark}-called"}

    async def claim(self, mark: str) -> set[str]:
        """Create a run and claim it. If the reply of the claim is lost, a renewal shows the run."""
        await self.sure(lambda: self._store.create(mark, created(f"of-{self._name}"), actor=self._name))
        held: dict[str, int] = {}
        while mark not in held:  # tasks may claim each other's runs
            await self.sure(lambda: self._store.claim(self._name, limit=1))
            held = (await self.sure(lambda: self._store.renew(self._name, lease=LEASE))).held
        return {mark, f"{mark}@claimed"}

    async def transact(self, mark: str) -> set[str]:
        """Write a row of the caller and an event in one transaction."""
        run, lost = self._any(), self.lost

        def work(connection: Any) -> tuple[Sequence[AnyBody], Sequence[Blob]]:
            connection.execute("INSERT INTO mine VALUES (%s)", (mark,))
            return (recorded(mark),), ()

        try:
            after = self._heads[run]
            done = await self.sure(
                lambda: self._store.transact(run, after=after, fence=self._common.fence, actor=self._name, work=work)
            )
            self._know(run, done.events[-1].event.head)
        except psycopg.errors.UniqueViolation:
            assert self.lost > lost, "the store wrote the row twice"
        self.rows.add(mark)
        return {mark}

    def _any(self) -> str:
        return self._chance.choice(self._common.runs)

    def _know(self, run: str, head: Head) -> None:
        if head.seq > self._heads[run].seq:
            self._heads[run] = head

    async def _extend(self, runs: Sequence[str], marks: Sequence[str], *others: SendCommands | Create) -> None:
        while True:
            own = [self._leg(run, mark) for run, mark in zip(runs, marks, strict=True)]
            legs = self._chance.sample([*own, *others], len(own) + len(others))
            done = await self.sure(lambda: self._store.append(*legs))  # noqa: B023
            if isinstance(done, Missed):
                self._know(done.run, done.events[-1].event.head)
                continue
            assert isinstance(done, Appended), done
            for leg in own:
                self._know(leg.run, leg.events[-1].event.head)
            return

    def _leg(self, run: str, mark: str) -> Extend:
        head, fence = self._heads[run], self._common.fence
        events = seal_all(head, run, (recorded(mark),), time=head.time + 1, fence=fence, actor=self._name)
        return Extend(run=run, after=head, fence=fence, events=events)


async def check(store: Store, marks: set[str]) -> None:
    """Check that each mark is found exactly once, that there are no others, and that all chains and rows are intact."""
    found: Counter[str] = Counter()
    before: int | None = None
    while True:
        page = await store.runs(before=before, limit=1000)
        for row in page.rows:
            found.update(await _marks(store, row.id))
        before = page.next
        if before is None:
            break
    assert found.keys() - marks == set(), "marks that were never acknowledged"
    assert marks - found.keys() == set(), "lost marks"
    assert [mark for mark, times in found.items() if times > 1] == [], "doubled marks"


async def _marks(store: Store, run: str) -> list[str]:
    await verify_run(store, run)
    assert await store.check_rows(run) == []
    marks = []
    async for event in store.log(run):
        match store.decode(event):
            case b.RunCreated(agent=agent) if agent != "common":
                marks.append(run)
            case b.RunClaimed(worker=worker) if worker != "common":
                marks.append(f"{run}@claimed")
            case b.ValueRecorded(name=mark) | b.SignalReceived(command=mark):
                marks.append(mark)
            case _:
                pass
    return marks


def _server(url: str) -> str:
    """Return the URL without the parameters of limpet."""
    parts = [part for part in url.partition("?")[2].split("&") if part and not part.startswith("schema=")]
    return "?".join([url.partition("?")[0], "&".join(parts)])
