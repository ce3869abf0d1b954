"""The store alone: durable appends of one event each, sealed, fenced and projected, without the engine."""

import asyncio

from bench.script import BODY, Stopwatch
from limpet import open_store
from limpet.clock import SystemClock
from limpet.events import bodies as b
from limpet.events import inline, seal
from limpet.stores import Appended, Claimed, Extend, Store, WorkerRow

__all__ = ["store"]


async def store(url: str, callers: int, events: int) -> dict[str, float]:
    """Measure callers that each append events one after the other, and wait for every one."""
    async with open_store(url) as opened:
        claimed = await _claimed(opened, callers)
        watch = Stopwatch()
        await asyncio.gather(*(_append(opened, each, events) for each in claimed))
        return watch.each(events) | watch.together(callers * events)


async def _claimed(store: Store, count: int) -> list[Claimed]:
    await store.register(WorkerRow(id="w1", agents={"a": ("1",)}), lease=600_000_000)
    body = b.RunCreated(agent="a", agent_version="1", input=inline(None))
    await asyncio.gather(*(store.create(f"r{place}", body, actor="bench") for place in range(count)))
    return list(await store.claim("w1", limit=count))


async def _append(store: Store, claimed: Claimed, events: int) -> None:
    clock, row, head = SystemClock(), claimed.row, claimed.row.head
    for number in range(1, events + 1):
        body = b.StepCompleted(name=f"t#{number}", number=number, attempt=1, output=inline(BODY))
        sealed = seal(head, row.id, body, time=clock.now(), fence=row.fence, actor="w1")
        done = await store.append(Extend(run=row.id, after=head, fence=row.fence, events=(sealed,)))
        assert isinstance(done, Appended)
        head = sealed.event.head
