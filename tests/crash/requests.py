"""Agents that ask, tell, call and hand over, and what processes do about them that are killed."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from typing import Any

from pydantic import BaseModel

import limpet
from limpet.clock import SystemClock
from limpet.ids import RandomIds
from limpet.service.app import App
from limpet.service.settings import Settings
from tests.crash.agents import Here, lay_fuse, post

__all__ = ["Shifted", "Verdict", "agents_of", "answer", "drive", "opened", "race", "visit"]

LINGER = 20_000
APPROVALS = limpet.Approvals("external_action", to=["parent"], expires="1h", valid="1h")
PATIENT = limpet.Approvals("external_action", to=["parent"])


class Verdict(BaseModel):
    """What a person says in more than one word."""

    is_fine: bool
    why: str


class Shifted(SystemClock):
    """The machine's clock, some time later."""

    def __init__(self, off: int = 0) -> None:
        self.off = off

    def now(self) -> int:
        return super().now() + self.off


@limpet.tool(effect="idempotent")
def people_begin(run: str) -> int:
    return post("people_begin", f"/keyed/{run}/begin", limpet.idempotency_key())


@limpet.tool(effect="none")
def people_look(run: str) -> int:
    return post("people_look", f"/read/{run}/look")


@limpet.tool(effect="idempotent")
def people_act(run: str, said: str) -> str:
    post("people_act", f"/keyed/{run}/act", limpet.idempotency_key())
    return said


@limpet.tool(effect="idempotent", risk="external_action")
def people_pay(run: str, said: str) -> str:
    post("people_pay", f"/keyed/{run}/pay", limpet.idempotency_key())
    return said


async def asker(run: limpet.Run, kind: str) -> str:
    """Asks in one of three ways, when it is told to, between two effects."""
    await run.step(people_begin, run.id)
    await run.receive("go", bool)
    try:
        if kind == "approval":
            return await run.step(people_pay, run.id, "approved")
    except limpet.Rejected:
        return "rejected"
    if kind == "ask":
        said = "approved" if await run.ask("well?", expires="1h") else "rejected"
    else:
        options = ["one", "two", "default"]
        said = await run.ask("which?", options=options, expires="1h", escalate=["boss"], default="default")
    return await run.step(people_act, run.id, said)


async def patient(run: limpet.Run, order: str) -> str:
    """Does and decides a few things, and asks before it goes on."""
    await run.patch(goal=f"settle {order}", facts={"customer": "ann"})
    await run.step(people_begin, run.id)
    await run.step(people_look, run.id)
    await run.decide("how?", choose="whole", over=["part", "whole"], because="it arrived broken")
    paid = await run.step(people_pay, run.id, order)
    return await run.step(people_act, run.id, paid)


async def raced(run: limpet.Run, order: int) -> list[Any]:
    """Returns what it is told."""
    return await run.ask("which?", answer=list[Any])


async def checker(run: limpet.Run, order: str) -> str:
    await run.step(people_begin, run.id)
    return f"checked {order}"


async def closer(run: limpet.Run, checked: str) -> str:
    await run.step(people_act, run.id, checked)
    return f"closed {checked}"


def agents_of(run: str) -> dict[str, limpet.Agent[Any, Any]]:
    """The agents, in versions of the run's own: processes that drive other runs leave them alone."""
    check = limpet.agent(name="checker", version=run)(checker)
    close = limpet.agent(name="closer", version=run)(closer)

    async def clerk(run: limpet.Run, order: str) -> str:
        """An approval, a question, a call, a handoff."""
        await run.step(people_begin, run.id)
        paid = await run.step(people_pay, run.id, order)
        verdict = await run.ask("Is it fine?", answer=Verdict, to="parent")
        checked = await run.call(check, f"{paid} {verdict.why}")
        return await run.handoff(close, checked)

    asks = limpet.agent(name="asker", version=run, approvals=APPROVALS)
    waits = limpet.agent(name="patient", version=run, approvals=PATIENT)
    clerks = limpet.agent(name="clerk", version=run, approvals=PATIENT)
    return {
        "checker": check,
        "closer": close,
        "asker": asks(asker),
        "patient": waits(patient),
        "clerk": clerks(clerk),
        "raced": limpet.agent(name="raced", version=run)(raced),
    }


@asynccontextmanager
async def opened(
    url: str, agents: Sequence[limpet.Agent[Any, Any]] = (), *, off: int = 0, channel: str = ""
) -> AsyncIterator[App]:
    """An app that is some time ahead, and does not linger."""
    clock = Shifted(off)
    store = limpet.open_store(url, clock=clock)
    settings = Settings(store, clock, RandomIds(SystemClock()))
    settings.linger = LINGER
    settings.worker = limpet.Worker(lease="1000d") if agents else None
    settings.channels = {channel: tell} if channel else {}
    async with App(settings, agents) as app:
        yield app


async def tell(request: limpet.Request) -> None:
    """A channel: the service is told, with the key of its delivery."""
    await asyncio.to_thread(post, "tell", f"/keyed/told/{request.id}", limpet.idempotency_key())


# What processes do


async def visit(pipe: Connection, url: str, port: int, run: str, off: int, where: str) -> None:
    """Serve a run until this process is killed: from outside, or where it is to be."""
    Here.port = port
    lay_fuse(where)
    async with opened(url, [*agents_of(run).values()], off=off):
        pipe.send("ready")
        await asyncio.to_thread(pipe.recv)


async def drive(pipe: Connection, url: str, port: int, run: str, where: str) -> None:
    """Drive a clerk's run to its end, and everything that it set to work; or come to where this process is killed."""
    Here.port, agents = port, agents_of(run)
    lay_fuse(where)
    pipe.send("ready")
    async with opened(url, [*agents.values()], channel=f"own-{run}") as app:
        await app.run(agents["clerk"], "o1", id=run)
        for event in await app.log(run):
            if event.kind == "agent.called":
                await app.result(event.body["run"], timeout="30s")


async def answer(pipe: Connection, url: str, run: str, off: int, where: str) -> None:
    """Say what a person is shown, and approve it."""
    lay_fuse(where)
    pipe.send("ready")
    async with opened(url, off=off) as app:
        [request] = await app.inbox(run=run)
        assert request.context is not None
        pipe.send((request.args, request.context))
        await app.approve(request, by="parent")


async def race(pipe: Connection, url: str, barrier: Any, name: str) -> None:
    """Answer what somebody else answers at the same moment; say which were taken, and else whose was."""
    async with opened(url) as app:
        pipe.send("ready")
        while requests := await asyncio.to_thread(pipe.recv):
            outcomes: list[Any] = []
            for place, request in enumerate(requests):
                barrier.wait(60)
                outcomes.append(await _try(app, request, [name, place], name))
            pipe.send(outcomes)


async def _try(app: App, request: str, value: list[Any], by: str) -> Any:
    try:
        await app.answer(request, value, by=by)
    except limpet.AlreadyAnswered as error:
        return (error.request, error.status, error.by)
    return "won"
