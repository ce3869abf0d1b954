"""What the crash tests do in processes of their own: functions that get a pipe, and say what a test must know."""

import asyncio
import random  # noqa: TID251 - what is done where
from collections.abc import Sequence
from multiprocessing.connection import Connection

from limpet import open_store
from limpet.clock import SystemClock
from limpet.errors import NotFound
from limpet.events import AnyBody, Head, canonical, seal_all
from limpet.events import bodies as b
from limpet.stores import Appended, Extend, Store, WorkerRow
from limpet.stores.blobs import Blob
from tests.crash.load import LEASE, Common, Load, created

__all__ = ["collect", "content", "reuse", "shuffle"]

WRITING = ("append", "append", "two_runs", "two_runs", "tell", "append_and_tell")
CONTENTS = 20


async def own(store: Store, run: str) -> tuple[Head, int]:
    """Create a run unless it is there, and claim it under a worker of its own; its head and fence."""
    await store.create(run, created(run), actor=run)
    await store.register(WorkerRow(id=run, agents={run: ("1",)}), lease=LEASE)
    [claimed] = await store.claim(run, limit=1)
    return claimed.row.head, claimed.row.fence


async def extend(store: Store, run: str, head: Head, fence: int, body: AnyBody, *, blobs: Sequence[Blob] = ()) -> Head:
    """One durable append of a run's only writer."""
    now = SystemClock().now()
    sealed = seal_all(head, run, (body,), time=now, fence=fence, actor=run, codec=store.codec)
    done = await store.append(Extend(run=run, after=head, fence=fence, events=sealed), blobs=blobs)
    assert isinstance(done, Appended), done
    return sealed[-1].event.head


async def shuffle(pipe: Connection, url: str, name: str, shared: Common, count: int) -> None:
    """A load on runs that others write too; say what it left."""
    async with open_store(url) as store:
        load = Load(store, name, shared, kinds=WRITING)
        pipe.send("ready")
        pipe.recv()
        places = iter(range(count))
        await load.run(lambda: next(places, None) is not None, tasks=4)
    assert load.lost == 0
    pipe.send(load.marks)


async def reuse(pipe: Connection, url: str, run: str, count: int) -> None:
    """Refer to contents that others use too, brought along or put ahead; a content that was collected is put again."""
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
                except NotFound as missing:  # the collector gives no time at all here
                    assert missing.what in ("blob", "upload")
    pipe.send("done")


def content(epoch: int, place: int) -> str:
    """One of those that are used at the same time; one in twenty has several chunks."""
    return f"{epoch}:{place}:" + "x" * (1_200_000 if place == 0 else 500)


async def collect(pipe: Connection, url: str) -> None:
    """Collect blobs without any grace until told to stop; say how many there were."""
    collected = 0
    async with open_store(url) as store:
        pipe.send("ready")
        stop = asyncio.create_task(asyncio.to_thread(pipe.recv))
        while not stop.done():
            collected += await store.collect_blobs(grace=0)
    pipe.send(collected)
