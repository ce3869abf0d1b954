"""A tool gets a secret, and nothing else does: not the log, not an error, not the person who approves the call."""

import asyncio
from pathlib import Path

import limpet


@limpet.tool(effect="idempotent", risk="external_action")
async def transfer(cents: int, key: limpet.Secret) -> str:
    """Call the bank with the key; its error messages must not repeat the key."""
    if cents > 10_000:
        raise ValueError(f"the bank refused {cents} cents with key {key.reveal()}")
    return f"signed with a key of {len(key.reveal())} characters"


@limpet.agent(approvals=limpet.Approvals("external_action", to="finance"))
async def pay(run: limpet.Run, cents: int) -> str:
    """The agent reads the key where it needs it, in every execution, so a resumed run has it again."""
    return await run.step(transfer, cents, limpet.Secret("swordfish-of-the-bank"))


async def main() -> None:
    """Pay a little, then too much, and search for the key everywhere."""
    async with limpet.open("sqlite:///bank.db", agents=[pay]) as app:
        for cents in (500, 50_000):
            handle = await app.start(pay, cents, id=f"pay-{cents}")
            async for event in app.events(handle.id):
                for request in await app.inbox(run=handle.id) if event.kind == "request.opened" else ():
                    print(request.question, dict(request.args))
                    await app.approve(request, by="ann")
            try:
                print(await handle.result())
            except limpet.RunFailed as error:
                print(error.message)
    print("readable in the file:", b"swordfish" in Path("bank.db").read_bytes())


if __name__ == "__main__":
    asyncio.run(main())
