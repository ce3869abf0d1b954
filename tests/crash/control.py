"""Process functions for tests of control: extend and resume a run, or drive runs that signal each other."""

from multiprocessing.connection import Connection

import limpet
from tests.crash.agents import install_kill

__all__ = ["COUNT", "drive", "drive_batch", "extend", "listener", "sender", "thrifty"]

COUNT = 3


@limpet.tool(effect="idempotent", name="control_act")
async def act(number: int) -> int:
    return number


@limpet.agent(name="control_thrifty", deadline="1h", budget=limpet.Budget(max_steps=1))
async def thrifty(run: limpet.Run) -> list[int]:
    """Fail on the budget after one step."""
    return [await run.step(act, number) for number in range(COUNT)]


@limpet.agent(name="control_listener")
async def listener(run: limpet.Run) -> list[int]:
    return [await run.receive("news", int) for _ in range(COUNT)]


@limpet.agent(name="control_sender")
async def sender(run: limpet.Run, to: str) -> str:
    """Send signals and a patch to another run."""
    await run.send_patch(to, facts={"sent": COUNT})
    for number in range(COUNT):
        await run.signal(to, "news", number)
    return "sent"


async def extend(pipe: Connection, url: str, run: str, where: str) -> None:
    """Extend a run and resume it, or die on the way."""
    pipe.send("ready")
    install_kill(where)
    async with limpet.open(url, worker=False) as app:
        await app.extend(run, budget={"max_steps": 9}, deadline="2h", command_id="extend-1")
        await app.resume(run, command_id="resume-1")


async def drive(pipe: Connection, url: str, run: str, where: str) -> None:
    """Drive the sender until it has ended, or die on the way."""
    pipe.send("ready")
    install_kill(where)
    async with limpet.open(url, agents=[sender]) as app:
        await (await app.get(run, sender)).result(quiet=True)


async def drive_batch(pipe: Connection, url: str, run: str, where: str) -> None:
    """Drive a batch until it has ended, or die on the way."""
    pipe.send("ready")
    install_kill(where)
    async with limpet.open(url, agents=[sender]) as app:
        await (await app.get(run)).result(quiet=True)
