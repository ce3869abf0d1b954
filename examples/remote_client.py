"""Use the runs of another machine: the same app, through a server.

python examples/remote_client.py
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import limpet

STORE = "sqlite:///remote.db"
LIMPET = str(Path(sys.executable).with_name("limpet"))


@dataclass
class Refund:
    """Result of the agent."""

    order: str
    cents: int


@limpet.agent()
async def support(run: limpet.Run, order: str) -> Refund:
    """Ask a person, and pay."""
    cents = await run.ask(f"How many cents for {order}?", answer=int, to="finance")
    return Refund(order, cents)


@asynccontextmanager
async def serving(token: str) -> AsyncIterator[str]:
    """Run `limpet serve`, and yield the address that it prints."""
    command = [LIMPET, "serve", "--port", "0", "--url", STORE, "--json"]
    server = await asyncio.create_subprocess_exec(*command, env={"LIMPET_TOKEN": token}, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    try:
        yield json.loads(await server.stdout.readline())["url"]
    finally:
        server.terminate()
        await server.wait()


async def use(address: str, token: str) -> None:
    """Start a run, answer its question, and wait for its result."""
    async with limpet.open(address, token=token) as app:
        handle = await app.start(support, "o-1")
        async for event in handle.events():
            if event.kind == "request.opened":
                await app.answer(event.body["request"], 900, by="ann")
        print(await handle.result())
        try:
            await app.info("ticket-43")
        except limpet.NotFound as error:
            print(error.summary)


async def main() -> None:
    """Work here, and use it from there."""
    async with limpet.open(STORE, agents=[support]) as app:
        ann = await app.create_token("ann", roles=["operator", "approver"], groups=["finance"])
        async with serving("a-token-of-twenty-characters") as address:
            await use(address, ann.token)


if __name__ == "__main__":
    asyncio.run(main())
