"""Hand a run to a person: a question with a typed answer, a failure that becomes a request, and a notification channel.

python examples/hand_to_a_person.py
"""

import asyncio
from dataclasses import dataclass
from typing import Literal

import limpet


@dataclass
class Ruling:
    """The decision of a person."""

    outcome: Literal["refund", "replace", "nothing"]
    note: str


@limpet.tool(effect="none", retry=limpet.Retry(2, first=0))
async def look_up(order: str) -> str:
    """Call a system that is down."""
    raise ConnectionError(f"the warehouse does not answer about {order}")


@limpet.agent(escalate=limpet.Escalate(retries=True, to="oncall"), deadline="7d")
async def complaint(run: limpet.Run, order: str) -> str:
    """Ask a person where the agent cannot know."""
    stock = await run.step(look_up, order)  # when the attempts are used up, the agent asks a person instead of failing
    ruling = await run.ask(f"{order}: {stock}. What now?", answer=Ruling, to="support", expires="2d")
    return f"{ruling.outcome}: {ruling.note}"


async def main() -> None:
    """The app notifies a channel of each request; an answer that does not fit is refused."""
    asked: asyncio.Queue[limpet.Request] = asyncio.Queue()
    async with limpet.open("sqlite:///people.db", agents=[complaint], notify={"desk": asked.put}) as app:
        handle = await app.start(complaint, "o-1")
        failed = await asked.get()
        print(failed.question)
        await app.answer(failed, {"result": "two are left"}, by="ann")
        ruling = await asked.get()
        print(ruling.question)
        try:
            await app.answer(ruling, {"outcome": "shrug", "note": ""}, by="bob")
        except limpet.InvalidAnswer as error:
            print(error.reason)
        await app.answer(ruling, Ruling("replace", "send another"), by="bob")
        print(await handle.result())


if __name__ == "__main__":
    asyncio.run(main())
