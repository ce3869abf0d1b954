"""A real server over a store with varied runs, for generated clients and fuzzing.

A bearer token is the name of a caller below; any other is refused. The server prints its URL, and stops on SIGTERM.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import limpet
from limpet.service.access import ROLES
from limpet.web.server import ServerOptions, serve

VALID, NARROW = "valid-token-of-a-person", "narrow-token-of-a-viewer"
CALLERS = {
    VALID: limpet.Principal(name="ann", roles=tuple(ROLES), rights=("raw",), groups=("sales",)),
    NARROW: limpet.Principal(name="ben", roles=("viewer",)),
}
"""Callers by token. An expired token and one that never existed are both unknown."""


@limpet.tool(effect="idempotent", name="fuzz_refund", risk="external_action")
def refund(order: str, cents: int) -> str:
    """Pays back what is not too much."""
    if cents > 900:
        raise limpet.Permanent(f"{cents} is too much")
    return f"receipt-{order}"


@limpet.agent(name="support")
async def support(run: limpet.Run, cents: int) -> str:
    """Decides, keeps a letter, and pays."""
    await run.patch(goal=f"settle {cents}", plan=["look", "pay"], facts={"cents": cents})
    await run.artifact("Dear Ann,\n" * 2_000, type="text/plain", summary="the letter")
    await run.decide("refund?", choose="full", over=["none", "full"], because="arrived broken")
    return await run.step(refund, f"o-{cents}", cents)


@limpet.agent(name="letter", approvals=limpet.Approvals("external_action"))
async def letter(run: limpet.Run, to: str) -> str:
    """Waits for a person, then for a signal."""
    colour: str = await run.ask(f"Which colour for {to}?", options=["red", "blue"], to="sales")
    return f"{colour} {await run.receive('go', str)}"


async def fill(app: limpet.App) -> None:
    """Create runs in several states."""
    await app.run(support, 50, id="ticket-42", session="ann-1", user="ann", labels={"team": "sales"})
    failed = await app.start(support, 950, id="ticket-43")
    async for _ in failed.events():
        pass
    waiting = await app.start(letter, "ann", id="letter-1", conversation="chat-7")
    async for event in waiting.events():
        if event.kind == "run.waiting":
            break
    await app.fork("ticket-42", at=1, id="ticket-42.1", effects="stub")


@contextmanager
def served_store(folder: Path) -> Iterator[str]:
    """Run the server over a new store, and yield its URL."""
    words = [sys.executable, "-m", __name__, f"sqlite:///{folder}/limpet.db"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            assert process.wait(30) == 0


async def main(url: str) -> None:
    """Fill a store, and serve it."""
    async with limpet.open(url, agents=[support, letter]) as app:
        await fill(app)
    callers = {token: replace(who, door="http") for token, who in CALLERS.items()}
    options = ServerOptions(host="127.0.0.1", port=0, token=callers.get, also={})  # type: ignore[arg-type]
    await serve(limpet.open(url, agents=[support, letter]), options, lambda address: print(address, flush=True))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
