"""Temporal: a workflow of activities, on a development server with a SQLite file.

The server writes each event of a workflow durably before it answers, also that an activity is scheduled: an intent.
Production servers use PostgreSQL, MySQL or Cassandra. The development server's default is a rollback journal with a
sync for each commit; WAL with `synchronous=FULL` is as durable, faster, and what the other systems here use.
"""

import asyncio
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from bench.script import BODY, LONGEST, Stopwatch, answer, path_of, report_step

QUEUE = "bench"
called = asyncio.Event()
"""Set when an activity is called."""
PRAGMAS = {"journal_mode": "WAL", "synchronous": "FULL"}


@activity.defn
async def work(n: int) -> str:  # noqa: ARG001
    called.set()
    return BODY


@activity.defn
async def slow(n: int) -> str:
    report_step(n)
    await asyncio.sleep(0.05)
    return BODY


@workflow.defn(sandboxed=False)
class Steps:
    """Some activities, one after the other; then a wait for a person if asked to."""

    def __init__(self) -> None:
        self.answered = False

    @workflow.run
    async def run(self, count: int, ask: bool, lease: float) -> int:
        for n in range(count):
            limit = timedelta(seconds=lease or 60)
            await workflow.execute_activity(slow if lease else work, n, start_to_close_timeout=limit)
        if ask:
            await workflow.wait_condition(lambda: self.answered)
        return count

    @workflow.signal
    def go(self) -> None:
        self.answered = True


@asynccontextmanager
async def server(url: str) -> AsyncIterator[Client]:
    """Run a server on the SQLite file; or, given an address, connect to one that runs."""
    if not url.startswith("sqlite"):
        yield await Client.connect(url)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = [
        str(Path(sys.executable).with_name("temporal")),
        "server",
        "start-dev",
        "--headless",
        "--port",
        str(port),
    ]
    pragmas = [f"--sqlite-pragma={name}={value}" for name, value in PRAGMAS.items()]
    file = path_of(url)
    running = subprocess.Popen(
        [*program, "--db-filename", file, *pragmas, "--log-level", "never"], stdout=subprocess.DEVNULL
    )
    try:
        yield await connected(f"127.0.0.1:{port}")
    finally:
        running.terminate()
        running.wait()


async def connected(address: str) -> Client:
    for _ in range(300):
        try:
            client = await Client.connect(address)
            await client.service_client.check_health()
        except (RuntimeError, RPCError):
            await asyncio.sleep(0.1)
        else:
            return client
    raise TimeoutError(address)


@asynccontextmanager
async def worker(url: str, **options: Any) -> AsyncIterator[Client]:
    async with (
        server(url) as client,
        Worker(client, task_queue=QUEUE, workflows=[Steps], activities=[work, slow], **options),
    ):
        yield client


async def begin(client: Client, id: str, count: int, *, ask: bool = False, lease: float = 0) -> Any:
    return await client.start_workflow(Steps.run, args=[count, ask, lease], id=id, task_queue=QUEUE)


async def one(url: str, steps: int) -> dict[str, float]:
    async with worker(url) as client:
        await (await begin(client, "warm", steps)).result()
        watch = Stopwatch()
        await (await begin(client, "one", steps)).result()
        return watch.each(steps)


async def many(url: str, runs: int, each: int) -> dict[str, float]:
    async with worker(url, max_concurrent_workflow_tasks=runs, max_concurrent_activities=runs) as client:
        await (await begin(client, "warm", each)).result()
        watch = Stopwatch()
        handles = await asyncio.gather(*(begin(client, f"many-{number}", each) for number in range(runs)))
        await asyncio.gather(*(handle.result() for handle in handles))
        return watch.together(runs * each)


async def approval(url: str, times: int) -> dict[str, float]:
    async with worker(url) as client:
        return {"round trip": await approve_all(client, times) * 1e3}


async def approve_all(client: Client, times: int) -> float:
    """Return the mean of the seconds from a signal until the workflow has ended."""
    spent = 0.0
    for number in range(times):
        handle = await begin(client, f"ask-{number}", 1, ask=True)
        await asyncio.sleep(0.2)
        watch = Stopwatch()
        await handle.signal(Steps.go)
        await handle.result()
        spent += watch.seconds
    return spent / times


async def engine(url: str, steps: int, runs: int, each: int, times: int) -> dict[str, float]:
    """Measure one workflow alone, many at once, the start until the first activity, and an approval."""
    async with worker(url, max_concurrent_workflow_tasks=runs, max_concurrent_activities=runs) as client:
        await (await begin(client, "warm", each)).result()
        watch = Stopwatch()
        await (await begin(client, "one", steps)).result()
        alone = steps / watch.seconds
        watch = Stopwatch()
        handles = await asyncio.gather(*(begin(client, f"many-{number}", each) for number in range(runs)))
        await asyncio.gather(*(handle.result() for handle in handles))
        together = runs * each / watch.seconds
        first = statistics.median([await first_step(client, f"first-{number}") for number in range(times)])
        answered = await approve_all(client, times)
    return {"one": alone, "steps": together, "first step": first * 1e3, "round trip": answered * 1e3}


async def first_step(client: Client, id: str) -> float:
    """Return the seconds from the start of a workflow until its first activity is called."""
    called.clear()
    watch = Stopwatch()
    handle = await begin(client, id, 1)
    await called.wait()
    taken = watch.seconds
    await handle.result()
    return taken


async def idle(url: str, seconds: float) -> dict[str, float]:
    """Return the CPU of a worker that has nothing to do, in percent of a core; the server's is `server`."""
    async with worker(url) as client:
        await (await begin(client, "warm", 1)).result()
        await asyncio.sleep(min(seconds, 5))  # let the server settle
        before, watch = server_cpu(), Stopwatch()
        await asyncio.sleep(seconds)
        return {"idle": watch.cpu / watch.seconds * 100, "server": (server_cpu() - before) / watch.seconds * 100}


def server_cpu() -> float:
    """Return the seconds of CPU of the child process that is the server."""
    spent = 0
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            spent += int(fields[11]) + int(fields[12])
    return spent / os.sysconf("SC_CLK_TCK")


async def serve(url: str) -> dict[str, float]:
    """Run a server until it is killed, and print its address."""
    async with server(url) as client:
        print(client.service_client.config.target_host, flush=True)
        await asyncio.sleep(LONGEST)
    return {}


async def stand_by(url: str, lease: float, start: bool) -> dict[str, float]:
    """Run a worker until it is killed; a worker that starts the workflow reports its steps first."""
    async with worker(url) as client:
        if start:
            await begin(client, "taken", 2_000, lease=lease)
        print("ready", flush=True)
        await asyncio.sleep(LONGEST)
    return {}


def settings(url: str) -> dict[str, str]:  # noqa: ARG001
    """Return how durable its commits are: as this program configures them."""
    return PRAGMAS


if __name__ == "__main__":
    answer({each.__name__: each for each in (one, many, approval, engine, idle, serve, stand_by, settings)})
