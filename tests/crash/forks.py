"""A run whose forks are killed: its tools, and the processes that fork, approve and run."""

import asyncio
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import limpet
from limpet.service.app import App
from tests.crash.agents import ProcessState, install_kill, post
from tests.crash.counting_service import request_service

__all__ = ["PATHS", "fork", "run_parent"]

CUT = 3
"""First step that is not shared."""
PATHS = {"forks_book": "/keyed", "forks_mail": "/once"}


@limpet.tool(effect="none")
def forks_look(run: str, step: str) -> str:
    post("forks_look", f"/read/{run}/{step}")
    return step


@limpet.tool(effect="idempotent")
def forks_book(run: str, step: str) -> int:
    return post("forks_book", f"/keyed/{run}/{step}", limpet.idempotency_key())


@forks_book.compensate
def forks_unbook(result: int | None, run: str, step: str) -> None:
    post("forks_unbook", f"/keyed/{run}/un{step}", limpet.idempotency_key())


@limpet.tool(effect="once")
async def forks_mail(run: str, step: str) -> int:
    return await asyncio.to_thread(post, "forks_mail", f"/once/{run}/{step}")


@forks_mail.verify
async def forks_was_mailed(run: str, step: str) -> limpet.Done[int] | None:
    times = await asyncio.to_thread(request_service, ProcessState.port, "GET", f"/once/{run}/{step}")
    return limpet.Done(times) if times else None


def agents_of(version: str) -> tuple[limpet.Agent[str, Any], limpet.Agent[str, Any]]:
    """Return the agents with the fork's id as their version, so that processes of other forks do not claim them."""

    @limpet.agent(name="forks_helper", version=version)
    async def helper(run: limpet.Run, order: str) -> int:
        return await run.step(forks_book, run.id, "h")

    @limpet.agent(name="forks_guide", version=version)
    async def guide(run: limpet.Run, order: str) -> None:
        """Two shared steps, then effects, a request and a call, and a failure at the end."""
        await run.step(forks_look, run.id, "a")
        await run.step(forks_book, run.id, "b")
        await run.patch(facts={"order": order})
        await run.step(forks_book, run.id, "c")
        if await run.ask("Tell them?"):
            await run.step(forks_mail, run.id, "d")
        await run.call(helper, order)
        await run.step(forks_look, run.id, "e")
        raise ValueError(run.state.facts["order"])

    return guide, helper


# Process functions


async def run_parent(pipe: Connection, url: str, port: int, run: str) -> None:
    """Run the run that is forked to its end."""
    ProcessState.port, agents = port, agents_of(run)
    pipe.send("ready")
    async with limpet.open(url, agents=agents) as app:
        await _run_to_end(app, await app.start(agents[0], "this", id=run))


async def fork(pipe: Connection, url: str, port: int, parent: str, run: str, where: str) -> None:
    """Fork the run, approve its requests and run it to its end, or until this process reaches the place where it is
    killed.
    """
    ProcessState.port = port
    install_kill(where)
    pipe.send("ready")
    async with limpet.open(url, agents=agents_of(run), worker=limpet.Worker(lease="1h")) as app:
        known = {"facts": {"order": "another"}}
        await _run_to_end(app, await app.fork(parent, at=CUT, patch=known, version=run, id=run))


async def _run_to_end(app: App, handle: limpet.Handle[Any]) -> None:
    answering = asyncio.create_task(_approve_all(app, handle.id))
    with suppress(limpet.RunFailed):
        await handle.result()
    answering.cancel()


async def _approve_all(app: App, run: str) -> None:
    """Approve every request of a run and its children; report an effect that was done before its approval."""
    with app.store.watch() as watch:
        while True:
            for request in await app.inbox():
                if request.run.partition(".")[0] == run:
                    await _allow(app, request)
            await watch.changed()


async def _allow(app: App, request: limpet.Request) -> None:
    if request.kind == "compensation":
        await app.answer(request, "undo", by="ann")
        return
    if request.tool is not None:
        path = f"{PATHS[request.tool]}/{request.args['run']}/{request.args['step']}"
        if await asyncio.to_thread(request_service, ProcessState.port, "GET", path):
            await asyncio.to_thread(post, "", f"/read/early/{request.run}")
    await app.approve(request, by="ann")
