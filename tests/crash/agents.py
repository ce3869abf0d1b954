"""Agents that are killed, their tools, and the functions of the processes that run them."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from multiprocessing.connection import Connection
from threading import get_ident
from typing import Any

import limpet
from limpet.events import bodies as b
from limpet.stores import Store, writer, writes
from tests.crash.counting_service import request_service
from tests.crash.jobs import KillSwitch

__all__ = ["TOOLS", "agent_of", "run_agent", "serve"]

TOOLS = ("crash_look", "crash_glance", "crash_pay", "crash_book", "crash_mail", "crash_post")
Batch = Sequence[writes.Op[Any]]


class ProcessState:
    """State shared by the tools of this process: the service's port, and the tool that kills the process after its
    effect.
    """

    port = 0
    fatal = ""


def post(tool: str, path: str, key: str = "") -> int:
    """Post to the service, and kill this process if the tool is the fatal one."""
    answer = request_service(ProcessState.port, "POST", path, key)
    if tool == ProcessState.fatal:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer


def found(run: str, step: str) -> limpet.Done[int] | None:
    """Ask the service whether a step was applied."""
    times = request_service(ProcessState.port, "GET", f"/once/{run}/{step}")
    return limpet.Done(times) if times else None


@limpet.tool(effect="none")
async def crash_look(run: str, step: str) -> int:
    return await asyncio.to_thread(post, "crash_look", f"/read/{run}/{step}")


@limpet.tool(effect="none")
def crash_glance(run: str, step: str) -> int:
    return post("crash_glance", f"/read/{run}/{step}")


@limpet.tool(effect="idempotent")
async def crash_pay(run: str, step: str) -> int:
    return await asyncio.to_thread(post, "crash_pay", f"/keyed/{run}/{step}", limpet.idempotency_key())


@limpet.tool(effect="idempotent")
def crash_book(run: str, step: str) -> int:
    return post("crash_book", f"/keyed/{run}/{step}", limpet.idempotency_key())


@limpet.tool(effect="once")
async def crash_mail(run: str, step: str) -> int:
    return await asyncio.to_thread(post, "crash_mail", f"/once/{run}/{step}")


@crash_mail.verify
async def was_mailed(run: str, step: str) -> limpet.Done[int] | None:
    return await asyncio.to_thread(found, run, step)


@limpet.tool(effect="once")
def crash_post(run: str, step: str) -> int:
    return post("crash_post", f"/once/{run}/{step}")


crash_post.verify(found)


class Refused(Exception):
    """Raised by a tool whose effect the service refuses."""


@limpet.tool(effect="idempotent", not_applied=(Refused,))
def crash_refuse(run: str, step: str) -> int:
    """Fail every time."""
    post("crash_refuse", f"/read/{run}/{step}")
    raise Refused(step)


async def errand(run: limpet.Run, order: str) -> list[int]:
    """Run nine steps, four of them effects, and return their results."""
    await run.patch(goal=f"settle {order}", plan=["look", "pay", "tell"])
    async with run.scope("look"):
        seen = [*await asyncio.gather(run.step(crash_look, run.id, "a"), run.step(crash_glance, run.id, "b"))]
        await run.patch(facts={"seen": seen})
    how = await run.decide("how?", choose="whole", over=["part", "whole"], because="it arrived broken")
    async with run.scope("pay"):
        seen.append(await run.step(crash_pay, run.id, "c"))
        seen.append(await run.step(crash_look, run.id, "d"))
        seen.append(await run.step(crash_book, run.id, "e"))
    await run.sleep("20ms")
    async with run.scope("tell"):
        seen.append(await run.step(crash_mail, run.id, "f"))
        if await run.ask("Tell them all?", to="parent") and how == "whole":
            seen.append(await run.step(crash_look, run.id, "g"))
            seen.append(await run.step(crash_post, run.id, "h"))
    seen.append(await run.step(crash_glance, run.id, "i"))
    return seen


async def fallback(run: limpet.Run, order: str) -> str:
    """Run other steps after one has failed, and one more."""
    branch = "well"
    try:
        await run.step(crash_refuse, run.id, "first")
    except limpet.StepFailed as error:
        branch = "refused" if error.was(Refused) else "broken"
        await run.step(crash_pay, run.id, branch)
    await run.step(crash_post, run.id, branch)
    return branch


async def pair(run: limpet.Run, order: str) -> str:
    """Run two effects, with an optional wait between them."""
    await run.step(crash_mail, run.id, "first")
    if order == "asks":
        await run.ask("Go on?")
    if order == "sleeps":
        await run.sleep("2s")
    await run.step(crash_pay, run.id, "second")
    return order


def agent_of(name: str, run: str) -> limpet.Agent[str, Any]:
    """Return an agent with the run's id as its version, so that processes of other runs do not claim it."""
    functions: dict[str, Callable[[limpet.Run, str], Coroutine[Any, Any, Any]]] = {
        "errand": errand,
        "fallback": fallback,
    }
    return limpet.agent(name=name, version=run)(functions.get(name, pair))


