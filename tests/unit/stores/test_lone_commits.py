"""Commits on the event loop: only for a run that writes alone, without waiting for locks or checkpoints."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import pytest

from limpet.clock import FrozenClock
from limpet.stores import Missed, Store, Threads, writer
from limpet.stores.conformance import Harness
from limpet.stores.conformance.suite import Owner, World, started
from limpet.stores.sqlite import SqliteBackend
from limpet.stores.sqlite import backend as sqlite_backend
from limpet.stores.sqlite.locks import WriterQueue
from limpet.stores.writes import Extension


class Now:
    """The seconds that have passed for the writer, and those in which it worked: none, unless a test lets them pass."""

    passed = worked = 0.0

    def __call__(self) -> float:
        return self.passed

    def pass_by(self, seconds: float) -> None:
        """Let time pass."""
        self.passed += seconds

    def work(self, seconds: float) -> None:
        """Let time pass in which the processor is busy."""
        self.passed += seconds
        self.worked += seconds


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    """Return the writer's clock."""
    now = Now()
    monkeypatch.setattr(writer, "monotonic", now)
    monkeypatch.setattr(writer, "thread_time", lambda: now.worked)
    return now


class Watched(Store):
    """A store that records the outcome of each attempt to commit on the event loop."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.alone: list[bool | None] = []
        self.passing: Callable[[], object] = lambda: None
        """Called during each commit on the event loop."""

    def _commit_now(self, extension: Extension) -> bool | None:
        assert threading.current_thread() is threading.main_thread()
        done = super()._commit_now(extension)
        self.passing()
        self.alone.append(done)
        return done


class WatchedWorld(World):
    """A world on such a store."""

    store: Watched

    def new_store(self) -> Watched:
        return Watched(self.harness.backend(self.clock), self.harness.handover())


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[WatchedWorld]:
    """Return a world on a SQLite file, with threads."""
    clock = FrozenClock()
    harness = Harness(backend=lambda clock: SqliteBackend(tmp_path / "s.db", clock, patience="5s"), handover=Threads)
    async with WatchedWorld(harness, clock) as world:
        yield world


async def append(owner: Owner, count: int, first: int = 1) -> None:
    """Append events one after the other."""
    for number in range(first, first + count):
        await owner.append(started(number))


async def test_a_run_that_writes_alone_commits_on_the_event_loop(world: WatchedWorld) -> None:
    """As soon as the writer's thread has finished its last commit. The log is the same as with that thread."""
    owner = await world.own()
    await append(owner, 20)
    assert world.store.alone[-5:] == [True] * 5
    assert (await world.kinds())[2:] == ["step.started"] * 20
    assert await world.store.check_rows("r1") == []


async def test_runs_that_write_by_turns_are_committed_in_batches(world: WatchedWorld) -> None:
    owners = [await world.own("r1"), await world.own("r2")]
    for number in range(1, 5):
        for owner in owners:
            await owner.append(started(number))
    assert world.store.alone == []


@pytest.mark.parametrize(("milliseconds", "commits"), [(2.0, 1), (0.4, 3)])
async def test_other_tasks_have_a_turn_after_a_millisecond_of_commits(
    world: WatchedWorld, now: Now, milliseconds: float, commits: int
) -> None:
    """A run that never waits for anything else does not block the event loop."""
    owner, turns, world.store.passing = await world.own(), [0], lambda: now.pass_by(milliseconds / 1000)

    async def other() -> None:
        while True:
            turns.append(len(world.store.alone))
            await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop

    beside = asyncio.create_task(other())
    await append(owner, 40)
    beside.cancel()
    assert len(world.store.alone) > 30
    assert {after - before for before, after in pairwise(turns)} == {0, commits}


async def test_a_stale_extension_is_explained_by_the_writer(world: WatchedWorld) -> None:
    """The commit on the loop finds another head; the general append returns the missed events."""
    owner = await world.own()
    await append(owner, 3)
    before = owner.head
    await append(owner, 1, first=4)
    owner.head = before
    missed = await owner.send(owner.extend(started(5)))
    assert world.store.alone[-1] is False
    assert isinstance(missed, Missed)


