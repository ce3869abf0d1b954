"""Functions that crash tests run in processes of their own; each gets a pipe to report to its test."""

import asyncio
import os
import random  # noqa: TID251 - seeded choices
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import apsw
import psycopg

from limpet import open_store
from limpet.clock import SystemClock
from limpet.errors import NotFound
from limpet.events import AnyBody, Head, canonical, inline, seal_all
from limpet.events import bodies as b
from limpet.stores import Appended, Claimed, Extend, Store, WorkerRow
from limpet.stores.blobs import Blob
from limpet.stores.cipher import MasterKeys
from limpet.stores.postgres import migrate
from limpet.stores.postgres.wire import Wire
from tests.crash.load import LEASE, Common, Load, created, recorded

__all__ = [
    "collect",
    "extend",
    "open_and_die",
    "open_only",
    "own",
    "reuse",
    "rotate_and_die",
    "share",
    "shuffle",
    "transact_and_die",
    "until_killed",
    "write_and_die",
]

WRITING = ("append", "append", "two_runs", "two_runs", "command", "append_and_command")
CONTENTS = 20


async def own(store: Store, run: str) -> tuple[Head, int]:
    """Create a run unless it exists, claim it with its own worker, and return its head and fence."""
    await store.create(run, created(run), actor=run)
    worker = f"{run}-{os.getpid()}"
    await store.register(WorkerRow(id=worker, agents={run: ("1",)}), lease=LEASE)
    claimed: tuple[Claimed, ...] = ()
    while not claimed:  # its row may still be locked by a dead process or read by another, and is then skipped
        claimed = await store.claim(worker, limit=1)
    return claimed[0].row.head, claimed[0].row.fence


async def extend(store: Store, run: str, head: Head, fence: int, body: AnyBody, *, blobs: Sequence[Blob] = ()) -> Head:
    """Append one event durably, as the run's only writer."""
    now = SystemClock().now()
    sealed = seal_all(head, run, (body,), time=now, fence=fence, actor=run, codec=store.codec)
    done = await store.append(Extend(run=run, after=head, fence=fence, events=sealed), blobs=blobs)
    assert isinstance(done, Appended), done
    return sealed[-1].event.head


async def shuffle(pipe: Connection, url: str, name: str, shared: Common, count: int) -> None:
    """Run a load on shared runs, and report the marks that it left."""
    async with open_store(url) as store:
        load = Load(store, name, shared, kinds=WRITING)
        pipe.send("ready")
        pipe.recv()
        places = iter(range(count))
        await load.run(lambda: next(places, None) is not None, tasks=4)
    assert load.lost == 0
    pipe.send(load.marks)


