"""LangGraph: the functional API, with the checkpointers for SQLite and PostgreSQL and `durability="sync"`.

A task's result is durable before the next one starts. LangGraph records no intent before a task, and has no workers:
`invoke` executes in the caller's process. Many runs at once are measured as threads and with asyncio: on SQLite,
asyncio takes less CPU (though its checkpointer's documentation advises against production use); on PostgreSQL,
threads do.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from bench.script import BODY, Stopwatch, answer, noise, path_of

THREADS = 16
CONNECTION = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}


@contextmanager
def saver(url: str) -> Iterator[Any]:
    """Open the checkpointer, with a pool of connections on PostgreSQL as its documentation shows."""
    if url.startswith("sqlite"):
        with SqliteSaver.from_conn_string(path_of(url)) as kept:
            kept.setup()
            yield kept
        return
    with ConnectionPool(url, max_size=THREADS, kwargs=CONNECTION) as pool:
        kept = PostgresSaver(pool)
        kept.setup()
        yield kept


def config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


@task
def work(n: int) -> str:  # noqa: ARG001
    return BODY


def program(kept: Any) -> Any:
    """Return an agent of `steps` tasks, which then waits for a person if asked to."""

    @entrypoint(checkpointer=kept)
    def steps(request: dict[str, Any]) -> int:
        for n in range(request["steps"]):
            work(n).result()
        if request.get("ask"):
            interrupt("go on?")
        return request["steps"]

    return steps


def one(url: str, steps: int) -> dict[str, float]:
    with saver(url) as kept:
        agent = program(kept)
        agent.invoke({"steps": steps}, config("warm"), durability="sync")
        watch = Stopwatch()
        agent.invoke({"steps": steps}, config("one"), durability="sync")
        return watch.each(steps)


def many(url: str, runs: int, each: int) -> dict[str, float]:
    with saver(url) as kept, ThreadPoolExecutor(THREADS) as pool:
        agent = program(kept)

        def invoke(number: int) -> None:
            agent.invoke({"steps": each}, config(f"many-{number}"), durability="sync")

        invoke(-1)
        watch = Stopwatch()
        list(pool.map(invoke, range(runs)))
        return watch.together(runs * each)


@asynccontextmanager
async def async_saver(url: str) -> AsyncIterator[Any]:
    if url.startswith("sqlite"):
        async with AsyncSqliteSaver.from_conn_string(path_of(url)) as kept:
            await kept.setup()
            yield kept
        return
    async with AsyncConnectionPool(url, max_size=THREADS, open=False, kwargs=CONNECTION) as pool:
        kept = AsyncPostgresSaver(pool)
        await kept.setup()
        yield kept


@task
async def work_async(n: int) -> str:  # noqa: ARG001
    return BODY


async def many_async(url: str, runs: int, each: int) -> dict[str, float]:
    async with async_saver(url) as kept:

        @entrypoint(checkpointer=kept)
        async def agent(steps: int) -> int:
            for n in range(steps):
                await work_async(n)
            return steps

        await agent.ainvoke(each, config("warm"), durability="sync")
        watch = Stopwatch()
        await asyncio.gather(*(agent.ainvoke(each, config(f"many-{n}"), durability="sync") for n in range(runs)))
        return watch.together(runs * each)


def leave(url: str, steps: int) -> dict[str, float]:
    """Leave a run that waits for a person after some steps."""
    with saver(url) as kept:
        program(kept).invoke({"steps": steps, "ask": True}, config("left"), durability="sync")
        return {}


def resume(url: str) -> dict[str, float]:
    watch = Stopwatch()
    with saver(url) as kept:
        program(kept).invoke(Command(resume=True), config("left"), durability="sync")
        return {"resume": watch.seconds * 1e3}


def approval(url: str, times: int) -> dict[str, float]:
    with saver(url) as kept:
        agent, spent = program(kept), 0.0
        for number in range(times):
            agent.invoke({"steps": 1, "ask": True}, config(f"ask-{number}"), durability="sync")
            watch = Stopwatch()
            agent.invoke(Command(resume=True), config(f"ask-{number}"), durability="sync")
            spent += watch.seconds
        return {"round trip": spent / times * 1e3}


def conversation(url: str, turns: int) -> dict[str, float]:
    """Hold a conversation, 1 KB each way, with a graph of one replying node."""

    def reply(state: Any) -> Any:
        return {"messages": [AIMessage(noise(f"reply {len(state['messages'])}", 1024))]}

    building = StateGraph(MessagesState)
    building.add_node("model", reply)
    building.add_edge(START, "model")
    building.add_edge("model", END)
    with saver(url) as kept:
        talk, watch = building.compile(checkpointer=kept), Stopwatch()
        for number in range(turns):
            message = HumanMessage(noise(f"message {number}", 1024))
            talk.invoke({"messages": [message]}, config("c"), durability="sync")
        figures = {"turn": watch.seconds / turns * 1e3, "cpu": watch.cpu / turns * 1e3}
    return figures | {"bytes": os.path.getsize(path_of(url))}


def settings(url: str) -> dict[str, str]:
    """Return how durable its commits are."""
    with saver(url) as kept:
        if url.startswith("sqlite"):
            pragmas = ("journal_mode", "synchronous")
            return {name: str(kept.conn.execute(f"PRAGMA {name}").fetchone()[0]) for name in pragmas}
        with kept.conn.connection() as db:
            return {"synchronous_commit": db.execute("SHOW synchronous_commit").fetchone()["synchronous_commit"]}


if __name__ == "__main__":
    answer({each.__name__: each for each in (one, many, many_async, leave, resume, approval, conversation, settings)})
