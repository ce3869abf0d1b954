"""A run whose log outlives its process: start it, kill it anywhere, start it again."""

import asyncio

import limpet
from limpet.clock import SystemClock
from limpet.events import bodies as b
from limpet.events import inline
from limpet.ids import RandomIds
from limpet.journal import Journal
from limpet.stores import WorkerRow

STEPS = ["look", "decide", "refund", "tell"]


async def main() -> None:
    """Do the remaining steps of ticket-42."""
    clock = SystemClock()
    worker = RandomIds(clock).new()
    async with limpet.open_store("sqlite:///support.db") as store:
        body = b.RunCreated(agent="support", agent_version="1", input=inline({"ticket": 42}))
        await store.create("ticket-42", body, actor=worker)  # same id, same input: the same run
        await store.register(WorkerRow(id=worker, agents={"support": ("1",)}), lease=10_000_000)
        for claimed in await store.claim(worker, limit=1):  # the run of a dead process can be claimed immediately
            journal = await Journal.open(store, claimed, clock.now)
            for number in range(journal.state.counters.steps_completed + 1, len(STEPS) + 1):
                print(f"step {number}: {STEPS[number - 1]}")
                step = b.StepCompleted(name=f"{STEPS[number - 1]}#1", number=number, attempt=1, output=inline("ok"))
                await journal.append(step)  # durable when this returns
            await journal.append(b.RunCompleted(output=inline("done")))
        row = await store.get("ticket-42")
        print(f"{row.id} is {row.status}, {row.seq} events")
        await store.retire(worker)


if __name__ == "__main__":
    asyncio.run(main())
