"""A real server over two tenants with varied runs, for generated clients and fuzzing.

The server prints its URL and its tokens as JSON, and stops on SIGTERM.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import limpet
from limpet.clock import SystemClock
from limpet.service.access import ROLES
from limpet.web.server import ServerOptions, serve

OTHER = "oyster"
"""Name of the other tenant, which all its texts contain."""


@dataclass(frozen=True)
class Served:
    """A running server."""

    url: str
    tokens: dict[str, str]
    """Tokens by what they are: valid, narrow, expired, wrong."""

    @property
    def valid(self) -> str:
        """The token of a person with all roles."""
        return self.tokens["valid"]


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
def served_store(folder: Path) -> Iterator[Served]:
    """Run the server over new stores."""
    words = [sys.executable, "-m", __name__, str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield Served(**json.loads(process.stdout.readline()))
        finally:
            process.terminate()
            assert process.wait(30) == 0


async def fill_other(app: limpet.App) -> str:
    """Create runs of the other tenant, with the same ids, and return a token of its operator."""
    await app.run(support, 60, id="ticket-42", session=OTHER, user=OTHER, labels={"team": OTHER}, goal=OTHER)
    await app.run(support, 70, id=f"{OTHER}-1", conversation=f"{OTHER}-chat", facts={OTHER: OTHER})
    return (await app.create_token(OTHER, roles=[*ROLES], tenant=OTHER)).token


async def make_tokens(app: limpet.App) -> dict[str, str]:
    """Create tokens for one tenant: of a person with all roles, of a viewer, and one that has expired."""
    made = await app.create_token("ann", roles=[*ROLES], rights=["raw"], groups=["sales"])
    narrow = await app.create_token("ben", roles=["viewer"])
    expired = await app.create_token("eve", roles=[*ROLES], expires="1s")
    while not any(each.status == "expired" for each in await app.tokens()):
        await SystemClock().sleep(10_000)
    wrong = f"{made.token[:-1]}{'0' if made.token[-1] != '0' else '1'}"
    return {"valid": made.token, "narrow": narrow.token, "expired": expired.token, "wrong": wrong}


async def main(folder: str) -> None:
    """Fill two stores, and serve them."""
    urls = {name: f"sqlite:///{folder}/{name}.db" for name in ("main", OTHER)}
    async with limpet.open(urls["main"], agents=[support, letter]) as app:
        await fill(app)
        tokens = await make_tokens(app)
    async with limpet.open(urls[OTHER], agents=[support, letter]) as app:
        tokens[OTHER] = await fill_other(app)
    apps = {name: limpet.open(url, agents=[support, letter]) for name, url in urls.items()}
    options = ServerOptions(host="127.0.0.1", port=0, token="0" * 40, rate=1e9, also={})
    await serve(apps, options, lambda url: print(json.dumps({"url": url, "tokens": tokens}), flush=True))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
