"""A process whose runs end and give notices, killed at any place."""

from contextlib import suppress
from multiprocessing.connection import Connection

import limpet
from limpet.clock import SystemClock
from limpet.service.webhooks import Webhook
from limpet.state import ENDED
from limpet.stores.postgres import PostgresBackend
from limpet.stores.sqlite import SqliteBackend
from tests.crash.jobs import KillSwitch

__all__ = ["ENDINGS", "end_and_die"]

ENDINGS = {"r1": "completed", "r2": "failed", "r3": "completed"}


@limpet.agent(name="noticed")
async def noticed(run: limpet.Run, ending: str) -> str:
    if ending == "failed":
        raise limpet.Permanent("so it ends")
    return ending


async def end_and_die(pipe: Connection, url: str, address: str, place: int) -> None:
    """Let runs end and notices arrive, and die at this place; report "done" if there is no such place."""
    switch = KillSwitch(place)
    for holder, name in ((SqliteBackend, "commit"), (SqliteBackend, "commit_now"), (PostgresBackend, "commit")):
        switch.after(holder, name)
    switch.after(Webhook, "deliver")
    hook = limpet.Webhook(address, secret="s" * 20, on=["completed", "failed"], allow_private=True)
    async with limpet.open(url, agents=[noticed], notify={"ops": hook}) as app:
        for id, ending in ENDINGS.items():
            handle = await app.start(noticed, ending, id=id)
            with suppress(limpet.RunFailed):
                await handle.result()
        while [each for each in await app.runs(agent="limpet.notify") if each.status not in ENDED]:
            await SystemClock().sleep(20_000)
        switch.lit = False
    pipe.send("done")
