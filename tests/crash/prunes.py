"""Runs that are pruned while others continue: agents whose tools write traces to files, and process functions."""

import asyncio
import json
import os
import random  # noqa: TID251 - seeded choices
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import limpet
from limpet.events import Head
from limpet.stores import Store
from tests.crash.agents import install_kill

__all__ = ["BIG", "Folder", "fork", "keeper", "keepers", "prune", "work"]

BIG = 20_000
# Maximum number of concurrent runs, and depth of nested forks.
ENOUGH = 12
DEEPEST = 3
REFUSED = (limpet.NotFound, limpet.WrongState, limpet.IdConflict, limpet.InvalidArgument, limpet.StoreBusy)
Effects = Literal["ask", "stub", "live"]
EFFECTS: tuple[Effects, ...] = ("ask", "ask", "stub", "live")


class Folder:
    """The folder for traces, which survive a kill."""

    path = Path()

    @classmethod
    def leave(cls, *where: str, line: str = "done") -> None:
        """Append a line to a file."""
        path = cls.path.joinpath(*where)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(f"{line}\n".encode())

    @classmethod
    def found(cls, *where: str) -> list[str]:
        """Return the lines of a file."""
        path = cls.path.joinpath(*where)
        return path.read_text().splitlines() if path.exists() else []


@limpet.tool(effect="none")
def prunes_look(life: str, run: str, what: str) -> str:
    """Return something big that all runs share."""
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
    """Pay, as the last step of a run, and record the idempotency key."""
    Folder.leave("pays", life, run, line=limpet.idempotency_key())
    return "paid"


class Broken(Exception):
    """Raised until the test fixes the cause."""


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
    """Look and mail; then ask, fail or call; then pay."""
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


# Process functions


async def work(pipe: Connection, url: str, folder: str, where: str) -> None:
    """Run a worker until told to stop, or killed."""
    Folder.path = Path(folder)
    install_kill(where)
    async with limpet.open(url, agents=keepers, worker=limpet.Worker(lease="1h")):
        pipe.send("ready")
        await asyncio.to_thread(pipe.recv)


async def prune(pipe: Connection, url: str, folder: str, where: str) -> None:
    """Prune ended runs repeatedly until told to stop, or killed, with or without an archive."""
    Folder.path = Path(folder)
    archive = Folder.path / "archive" if random.Random(where).random() < 0.7 else None
    install_kill(where)
    _record_prunes("pruned" if archive is None else "archived")
    async with limpet.open(url, worker=False) as app:
        pipe.send("ready")
        stop = asyncio.create_task(asyncio.to_thread(pipe.recv))
        while not stop.done():
            await app.prune(older_than=0, dry_run=False, archive=archive, snapshots=1)
            await app.store.collect_blobs(grace=0)


def _record_prunes(name: str) -> None:
    """Record what is about to be deleted, and what was deleted."""
    real = Store.prune

    async def recorded(self: Store, runs: Mapping[str, Head]) -> bool:
        heads = [[run, head.seq, head.hash.hex()] for run, head in runs.items()]
        Folder.leave("pruning", line=json.dumps(heads))
        done = await real(self, runs)
        if done:
            Folder.leave(name, line=json.dumps(heads))
        return done

    Store.prune = recorded  # type: ignore[assignment, method-assign]


async def fork(pipe: Connection, url: str, folder: str, where: str) -> None:
    """Fork random runs at random steps, and export them, until told to stop, or killed."""
    Folder.path = Path(folder)
    install_kill(where)
    chance = random.Random(where)
    async with limpet.open(url, worker=False) as app:
        pipe.send("ready")
        stop = asyncio.create_task(asyncio.to_thread(pipe.recv))
        while not stop.done():
            there = [each.id for each in await app.runs(last=20) if each.agent == keeper.name]
            runs = [run for run in there if run.count(".") < DEEPEST]
            if not runs or len(there) >= ENOUGH:
                await asyncio.sleep(0.01)  # noqa: TID251 - the workers have enough to do
                continue
            with suppress(*REFUSED):
                run = chance.choice(runs)
                await app.export(run, Folder.path / f"{os.getpid()}.zip")
                made = await app.fork(run, at=chance.randint(1, 4), effects=chance.choice(EFFECTS))
                Folder.leave("forked", line=made.id)
