"""Commit a row of your own together with the event that records it.

Start it, kill it anywhere, start it again: `refunds` never has a row that the log does not record, or the reverse.
"""

import asyncio
from collections.abc import Sequence

import apsw

import limpet
from limpet.clock import SystemClock
from limpet.events import AnyBody, inline
from limpet.events import bodies as b
from limpet.ids import RandomIds
from limpet.journal import Journal
from limpet.stores import Blob, WorkerRow


def refund(connection: apsw.Connection) -> tuple[Sequence[AnyBody], Sequence[Blob]]:
    """Write inside the store's transaction; the returned events are appended there."""
    connection.execute("CREATE TABLE IF NOT EXISTS refunds (ticket TEXT PRIMARY KEY, cents INTEGER NOT NULL)")
    connection.execute("INSERT INTO refunds VALUES ('ticket-42', 900)")
    return [b.StepCompleted(name="refund#1", number=1, attempt=1, output=inline({"cents": 900}))], ()


async def main() -> None:
    """Refund ticket-42, once."""
    clock = SystemClock()
    worker = RandomIds(clock).new()
    async with limpet.open_store("sqlite:///support.db") as store:
        body = b.RunCreated(agent="support", agent_version="1", input=inline({"ticket": 42}))
        await store.create("ticket-42", body, actor=worker)
        await store.register(WorkerRow(id=worker, agents={"support": ("1",)}), lease=10_000_000)
        for claimed in await store.claim(worker, limit=1):
            journal = await Journal.open(store, claimed, clock.now)
            if journal.state.counters.steps_completed == 0:
                await journal.transact(refund)
            await journal.append(b.RunCompleted(output=inline("refunded")))
        print([event.kind async for event in store.log("ticket-42")])
        await store.retire(worker)


if __name__ == "__main__":
    asyncio.run(main())
