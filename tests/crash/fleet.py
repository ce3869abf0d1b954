"""Two agents that a fleet of processes serves, and a script that starts their runs: `python -m tests.crash.fleet`."""

import asyncio
import os
import sys

import limpet
from limpet.clock import SystemClock
from tests.crash.counting_service import request_service

__all__ = ["agents", "start_runs"]

WHILE = 30_000


async def post(path: str, key: str = "") -> int:
    """Post to the service; the answer is delayed, so that the outcome is unknown for a while."""
    answer = await asyncio.to_thread(request_service, int(os.environ["FLEET_PORT"]), "POST", path, key)
    await SystemClock().sleep(WHILE)
    return answer


async def found(run: str) -> limpet.Done[int] | None:
    """Ask the service whether a run has paid."""
    path = f"/once/{run}/pay"
    times = await asyncio.to_thread(request_service, int(os.environ["FLEET_PORT"]), "GET", path)
    return limpet.Done(times) if times else None


@limpet.tool(effect="none")
async def fleet_look(run: str) -> int:
    return await post(f"/read/{run}/look")


@limpet.tool(effect="once", risk="little")
async def fleet_pay(run: str) -> int:
    return await post(f"/once/{run}/pay")


@limpet.tool(effect="once", risk="money")
async def fleet_wire(run: str) -> int:
    return await post(f"/once/{run}/pay")


fleet_pay.verify(found)
fleet_wire.verify(found)


@limpet.tool(effect="idempotent", risk="little")
async def fleet_note(run: str, what: str) -> int:
    return await post(f"/keyed/{run}/{what}", limpet.idempotency_key())


@limpet.tool(effect="once", risk="little")
async def fleet_ship(run: str) -> int:
    """Ship the order. Only a person can verify whether it was done."""
    return await post(f"/once/{run}/ship")


@limpet.agent(approvals=limpet.Approvals("money", to="boss"))
async def clerk(run: limpet.Run, way: str) -> int:
    """Pay: after an approval, after a question, or immediately."""
    await run.patch(goal=f"pay, {way}", plan=["look", "pay", "note"])
    await run.step(fleet_look, run.id)
    if way == "ask":
        await run.ask("From which account?", options=["ours", "theirs"], to="boss")
    paid = await run.step(fleet_wire if way == "approve" else fleet_pay, run.id)
    return paid + await run.step(fleet_note, run.id, "note")


@limpet.agent()
async def buyer(run: limpet.Run, way: str) -> int:
    """Have a clerk pay, between two effects."""
    await run.patch(goal=f"buy, {way}", plan=["reserve", "pay", "ship"])
    done = await run.step(fleet_note, run.id, "reserve")
    done += await run.call(clerk, way)
    await run.sleep("10ms")
    return done + await run.step(fleet_ship, run.id)


agents = [buyer, clerk]


async def start_runs() -> None:
    """Start a run for each line `AGENT WAY RUN` without the agents' code, and print its id once it is stored."""
    async with limpet.open(os.environ["LIMPET_URL"], worker=False) as app:
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            agent, way, run = line.split()
            await app.start(agent, way, id=run)
            print(run, flush=True)


if __name__ == "__main__":
    asyncio.run(start_runs())