# Process functions


async def run_agent(pipe: Connection, url: str, port: int, name: str, run: str, where: str = "") -> None:
    """Run an agent to its end, or until this process reaches the place where it is killed."""
    ProcessState.port, agent = port, agent_of(name, run)
    install_kill(where)
    pipe.send("ready")
    async with limpet.open(url, agents=[agent], worker=limpet.Worker(lease="1h")) as app:
        await app.run(agent, name, id=run)


async def serve(pipe: Connection, url: str, port: int, name: str, run: str, lease: str) -> None:
    """Serve a run until told to stop. On "stop", first suspend this process after a commit, while it holds no lock."""
    ProcessState.port, signals = port, list[int]()
    about_commits(lambda _, done: signal.pthread_kill(get_ident(), signals.pop()) if done and signals else None)
    app = await limpet.open(url, agents=[agent_of(name, run)], worker=limpet.Worker(lease=lease))
    pipe.send("ready")
    if await asyncio.to_thread(pipe.recv) == "stop":
        signals.append(signal.SIGSTOP)  # soon, when the lease is renewed
        await asyncio.to_thread(pipe.recv)
    closing = asyncio.ensure_future(app.close())
    asyncio.get_running_loop().call_soon(pipe.send, "closing")  # after the first step of closing
    await closing


def install_kill(where: str) -> None:
    """Kill this process at a place.

    `tool:crash_pay`: after its effect was applied. `commit:7`: at the seventh place before or after a commit that
    extends a log or claims a run. `alone:7`: the same for a commit on the event loop. `crash_pay:1`: at the first of
    those around commits that start a step of this tool.
    `statements:9` and `queries:9`: in the middle of an operation, at the ninth database statement.
    """
    what, _, place = where.partition(":")
    if what == "tool":
        ProcessState.fatal = place
    elif what in ("statements", "queries"):
        KillSwitch(int(place)).install(what)
    elif what == "alone":
        switch, writer.SLOW_COMMIT = KillSwitch(int(place)), 60  # however slow the disk is
        about_lone_commits(lambda *_: switch.hit())
    elif what:
        switch = KillSwitch(int(place))
        about_commits(lambda batch, done: switch.hit() if counts(what, batch, done) else None)


def counts(what: str, batch: Batch, done: Sequence[Any]) -> bool:
    """Return whether a commit extends a log or claims a run, or whether it starts a step of this tool."""
    legs = [leg for op in batch if isinstance(op, writes.Append) for leg in op.legs]
    plain = [event for op in batch if isinstance(op, writes.Extension) for event in op.events]
    if what == "commit":
        return bool(legs or plain) or any(
            isinstance(op, writes.Claim) and out for op, out in zip(batch, done, strict=False)
        )
    bodies = [sealed.body for leg in legs if isinstance(leg, writes.Extend) for sealed in leg.events]
    bodies += [event.decode() for event in plain]
    return any(isinstance(body, b.StepStarted) and body.tool == what for body in bodies)


def about_commits(tell: Callable[[Batch, Sequence[Any]], object]) -> None:
    """Call a function before each commit, and after it with its outcomes, on the thread of the commit."""
    about_lone_commits(tell)
    real = Store._commit

    def commit(self: Store, batch: Batch) -> list[Any]:
        tell(batch, ())
        done = real(self, batch)
        tell(batch, done)
        return done

    Store._commit = commit  # type: ignore[assignment, method-assign]


def about_lone_commits(tell: Callable[[Batch, Sequence[Any]], object]) -> None:
    """Call a function before each commit on the event loop, and after it with its outcome."""
    real = Store._commit_now

    def commit_now(self: Store, extension: writes.Extension) -> bool | None:
        tell([extension], ())
        done = real(self, extension)
        if done is not None:
            tell([extension], [done])
        return done

    Store._commit_now = commit_now  # type: ignore[assignment, method-assign]
