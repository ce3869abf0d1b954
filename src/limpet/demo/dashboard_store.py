"""The store of `limpet demo --dashboard`: runs of several agents in every state, made by executing them."""

import asyncio
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from getpass import getuser
from pathlib import Path
from typing import Any

import limpet
from limpet.demo.folder import fresh
from limpet.demo.shop_agents import (
    AGENTS,
    POISON,
    importer,
    onboarding,
    packing,
    prices,
    refunds,
    reports,
    research,
    shipments,
)
from limpet.service.app import App

__all__ = ["fill", "prepared"]

PROJECT = '[tool.limpet]\napp = "limpet.demo.shop_agents:AGENTS"\n'
ORDERS = ("o-1001", "o-1002", "o-1003", "o-1004")
SUPPLIERS = ("Nord", "Sued", "West", "Nord")
# Workers that the importer kills before it is quarantined: it is a suspect after two, and alone for three.
DEATHS = 5
PATIENCE = "30s"


@contextmanager
def prepared(path: Path) -> Iterator[tuple[App, str]]:
    """Fill a store in a folder; yield an app that serves its agents, and the code of a link to log in."""
    logging.getLogger("limpet").setLevel(logging.CRITICAL)  # failed runs are a part of the demo
    with fresh(path) as folder:
        (folder.path / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
        code = asyncio.run(fill(folder.url))
        yield limpet.open(folder.url, agents=AGENTS, worker=limpet.Worker(grace="1s")), code


async def fill(url: str) -> str:
    """Fill a store, and return the code of a login link."""
    await _poisoned(url)
    async with limpet.open(url, agents=AGENTS, worker=limpet.Worker(grace="1s")) as app:
        await _refunds(app)
        await _others(app)
        await _conversation(app)
        await _scores(app)
        await _records(app)
        made = await app.create_login(
            getuser(), roles=["operator", "approver", "auditor", "admin"], groups=["finance", "sales"], expires="1d"
        )
        return made.code


async def _refunds(app: App) -> None:
    """Completed, rejected and cancelled refunds, some that wait for an approval, and a fork."""
    for number in range(1, 25):
        order = ORDERS[number % 4]
        await app.start(
            refunds,
            order,
            id=f"refund-{number:03}",
            user=f"customer-{number % 7}",
            session=f"visit-{number % 9}",
            labels={"shop": "north" if number % 3 else "south"},
            by="web-shop",
        )
    for number in range(1, 25):
        await _until_asked(app, f"refund-{number:03}")
    requests = {each.run: each.id for each in await app.inbox(limit=1000)}
    for run, request in sorted(requests.items())[:-4]:
        if run == "refund-009":
            await app.reject(request, by="maria", because="the photo shows another cup")
        elif run == "refund-011":
            await app.approve(request, by="maria", args={"cents": 900})
        else:
            await app.approve(request, by="maria")
    waiting = {run for run, _ in sorted(requests.items())[-4:]}
    for number in range(1, 25):
        if (run := f"refund-{number:03}") not in waiting:
            with suppress(limpet.RunFailed):
                await (await app.get(run)).result(timeout=PATIENCE, quiet=True)
    await app.cancel(min(waiting), reason="the customer withdrew it", by="maria")
    fork = await app.fork("refund-003", at=3, patch={"facts": {"cents": 900}}, effects="stub", id="refund-003.cheaper")
    await fork.result(timeout=PATIENCE, quiet=True)


async def _others(app: App) -> None:
    """Failed, waiting and running runs, and one that calls another agent."""
    for number, supplier in enumerate(SUPPLIERS, start=1):
        handle = await app.start(prices, supplier, id=f"prices-{number}", labels={"supplier": supplier}, by="nightly")
        with suppress(limpet.RunFailed):
            await handle.result(timeout=PATIENCE, quiet=True)
    for number, company in enumerate(("Lee & Sons", "Okafor Ltd"), start=1):
        await app.start(onboarding, company, id=f"onboarding-{number}", by="ben")
    for order in ORDERS[:2]:
        await app.start(shipments, order, id=f"parcel-{order}", deadline="30d")
    await app.signal("parcel-o-1001", "delivered", "at the door", by="carrier")
    await app.start(reports, "Q3", id="report-q3", budget={"max_steps": 20, "max_cost": 5}, by="maria")
    await app.start(reports, "Q4", id="report-q4", by="maria")
    await app.pause("report-q4", reason="wait for the end of the quarter", by="maria")


async def _conversation(app: App) -> None:
    """A conversation of three runs with a scripted model."""
    questions = ("Where is my order o-1001?", "And can I return it?", "Who pays for that?")
    for number, question in enumerate(questions, start=1):
        await app.run(research, question, id=f"chat-{number}", conversation="chat-ann", user="ann", session="visit-1")


async def _scores(app: App) -> None:
    """Scores of people and of a service."""
    await app.score("refund-001", "quality", 0.9, by="maria")
    await app.score("refund-005", "quality", 0.3, comment="The letter does not say when the money comes.", by="maria")
    await app.score("refund-005", "tone", "too formal", step=4, by="ben")
    await app.score("chat-1", "correct", True, comment="found the right order", by="judge")


async def _records(app: App) -> None:
    """A board that a person, a run and a service share, and a record with a long value."""
    await app.patch_record("packing-board", read=0, plan=ORDERS, facts={"carrier": "Nord Express"}, by="maria")
    questions = {"gift": "Is o-1003 a gift?", "late": "May o-1004 leave tomorrow?"}
    await app.patch_record("packing-board", read=2, questions=questions, by="ben")
    await app.run(packing, id="packing-1")
    board = await app.record("packing-board")
    await app.patch_record(
        "packing-board",
        read=board.version,
        answered={"gift": "No."},
        data={"pickup": {"gate": 4, "at": "17:30"}},
        by="maria",
    )
    opening = {day: {"opens": "9:00", "closes": "18:00"} for day in ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat")}
    await app.patch_record("shop-hours", read=0, data={"hours": opening}, facts={"closed": ["Sun"]}, by="maria")


async def _until_asked(app: App, run: str) -> None:
    """Wait until a run asks a person, or has ended."""
    read: Any = app.events(run)
    async with aclosing(read) as events:
        async for event in events:
            if event.kind == "request.opened":
                return


async def _poisoned(url: str) -> None:
    """Start an import that kills its workers, and let it, until it is quarantined."""
    async with limpet.open(url, agents=[importer], worker=False) as app:
        await app.start(importer, "archive-2019.zip", id="import-2019", by="nightly")
        for _ in range(DEATHS + 1):
            worker = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "limpet.demo.poisoned_worker",
                url,
                env={**os.environ, POISON: "1"},
                stdin=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            await worker.wait()
