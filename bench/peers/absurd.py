"""Absurd: tasks in a queue of PostgreSQL, executed by an asynchronous worker. Its schema comes with `absurdctl`.

A step's result is durable before it returns; Absurd records no intent before a step. A worker polls its queue every
250 ms, its default: that delay is part of starting a task, and of waking it. Steps of one worker share a connection.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import absurdctl
import psycopg
from absurd_sdk import AsyncAbsurd

from bench.script import BODY, LONGEST, Stopwatch, answer, report_step, wait_for

LEFT = "left"
DONE = ("completed", "failed", "cancelled")


def install(url: str) -> None:
    """Install the schema, if it is not there."""
    with psycopg.connect(url, autocommit=True) as db:
        if db.execute("SELECT to_regclass('absurd.queues')").fetchone()[0] is None:
            db.execute(absurdctl.BUNDLED_SCHEMA_SQL)


@asynccontextmanager
async def worker(url: str, concurrency: int = 1, claim: int = 120) -> AsyncIterator["Client"]:
    """Run a worker, and yield a client that has a connection of its own."""
    install(url)
    app, client = AsyncAbsurd(url), AsyncAbsurd(url)
    await client.create_queue()
    define(app)
    working = asyncio.create_task(app.start_worker(concurrency=concurrency, claim_timeout=claim))
    try:
        yield Client(client)
    finally:
        app.stop_worker()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await app.close()
        await client.close()


def define(app: AsyncAbsurd) -> None:
    @app.register_task("steps")
    async def steps(request: dict[str, Any], ctx: Any) -> dict[str, float]:
        async def work(n: int) -> str:
            if request.get("slow"):
                report_step(n)
                await asyncio.sleep(0.05)
            return BODY

        watch = Stopwatch()
        for n in range(request["steps"]):
            await ctx.step("work", partial(work, n))
        figures = watch.each(max(request["steps"], 1))
        if request.get("ask"):
            await ctx.await_event(request["ask"])
        return figures


class Client:
    """Starts tasks, and waits for them without the delay of a poll."""

    def __init__(self, app: AsyncAbsurd) -> None:
        self.app = app

    async def start(self, steps: int, **more: Any) -> str:
        return (await self.app.spawn("steps", {"steps": steps, **more}, queue="default"))["task_id"]

    async def state(self, task: str) -> Any:
        return await self.app.fetch_task_result(task)

    async def result(self, task: str) -> Any:
        async def ended() -> bool:
            return (await self.state(task)).state in DONE

        await wait_for(ended)
        return (await self.state(task)).result

    async def is_asleep(self, task: str) -> bool:
        return (await self.state(task)).state == "sleeping"


async def one(url: str, steps: int) -> dict[str, float]:
    """Measure inside the task, so that the poll before it does not count."""
    async with worker(url) as client:
        await client.result(await client.start(steps))
        return await client.result(await client.start(steps))


async def many(url: str, runs: int, each: int) -> dict[str, float]:
    async with worker(url, concurrency=runs) as client:
        await client.result(await client.start(each))
        watch = Stopwatch()
        for task in [await client.start(each) for _ in range(runs)]:
            await client.result(task)
        return watch.together(runs * each)


async def leave(url: str, steps: int) -> dict[str, float]:
    """Leave a task that waits for an event after some steps."""
    async with worker(url) as client:
        task = await client.start(steps, ask=LEFT)
        await wait_for(lambda: client.is_asleep(task))
    return {}


async def resume(url: str) -> dict[str, float]:
    async with AsyncClient(url) as app:
        await app.emit_event(LEFT, {"go": True}, "default")
    watch = Stopwatch()
    async with worker(url) as client:
        await client.result(await only_task(url))
        return {"resume": watch.seconds * 1e3}


@asynccontextmanager
async def AsyncClient(url: str) -> AsyncIterator[AsyncAbsurd]:  # noqa: N802
    app = AsyncAbsurd(url)
    try:
        await app.list_queues()
        yield app
    finally:
        await app.close()


async def only_task(url: str) -> str:
    async with await psycopg.AsyncConnection.connect(url) as db:
        found = await (await db.execute("SELECT task_id FROM absurd.t_default")).fetchone()
        return str(found[0])


async def approval(url: str, times: int) -> dict[str, float]:
    async with worker(url) as client:
        spent = 0.0
        for number in range(times):
            task = await client.start(1, ask=f"ask-{number}")
            await wait_for(lambda task=task: client.is_asleep(task))
            watch = Stopwatch()
            await client.app.emit_event(f"ask-{number}", {"go": True}, "default")
            await client.result(task)
            spent += watch.seconds
        return {"round trip": spent / times * 1e3}


async def idle(url: str, seconds: float) -> dict[str, float]:
    """Return the CPU of a worker that has nothing to do, in percent of a core."""
    async with worker(url) as client:
        await client.result(await client.start(1))
        watch = Stopwatch()
        await asyncio.sleep(seconds)
        return {"idle": watch.cpu / watch.seconds * 100}


async def stand_by(url: str, lease: float, start: bool) -> dict[str, float]:
    """Run a worker until it is killed; a worker that starts the task reports its steps first."""
    async with worker(url, claim=int(lease)) as client:
        if start:
            await client.start(2_000, slow=True)
        print("ready", flush=True)
        await asyncio.sleep(LONGEST)
    return {}


def settings(url: str) -> dict[str, str]:
    """Return how durable its commits are."""
    with psycopg.connect(url) as db:
        return {"synchronous_commit": db.execute("SHOW synchronous_commit").fetchone()[0]}


if __name__ == "__main__":
    answer({each.__name__: each for each in (one, many, leave, resume, approval, idle, stand_by, settings)})
