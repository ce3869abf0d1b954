"""A run whose forks are killed: its tools, and what processes do that make forks, answer for them and drive them."""

import asyncio
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import limpet
from limpet.service.app import App
from tests.crash.agents import Here, lay_fuse, post
from tests.crash.counting_service import answer_of

__all__ = ["PATHS", "begin", "fork"]

CUT = 3
"""The first step that is not shared."""
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
    times = await asyncio.to_thread(answer_of, Here.port, "GET", f"/once/{run}/{step}")
    return limpet.Done(times) if times else None


def agents_of(version: str) -> tuple[limpet.Agent[str, Any], limpet.Agent[str, Any]]:
    """The agents, in a version of a fork's own: processes that drive others leave it alone."""

    @limpet.agent(name="forks_helper", version=version)
    async def helper(run: limpet.Run, order: str) -> int:
        return await run.step(forks_book, run.id, "h")

    @limpet.agent(name="forks_guide", version=version)
    async def guide(run: limpet.Run, order: str) -> None:
        """Two steps that are shared; effects, a question and a call that are not; and all of it was in vain."""
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


# What processes do


async def begin(pipe: Connection, url: str, port: int, run: str) -> None:
    """Drive the run that is forked to its end."""
    Here.port, agents = port, agents_of(run)
    pipe.send("ready")
    async with limpet.open(url, agents=agents) as app:
        await _see_through(app, await app.start(agents[0], "this", id=run))


async def fork(pipe: Connection, url: str, port: int, parent: str, run: str, where: str) -> None:
    """Make a fork, answer for it and drive it to its end, or until this process comes to where it is killed."""
    Here.port = port
    lay_fuse(where)
    pipe.send("ready")
    async with limpet.open(url, agents=agents_of(run), worker=limpet.Worker(lease="1h")) as app:
        known = {"facts": {"order": "another"}}
        await _see_through(app, await app.fork(parent, at=CUT, patch=known, version=run, id=run))


async def _see_through(app: App, handle: limpet.Handle[Any]) -> None:
    answering = asyncio.create_task(_say_yes(app, handle.id))
    with suppress(limpet.RunFailed):
        await handle.result()
    answering.cancel()


async def _say_yes(app: App, run: str) -> None:
    """Allow whatever a run asks for, and whom it calls; what is done already tells on them."""
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
        if await asyncio.to_thread(answer_of, Here.port, "GET", path):
            await asyncio.to_thread(post, "", f"/read/early/{request.run}")
    await app.approve(request, by="ann")
