"""Steps of one run, of many runs at once, and of runs that several worker processes share."""

import asyncio
import json
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import limpet
from bench.script import LONGEST, Stopwatch, noise, path_of, wait_for
from bench.workloads.agents import AGENTS, ALL, reads, slow
from bench.workloads.cpu import CpuParts
from limpet.stores.baseline import Baseline
from limpet.stores.sqlite.baseline import bare as bare_sqlite

__all__ = ["bare", "bare_between_work", "many", "one", "stand_by", "work", "workers"]

# Seconds of computing before a commit of the bare loop, about as long as between two steps.
WORK = 0.0002


def bare(url: str, commits: int, batches: int) -> dict[str, float]:
    """Measure the limit: an insert of 1 KB and its commit, and batches of 200 rows in a commit."""
    with _bare(url) as loop:
        loop.per_commit(0, commits // 10)
        step = loop.per_commit(commits, commits)
        return {"step": step, "steps": loop.rows_per_second(0, batches)}


def bare_between_work(url: str, commits: int) -> dict[str, float]:
    """Measure the same commit when its process computes for 0.2 ms before each one, as between two steps.

    Only the commits count. What they find slower then (caches, a sleeping disk) is the machine's part of a step.
    """
    with _bare(url) as loop:
        loop.per_commit(0, commits)
        taken = 0.0
        for seq in range(commits, 2 * commits):
            work = Stopwatch()
            while work.seconds < WORK:
                noise(str(seq), 64)
            commit = Stopwatch()
            loop.single(seq)
            taken += commit.seconds
        return {"step": taken / commits * 1e6}


def _bare(url: str) -> AbstractContextManager[Baseline]:
    if url.startswith("sqlite"):
        return bare_sqlite(Path(path_of(url)))
    from limpet.stores.postgres import baseline  # noqa: PLC0415 - needs an extra

    return baseline.bare(baseline.in_schema(url, "bare"))


async def one(url: str, kind: str, steps: int) -> dict[str, float]:
    """Measure one run alone: microseconds a step, and the CPU of its parts."""
    async with limpet.open(url, agents=ALL) as app:
        await app.run(AGENTS[kind], steps)  # One-time costs are not measured, such as those of a growing log file.
        with CpuParts() as parts:
            watch = Stopwatch()
            await app.run(AGENTS[kind], steps)
            figures = watch.each(steps)
        return figures | parts.each(steps)


async def many(url: str, kind: str, runs: int, each: int) -> dict[str, float]:
    """Measure many runs at once in one process: steps per second, and the CPU of its parts."""
    async with limpet.open(url, agents=ALL, worker=limpet.Worker(concurrency=runs, relaxed_gc=True)) as app:
        await app.run(AGENTS[kind], each)
        with CpuParts() as parts:
            watch = Stopwatch()
            await asyncio.gather(*(app.run(AGENTS[kind], each) for _ in range(runs)))
            figures = watch.together(runs * each)
        return figures | parts.each(runs * each)


async def workers(url: str, processes: int, runs: int, each: int) -> dict[str, float]:
    """Measure worker processes on one store: they start together, and share runs that wait for them."""
    async with limpet.open(url, agents=ALL, worker=False) as app:
        await asyncio.gather(*(app.start(reads, each) for _ in range(runs)))
        children = [_child("work", url=url) for _ in range(processes)]
        try:
            for child in children:
                _line(child, "ready")
            watch = Stopwatch()
            for child in children:
                assert child.stdin is not None
                child.stdin.write("go\n")
                child.stdin.flush()
            await wait_for(lambda: _is_done(app, runs), pause=0.05)
            figures = {"steps": runs * each / watch.seconds}
        finally:
            for child in children:
                child.kill()
                child.communicate()
    return figures


async def _is_done(app: limpet.App, runs: int) -> bool:
    return (await app.stats()).runs.get("completed", 0) >= runs


async def work(url: str) -> None:
    """Work on the runs of a store once told to, until killed."""
    print("ready", flush=True)
    sys.stdin.readline()
    async with limpet.open(url, agents=ALL, worker=limpet.Worker(relaxed_gc=True)):
        await asyncio.sleep(LONGEST)


async def stand_by(url: str, lease: float, start: bool) -> None:
    """Run a worker until it is killed; a worker that starts the run reports its steps first."""
    async with limpet.open(url, agents=[slow], worker=limpet.Worker(lease=f"{lease:g}s")) as app:
        if start:
            await app.start(slow, 2_000)
        print("ready", flush=True)
        await asyncio.sleep(LONGEST)


def _child(name: str, **arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "bench.workloads", name, json.dumps(arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _line(child: "subprocess.Popen[str]", expected: str) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        if line.strip() == expected:
            return
    raise RuntimeError("a worker process ended before it was ready")