async def reuse(pipe: Connection, url: str, run: str, count: int) -> None:
    """Refer to shared content, sent along or uploaded before; upload it again if it was collected meanwhile."""
    chance = random.Random(run)
    async with open_store(url) as store:
        head, fence = await own(store, run)
        pipe.send("ready")
        pipe.recv()
        for number in range(1, count + 1):
            value = content(number // CONTENTS, chance.randrange(CONTENTS))
            again = True
            while again:
                try:
                    payload, blobs = store.pack(value, inline=0)
                    if chance.random() < 0.5:
                        payload, blobs = await store.put_blob(canonical(value)), ()
                    body = b.StepCompleted(name=f"t#{number}", number=number, attempt=1, output=payload)
                    head = await extend(store, run, head, fence, body, blobs=blobs)
                    again = False
                except NotFound as missing:  # the collector has no grace period here
                    if missing.what not in ("blob", "upload"):
                        raise
    pipe.send("done")


def content(epoch: int, place: int) -> str:
    """Return one of the contents that are in use at the same time; some have several chunks."""
    return f"{epoch}:{place}:" + "x" * (1_200_000 if place == 0 and epoch % 4 == 0 else 500)


async def collect(pipe: Connection, url: str) -> None:
    """Collect blobs without a grace period until told to stop, and report their number."""
    collected = 0
    async with open_store(url) as store:
        pipe.send("ready")
        stop = asyncio.create_task(asyncio.to_thread(pipe.recv))
        while not stop.done():
            collected += await store.collect_blobs(grace=0)
    pipe.send(collected)


async def open_only(pipe: Connection, url: str) -> None:
    """Open a store, which creates the schema, and close it."""
    pipe.send("ready")
    pipe.recv()
    async with open_store(url) as store:
        assert await store.count() == 0


def noted(number: int) -> AnyBody:
    """Return an event of 1 KB."""
    return b.StepCompleted(name=f"t#{number}", number=number, attempt=1, output=inline("x" * 950))


async def share(pipe: Connection, url: str, run: str, count: int, all_there: Barrier, stop: Path) -> None:
    """Append as fast as possible; report the progress at the time when the first process had finished, then finish."""
    async with open_store(url) as store:
        head, fence = await own(store, run)
        pipe.send("ready")
        all_there.wait()
        at_stop = None
        for number in range(1, count + 1):
            head = await extend(store, run, head, fence, noted(number))
            if at_stop is None and stop.exists():
                at_stop = number
        stop.touch()
    pipe.send((at_stop or count, head))


async def until_killed(pipe: Connection, url: str, run: str) -> None:
    """Append events forever, and report each acknowledged one."""
    async with open_store(url) as store:
        head, fence = await own(store, run)
        number = 0
        while True:
            number += 1
            head = await extend(store, run, head, fence, noted(number))
            pipe.send(head)


# Killing


class KillSwitch:
    """Counts places where a process can be killed, and kills it at one of them."""

    def __init__(self, place: int) -> None:
        self._left = place
        self.lit = True

    def hit(self) -> None:
        """Count a place, and kill the process if it is the chosen one."""
        self._left -= self.lit
        if self.lit and self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def after(self, holder: Any, name: str) -> None:
        """Count a place after each call of a function."""
        real: Callable[..., Any] = getattr(holder, name)

        def call(*arguments: Any, **more: Any) -> Any:
            done = real(*arguments, **more)
            self.hit()
            return done

        setattr(holder, name, call)

    def before_statements(self) -> None:
        """Count a place before each SQLite statement."""

        def trace(cursor: apsw.Cursor, sql: str, bindings: object) -> bool:
            self.hit()
            return True

        def hook(db: apsw.Connection) -> None:
            db.exec_trace = trace

        apsw.connection_hooks.append(hook)

    def install(self, how: str) -> None:
        """Count places of this kind."""
        {"statements": self.before_statements, "files": self.in_files, "queries": self.after_queries}[how]()

    def after_queries(self) -> None:
        """Count a place after each statement that PostgreSQL has answered."""
        for holder, name in (
            (migrate, "query"),
            (psycopg.Connection, "execute"),
            (Wire, "run"),
            (Wire, "send"),
            (Wire, "call"),
        ):
            self.after(holder, name)

    def in_files(self) -> None:
        """Count a place before each write and sync of SQLite's files, and in the middle of each write."""
        self.vfs = _DyingFiles(self)


class _DyingFiles(apsw.VFS):
    def __init__(self, switch: KillSwitch) -> None:
        self._switch = switch
        self._base = apsw.vfs_names()[0]
        super().__init__("dying", self._base, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> "_DyingFile":  # noqa: N802 - SQLite's name
        return _DyingFile(self._base, name, flags, self._switch)


class _DyingFile(apsw.VFSFile):
    def __init__(self, base: str, name: Any, flags: list[int], switch: KillSwitch) -> None:
        self._switch = switch
        super().__init__(base, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - SQLite's name
        self._switch.hit()
        half = len(data) // 2
        super().xWrite(data[:half], offset)
        self._switch.hit()
        super().xWrite(data[half:], offset + half)

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        self._switch.hit()
        super().xSync(flags)


async def open_and_die(pipe: Connection, url: str, how: str, place: int) -> None:
    """Open a new store, and die at this place; report "alive" if there is no such place."""
    switch = KillSwitch(place)
    switch.install(how)
    async with open_store(url):
        switch.lit = False
    pipe.send("alive")


async def transact_and_die(pipe: Connection, url: str, how: str, place: int) -> None:
    """Write a row and an event in one transaction, and die at this place; report "alive" if there is no such place."""
    switch = KillSwitch(place)
    switch.lit = False
    switch.install(how)

    def work(connection: Any) -> tuple[Sequence[AnyBody], Sequence[Blob]]:
        connection.execute(f"INSERT INTO mine VALUES ('{place}')")
        return (recorded(str(place)),), ()

    async with open_store(url) as store:
        row = await store.get("r1")
        switch.lit = True
        await store.transact("r1", after=row.head, fence=row.fence, actor="w", work=work)
        switch.lit = False
    pipe.send("alive")


async def write_and_die(pipe: Connection, url: str, keys: str, run: str, place: int) -> None:
    """Write to a run of an encrypted store and report what was acknowledged, until this place is reached."""
    switch = KillSwitch(place)
    switch.install("statements" if url.startswith("sqlite") else "queries")
    async with open_store(url, keys=MasterKeys.from_file(keys)) as store:
        head, fence = await own(store, run)
        while True:
            number = head.seq
            payload, blobs = store.pack(f"{run} {number} " + "x" * 300, inline=0 if number % 3 == 0 else 1000)
            body = b.StepCompleted(name=f"t#{number}", number=number, attempt=1, output=payload)
            head = await extend(store, run, head, fence, body, blobs=blobs)
            pipe.send((head.seq, head.hash))


async def rotate_and_die(pipe: Connection, url: str, keys: str, place: int) -> None:
    """Rotate the keys of an encrypted store until this place is reached."""
    switch = KillSwitch(place)
    switch.install("statements" if url.startswith("sqlite") else "queries")
    async with open_store(url, keys=MasterKeys.from_file(keys)) as store:
        while True:
            await store.rotate_keys()