@contextmanager
def gate_held(path: Path) -> Iterator[None]:
    """Hold the writer's queue, as another process would."""
    queue = WriterQueue(path.with_name(f"{path.name}-gate"), 0)
    queue.enter()
    yield
    queue.leave()
    queue.close()


@contextmanager
def file_locked(path: Path) -> Iterator[None]:
    """Hold SQLite's own lock, as another program would."""
    with closing(apsw.Connection(str(path))) as db:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")


@pytest.mark.parametrize("hold", [gate_held, file_locked])
async def test_the_event_loop_waits_for_no_other_writer(world: WatchedWorld, tmp_path: Path, hold: Any) -> None:
    """The append goes to the writer's thread, which waits, and the loop goes on. Then the run is alone again."""
    owner = await world.own()
    await append(owner, 20)
    with hold(tmp_path / "s.db"):
        waiting = asyncio.create_task(owner.append(started(21)))
        while world.store.alone[-1] is not None:
            await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop
        assert not waiting.done()
    await waiting
    await append(owner, 20, first=22)
    assert world.store.alone[-1] is True


async def test_a_due_checkpoint_is_left_to_the_writer(
    world: WatchedWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write-ahead log is moved into the file, although nearly every commit is done on the loop."""
    monkeypatch.setattr(sqlite_backend, "CHECKPOINT_PAGES", 12)
    owner, before = await world.own(), (tmp_path / "s.db").stat().st_size
    await append(owner, 200)
    assert 0 < world.store.alone.count(None) < 100
    assert (tmp_path / "s.db").stat().st_size > before
    assert (tmp_path / "s.db-wal").stat().st_size < 150 * 4096


class SlowDisk(apsw.VFS):
    """A disk whose syncs take a while."""

    def __init__(self, now: Now) -> None:
        super().__init__("slow", "unix", makedefault=True)
        self.now, self.delay = now, 0.0

    def xOpen(self, name: Any, flags: Any) -> "SlowFile":  # noqa: N802 - apsw's name
        return SlowFile(self, name, flags)


class SlowFile(apsw.VFSFile):
    """A file on that disk."""

    def __init__(self, disk: SlowDisk, name: Any, flags: Any) -> None:
        super().__init__("unix", name, flags)
        self._disk = disk

    def xSync(self, flags: int) -> None:  # noqa: N802 - apsw's name
        self._disk.now.passed += self._disk.delay
        super().xSync(flags)


@pytest.fixture
def slow_disk(now: Now) -> Iterator[SlowDisk]:
    """Put every file that is opened from now on on a disk that can be slow."""
    disk = SlowDisk(now)
    yield disk
    disk.unregister()


async def test_a_slow_disk_is_left_to_the_writer(slow_disk: SlowDisk, world: WatchedWorld, now: Now) -> None:
    """After a slow commit none is done on the event loop for a second, then for two, and so on up to a minute.

    When the disk is fast again, commits return to the loop.
    """
    owner, number = await world.own(), 21
    await append(owner, 20)
    for rest in (1, 2, 4, 8, 16, 32, 60, 60):
        before = len(world.store.alone)
        slow_disk.delay = 0.006
        while True not in world.store.alone[before:]:  # a due checkpoint is left to the writer, however fast the disk
            await append(owner, 1, first=number)
            number += 1
        before = len(world.store.alone) - 1
        slow_disk.delay = 0.0
        for passed, tried in ((0, 0), (rest - 0.1, 0), (0.2, 1)):
            now.passed += passed
            await append(owner, 10, first=number)
            number += 10
            assert (len(world.store.alone) > before + 1) == tried
    await append(owner, 20, first=number)
    assert world.store.alone[-5:] == [True] * 5


async def test_a_garbage_collection_is_not_a_slow_disk(world: WatchedWorld, now: Now) -> None:
    """It may begin in the middle of a commit, and takes long in a process with many objects."""
    owner, world.store.passing = await world.own(), lambda: now.work(0.05)
    await append(owner, 20)
    assert world.store.alone[-5:] == [True] * 5
