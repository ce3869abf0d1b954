"""What the crash tests do in processes of their own: `python -m tests.crash.writers JOB PATH …`."""

import asyncio
import os
import sys
from pathlib import Path

import msgspec

from limpet import open_store
from limpet.clock import SystemClock
from limpet.events import Head, inline, seal_all
from limpet.events import bodies as b
from limpet.stores import Appended, Extend, Store, WorkerRow
from tests.crash.load import Common, Load

LEASE = 3_600_000_000
WRITING = ("append", "append", "two_runs", "two_runs", "tell", "append_and_tell")


def say(text: str) -> None:
    """A line to the test, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def own(store: Store, run: str) -> tuple[Head, int]:
    """Create a run and claim it under a worker of its own."""
    body = b.RunCreated(agent=run, agent_version="1", input=inline(None))
    await store.create(run, body, actor=run)
    await store.register(WorkerRow(id=f"{run}-{os.getpid()}", agents={run: ("1",)}), lease=LEASE)
    [claimed] = await store.claim(f"{run}-{os.getpid()}", limit=1)
    return claimed.row.head, claimed.row.fence


async def append(store: Store, run: str, head: Head, fence: int, number: int) -> Head:
    """One durable append of 1 KB."""
    body = b.StepCompleted(name=f"t#{number}", number=number, attempt=1, output=inline("x" * 950))
    sealed = seal_all(head, run, (body,), time=SystemClock().now(), fence=fence, actor=run)
    done = await store.append(Extend(run=run, after=head, fence=fence, events=sealed))
    assert isinstance(done, Appended), done
    return sealed[-1].event.head


async def share(path: str, run: str, count: str) -> None:
    """Append as fast as possible; say how far this process was when the first one had finished, then finish too."""
    stop = Path(f"{path}.stop")
    async with open_store(f"sqlite:///{path}") as store:
        head, fence = await own(store, run)
        say("ready")
        sys.stdin.readline()
        at_stop = None
        for number in range(1, int(count) + 1):
            head = await append(store, run, head, fence, number)
            if at_stop is None and stop.exists():
                at_stop = number
        stop.touch()
    say(f"{at_stop or count} {head.seq} {head.hash.hex()}")


async def until_killed(path: str, run: str) -> None:
    """Append and say so, for ever; what is said was acknowledged."""
    async with open_store(f"sqlite:///{path}") as store:
        head, fence = await own(store, run)
        number = 0
        while True:
            number += 1
            head = await append(store, run, head, fence, number)
            say(f"{head.seq} {head.hash.hex()}")


async def shuffle(url: str, name: str, common: str, count: str) -> None:
    """A load on runs that others write too; say what it left."""
    async with open_store(url) as store:
        load = Load(store, name, msgspec.json.decode(common, type=Common), kinds=WRITING)
        say("ready")
        sys.stdin.readline()
        places = iter(range(int(count)))
        await load.run(lambda: next(places, None) is not None)
    assert load.lost == 0
    say(" ".join(sorted(load.marks)))


async def open_only(path: str) -> None:
    """Open, which makes the schema, and close."""
    async with open_store(f"sqlite:///{path}") as store:
        say(str(await store.count()))


if __name__ == "__main__":
    jobs = {job.__name__: job for job in (share, until_killed, shuffle, open_only)}
    asyncio.run(jobs[sys.argv[1]](*sys.argv[2:]))
