"""Runs that are pruned while others go on: agents whose tools leave traces in files, and what processes do there."""

import asyncio
import json
import os
import random  # noqa: TID251 - what is done where
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import limpet
from limpet.events import Head
from limpet.stores import Store
from tests.crash.agents import lay_fuse

__all__ = ["BIG", "Folder", "fork", "keeper", "keepers", "prune", "work"]

BIG = 20_000
# Runs at once, and forks of forks.
ENOUGH = 12
DEEPEST = 3
REFUSED = (limpet.NotFound, limpet.WrongState, limpet.IdConflict, limpet.InvalidArgument, limpet.StoreBusy)
Effects = Literal["ask", "stub", "live"]
EFFECTS: tuple[Effects, ...] = ("ask", "ask", "stub", "live")


class Folder:
    """Where traces are left: whoever is killed right after has left them all the same."""

    path = Path()

    @classmethod
    def leave(cls, *where: str, line: str = "done") -> None:
        """A line more in a file."""
        path = cls.path.joinpath(*where)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(f"{line}\n".encode())

    @classmethod
    def found(cls, *where: str) -> list[str]:
        """What is in a file."""
        path = cls.path.joinpath(*where)
        return path.read_text().splitlines() if path.exists() else []


@limpet.tool(effect="none")
def prunes_look(life: str, run: str, what: str) -> str:
    """Something big, which all runs get."""
    Folder.leave("reads", life, run, what)
    return what * BIG


@limpet.tool(effect="once")
def prunes_mail(life: str, run: str) -> str:
    Folder.leave("mails", life, run)
    return "mailed"


@prunes_mail.verify
def prunes_was_mailed(life: str, run: str) -> limpet.Done[str] | None:
    return limpet.Done("mailed") if Folder.found("mails", life, run) else None


@limpet.tool(effect="idempotent")
def prunes_pay(life: str, run: str) -> str:
    """The last that a run does; whoever is paid knows the key."""
    Folder.leave("pays", life, run, line=limpet.idempotency_key())
    return "paid"


class Broken(Exception):
    """Until somebody mends it."""


@limpet.tool(effect="idempotent", not_applied=(Broken,))
def prunes_mend(life: str, run: str) -> str:
    if not Folder.found("mended", life):
        Folder.leave("failures", life, run)
        raise Broken(life)
    return "mended"


@limpet.agent(name="prunes_child")
async def child(run: limpet.Run, life: str) -> str:
    await run.step(prunes_look, life, run.id, "y")
    await run.step(prunes_mail, life, run.id)
    return await run.step(prunes_pay, life, run.id)


@limpet.agent(name="prunes_keeper")
async def keeper(run: limpet.Run, order: str) -> str:
    """Looks and mails, then asks, fails or calls, and pays at last."""
    life, kind = order.split()
    await run.step(prunes_look, life, run.id, "x")
    await run.step(prunes_mail, life, run.id)
    if kind == "asks":
        await run.ask("Go on?")
    if kind == "fails":
        await run.step(prunes_mend, life, run.id)
    if kind == "calls":
        await run.call(child, life)
        await run.start(child, life)
    await run.step(prunes_pay, life, run.id)
    return order


keepers: tuple[limpet.Agent[Any, Any], ...] = (keeper, child)


# What processes do


async def work(pipe: Connection, url: str, folder: str, where: str) -> None:
    """Drive runs until told to go, or killed."""
    Folder.path = Path(folder)
    lay_fuse(where)
    async with limpet.open(url, agents=keepers, worker=limpet.Worker(lease="1h")):
        pipe.send("ready")
        await asyncio.to_thread(pipe.recv)


async def prune(pipe: Connection, url: str, folder: str, where: str) -> None:
    """Prune what has ended, at once and again and again, until told to go, or killed; into an archive, or not."""
    Folder.path = Path(folder)
    archive = Folder.path / "archive" if random.Random(where).random() < 0.7 else None
    lay_fuse(where)
    _witness("pruned" if archive is None else "archived")
    async with limpet.open(url, worker=False) as app:
        pipe.send("ready")
        stop = asyncio.create_task(asyncio.to_thread(pipe.recv))
        while not stop.done():
            await app.prune(older_than=0, dry_run=False, archive=archive, snapshots=1)
            await app.store.collect_blobs(grace=0)


def _witness(name: str) -> None:
    """What is about to be deleted is written down before, and whether it was after."""
    real = Store.prune

    async def told(self: Store, runs: Mapping[str, Head]) -> bool:
        heads = [[run, head.seq, head.hash.hex()] for run, head in runs.items()]
        Folder.leave("pruning", line=json.dumps(heads))
        done = await real(self, runs)
        if done:
            Folder.leave(name, line=json.dumps(heads))
        return done

    Store.prune = told  # type: ignore[method-assign]


async def fork(pipe: Connection, url: str, folder: str, where: str) -> None:
    """Fork whatever is there, at any step, and export it, until told to go, or killed."""
    Folder.path = Path(folder)
    lay_fuse(where)
    chance = random.Random(where)
    async with limpet.open(url, worker=False) as app:
        pipe.send("ready")
        stop = asyncio.create_task(asyncio.to_thread(pipe.recv))
        while not stop.done():
            there = [each.id for each in await app.runs(last=20) if each.agent == keeper.name]
            runs = [run for run in there if run.count(".") < DEEPEST]
            if not runs or len(there) >= ENOUGH:
                await asyncio.sleep(0.01)  # noqa: TID251 - others have enough to do
                continue
            with suppress(*REFUSED):
                run = chance.choice(runs)
                await app.export(run, Folder.path / f"{os.getpid()}.zip")
                made = await app.fork(run, at=chance.randint(1, 4), effects=chance.choice(EFFECTS))
                Folder.leave("forked", line=made.id)
