"""Jobs of the suite for other processes: `python -m limpet.stores.conformance.child FACTORY ARGUMENT JOB PLACE …`."""

import asyncio
import os
import signal
import sys
from importlib import import_module

from limpet.errors import AlreadyAnswered
from limpet.events import Head, seal_all
from limpet.stores import Extend, Missed, Store, WorkerRow
from limpet.stores.conformance.suite import LEASE, answered, contract, created, started


async def create(store: Store, place: str, count: str) -> str:
    """Create some runs."""
    for number in range(int(count)):
        await store.create(f"p{place}-{number}", created(), actor=place)
    return count


async def create_same(store: Store, place: str) -> str:
    """Create a run that the other processes also create."""
    _, fresh = await store.create("same", created(), actor=place)
    return "fresh" if fresh else "there"


async def claim(store: Store, place: str, limit: str) -> str:
    """Claim some runs under this process's own worker id, and keep them."""
    await store.register(WorkerRow(id=f"w{place}", agents={"a": ("1",)}), lease=LEASE * 1000)
    got = [claimed.row.id for _ in range(int(limit)) for claimed in await store.claim(f"w{place}", limit=1)]
    await store.retire(f"w{place}")
    return ",".join(got)


async def claim_and_die(store: Store, place: str) -> str:
    """Claim a run, print it, and get killed."""
    await store.register(WorkerRow(id=f"dying{place}", agents={"a": ("1",)}), lease=LEASE * 1000)
    [claimed] = await store.claim(f"dying{place}", limit=1)
    sys.stdout.write(f"{claimed.row.id}\n")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


async def answer(store: Store, place: str, count: str) -> str:
    """Answer every request, in competition with others; return how many answers were accepted."""
    mine = 0
    for number in range(int(count)):
        try:
            await store.send_commands("r1", answered(f"q{number}", by=place, command=f"c{place}-{number}"), actor=place)
        except AlreadyAnswered:
            continue
        mine += 1
    return str(mine)


async def extend(store: Store, place: str, count: str) -> str:
    """Append to a run that the other processes also append to, under the same fence; return how many were written."""
    row = await store.get("r1")
    head, landed = row.head, 0
    while landed < int(count):
        number = int(place) * 10_000 + landed + 1
        events = seal_all(head, "r1", (started(number),), time=0, fence=row.fence, actor=place)
        done = await store.append(Extend(run="r1", after=head, fence=row.fence, events=events))
        head = (done.events if isinstance(done, Missed) else events)[-1].event.head
        landed += not isinstance(done, Missed)
    assert isinstance(head, Head)
    return str(landed)


async def save_contracts(store: Store, place: str, count: str) -> str:
    """Save contracts that the other processes also save, some in reverse order; return how many exist then."""
    rows = [contract(f"a{number:03}") for number in range(int(count))]
    await store.save_contracts(rows if int(place) % 2 else rows[::-1])
    return str(len(await store.contracts()))


JOBS = {job.__name__: job for job in (create, create_same, claim, claim_and_die, answer, extend, save_contracts)}


async def main(factory: str, argument: str, job: str, *rest: str) -> None:
    """Open the store and run the job."""
    module, _, name = factory.partition(":")
    async with Store(getattr(import_module(module), name)(argument)) as store:
        result = await JOBS[job](store, *rest)
    sys.stdout.write(f"{result}\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
