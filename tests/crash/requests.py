"""Agents that ask, notify, call and hand off, and the functions of processes that are killed."""

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
from tests.crash.agents import ProcessState, install_kill, post

__all__ = ["Shifted", "Verdict", "agents_of", "answer", "opened", "race", "run_clerk", "visit"]

LINGER = 20_000
APPROVALS = limpet.Approvals("external_action", to=["parent"], expires="1h", valid="1h")
PATIENT = limpet.Approvals("external_action", to=["parent"])


class Verdict(BaseModel):
    """A structured answer of a person."""

    is_fine: bool
    why: str


class Shifted(SystemClock):
    """The system clock with an offset."""

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
    """Ask in one of three ways after a signal, between two effects."""
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
    """Run steps and decide, then ask for approval."""
    await run.patch(goal=f"settle {order}", facts={"customer": "ann"})
    await run.step(people_begin, run.id)
    await run.step(people_look, run.id)
    await run.decide("how?", choose="whole", over=["part", "whole"], because="it arrived broken")
    paid = await run.step(people_pay, run.id, order)
    return await run.step(people_act, run.id, paid)


async def raced(run: limpet.Run, order: int) -> list[Any]:
    """Return the answer."""
    return await run.ask("which?", answer=list[Any])


async def checker(run: limpet.Run, order: str) -> str:
    await run.step(people_begin, run.id)
    return f"checked {order}"


async def closer(run: limpet.Run, checked: str) -> str:
    await run.step(people_act, run.id, checked)
    return f"closed {checked}"


def agents_of(run: str) -> dict[str, limpet.Agent[Any, Any]]:
    """Return the agents with the run's id as their version, so that processes of other runs do not claim them."""
    check = limpet.agent(name="checker", version=run)(checker)
    close = limpet.agent(name="closer", version=run)(closer)

    async def clerk(run: limpet.Run, order: str) -> str:
        """An approval, a question, a call and a handoff."""
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
    """Open an app with a clock offset that releases waiting runs quickly."""
    clock = Shifted(off)
    store = limpet.open_store(url, clock=clock)
    settings = Settings(store, clock, RandomIds(SystemClock()))
    settings.linger = LINGER
    settings.worker = limpet.Worker(lease="1000d") if agents else None
    settings.channels = {channel: notify_service} if channel else {}
    async with App(settings, agents) as app:
        yield app


async def notify_service(request: limpet.Request) -> None:
    """Notify the service of a request, with the key of the delivery."""
    await asyncio.to_thread(post, "tell", f"/keyed/told/{request.id}", limpet.idempotency_key())


# Process functions


async def visit(pipe: Connection, url: str, port: int, run: str, off: int, where: str) -> None:
    """Serve a run until this process is killed, from outside or at a place."""
    ProcessState.port = port
    install_kill(where)
    async with opened(url, [*agents_of(run).values()], off=off):
        pipe.send("ready")
        await asyncio.to_thread(pipe.recv)


async def run_clerk(pipe: Connection, url: str, port: int, run: str, where: str) -> None:
    """Run a clerk and everything that it calls to the end, or until this process is killed at a place."""
    ProcessState.port, agents = port, agents_of(run)
    install_kill(where)
    pipe.send("ready")
    async with opened(url, [*agents.values()], channel=f"own-{run}") as app:
        await app.run(agents["clerk"], "o1", id=run)
        for event in await app.log(run):
            if event.kind == "agent.called":
                await app.result(event.body["run"], timeout="30s")


async def answer(pipe: Connection, url: str, run: str, off: int, where: str) -> None:
    """Report what a request shows, and approve it."""
    install_kill(where)
    pipe.send("ready")
    async with opened(url, off=off) as app:
        [request] = await app.inbox(run=run)
        assert request.context is not None
        pipe.send((request.args, request.context))
        await app.approve(request, by="parent")


async def race(pipe: Connection, url: str, barrier: Any, name: str) -> None:
    """Answer requests at the same moment as another process; report for each "won", or the answer that was first."""
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
