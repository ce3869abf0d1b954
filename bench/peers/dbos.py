"""DBOS: a workflow of steps. Its documentation recommends PostgreSQL for production, and SQLite for development.

A step's result is durable before it returns; DBOS records no intent before a step. On SQLite it keeps the rollback
journal. Workflows are plain functions in threads: in this test they were faster than DBOS's asynchronous ones on
PostgreSQL. Several processes need Conductor, a separate service, to recover each other's workflows, so a takeover is
not measured here.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from dbos import DBOS, SetWorkflowID

from bench.script import BODY, Stopwatch, answer, path_of

LEFT = "left"


@DBOS.step()
def work(n: int) -> str:  # noqa: ARG001
    return BODY


@DBOS.workflow()
def program(count: int, ask: bool) -> int:
    for n in range(count):
        work(n)
    if ask:
        DBOS.recv("answer", timeout_seconds=600)
    return count


@contextmanager
def launched(url: str) -> Iterator[None]:
    DBOS(config={"name": "bench", "system_database_url": url, "application_version": "1", "log_level": "ERROR"})
    DBOS.launch()
    try:
        yield
    finally:
        DBOS.destroy(workflow_completion_timeout_sec=0)


def start(workflow: str, count: int, *, ask: bool = False) -> Any:
    with SetWorkflowID(workflow):
        return DBOS.start_workflow(program, count, ask)


def one(url: str, steps: int) -> dict[str, float]:
    with launched(url):
        program(steps, False)
        watch = Stopwatch()
        program(steps, False)
        return watch.each(steps)


def many(url: str, runs: int, each: int) -> dict[str, float]:
    with launched(url):
        program(each, False)
        watch = Stopwatch()
        for handle in [start(f"many-{number}", each) for number in range(runs)]:
            handle.get_result()
        return watch.together(runs * each)


def leave(url: str, steps: int) -> dict[str, float]:
    """Leave a workflow that waits for a message after some steps."""
    with launched(url):
        start(LEFT, steps, ask=True)
        while len(DBOS.list_workflow_steps(LEFT)) < steps:
            time.sleep(0.1)
        return {}


def resume(url: str) -> dict[str, float]:
    watch = Stopwatch()
    with launched(url):
        DBOS.send(LEFT, True, "answer")
        DBOS.retrieve_workflow(LEFT).get_result()
        return {"resume": watch.seconds * 1e3}


def approval(url: str, times: int) -> dict[str, float]:
    with launched(url):
        spent = 0.0
        for number in range(times):
            handle = start(f"ask-{number}", 1, ask=True)
            time.sleep(0.2)
            watch = Stopwatch()
            DBOS.send(f"ask-{number}", True, "answer")
            handle.get_result()
            spent += watch.seconds
        return {"round trip": spent / times * 1e3}


def idle(url: str, seconds: float) -> dict[str, float]:
    """Return the CPU of a process that has nothing to do, in percent of a core."""
    with launched(url):
        program(1, False)
        time.sleep(1)
        watch = Stopwatch()
        time.sleep(seconds)
        return {"idle": watch.cpu / watch.seconds * 100}


def settings(url: str) -> dict[str, str]:
    """Return how durable its commits are."""
    with launched(url):
        if not url.startswith("sqlite"):
            with psycopg.connect(url) as server:
                return {"synchronous_commit": server.execute("SHOW synchronous_commit").fetchone()[0]}
        db = sqlite3.connect(path_of(url))
        return {name: str(db.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("journal_mode", "synchronous")}


if __name__ == "__main__":
    answer({each.__name__: each for each in (one, many, leave, resume, approval, idle, settings)})
