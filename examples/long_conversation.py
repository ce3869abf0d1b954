"""A long conversation: it outlives its runs, is summarised when it grows, and can be forked; and data that expires.

python examples/long_conversation.py
"""

import asyncio

import limpet
from limpet.llm.model import Prompt
from limpet.testing import ScriptedModel


def says(request: Prompt) -> str:
    """A stand-in for a model; it also writes the summaries."""
    if request.messages[0].text.startswith("Summarise"):
        return "They talked about apples, at length."
    return f"You said: {request.messages[-1].text[:14]}"


chat = limpet.llm_agent(
    "chat",
    model=ScriptedModel(says),
    instructions="Talk about apples.",
    compact=limpet.Compaction(above=400, keep=150),  # in tokens
)


@limpet.external(ttl="5m")
async def price(symbol: str) -> int:
    """Read the price of a share; the data is fresh for five minutes."""
    print(f"asked for the price of {symbol}")
    return 100


@limpet.tool(effect="once", fresh=[price], invalidates=[price])
async def sell(symbol: str, at: int) -> str:
    """Sell, but never on an outdated price."""
    return f"sold {symbol} at {at}"


@limpet.agent()
async def trader(run: limpet.Run) -> list[str]:
    """Read, perhaps act, and read again once the data has expired."""
    await run.say("I look.")
    at = await run.read(price, "ACME")
    at = await run.read(price, "ACME")  # still fresh: not read again
    done = [await run.step(sell, "ACME", at)]
    try:
        done.append(await run.step(sell, "ACME", at))
    except limpet.Stale as stale:
        done.append(f"stale: {stale.source}")
    return done


async def main() -> None:
    """Each turn is a run; the next one sees the messages, in this process or another."""
    async with limpet.open("sqlite:///talk.db", agents=[chat, trader]) as app:
        for number in range(12):
            text = f"message {number:2}, and apples " + "again and " * 15
            handle = await app.start(chat, text, id=f"turn-{number}", conversation="apples", session="ann-1")
            await handle.result()
        await app.say("apples", "and pears")  # no run is active there: the next one receives it
        for message in await app.messages("apples", last=3):
            print(f"{message.role}: {message.text[:30]}")
        shown, whole = await app.messages("apples"), await app.messages("apples", whole=True)
        print([message.text for message in shown if message.is_summary])
        print(len(shown) < len(whole), len(whole))
        known = await app.context("turn-11", max_tokens=300)
        print(len(known.messages), known.left_out["messages"])
        other = await app.fork("turn-3", at=1, id="otherwise")
        await other.result()
        print(len(await app.messages("otherwise.chat")), len(await app.messages("apples", whole=True)))
        print([(each.id, each.runs, each.conversations) for each in await app.sessions()])
        print(await app.run(trader, id="t"))


if __name__ == "__main__":
    asyncio.run(main())
