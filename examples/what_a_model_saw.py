"""Why did the model see this? What it was asked is made again, with where it comes from; and facts that were wrong.

python examples/what_a_model_saw.py
"""

import asyncio

import limpet
from limpet.testing import ScriptedModel, calls

clerk = limpet.llm_agent(
    "clerk",
    model=ScriptedModel(
        (calls("note_fact", key="price", value="100"), calls("set_plan", items=["look", "offer"])),
        calls("note_fact", key="total", value="300", derived_from=["price"]),
        calls("retract_fact", key="price"),
        "I must look again.",
    ),
    instructions="You write offers.",
)


@limpet.tool(effect="none")
def price(article: str) -> int:
    """What it costs."""
    return {"lamp": 100}[article]


@limpet.agent()
async def offer(run: limpet.Run, article: str) -> list[str]:
    """What it knows, where that is from, and what rests on it."""
    await run.patch(facts={"price": await run.step(price, article)}, source="price")
    await run.patch(facts={"total": 3 * run.state.facts["price"]}, derived_from=["price"])
    doubtful = [fact.key for fact in run.state.derived_from("price")]
    await run.patch(retract=["price"])  # it was wrong: what was concluded from it may be, too
    return doubtful


async def main() -> None:
    """All of it is in the log: it can be asked for at any time, by any process."""
    async with limpet.open("sqlite:///saw.db", agents=[clerk, offer]) as app:
        print(await app.run(clerk, "An offer for three, please.", id="offer-1"))
        seen = await app.prompt("offer-1", step=4)
        print(*seen.why, seen.is_exact, sep="\n")
        print(seen.prompt.messages[0].text)
        known = await app.context("offer-1", before=3, max_tokens=500)
        print(known.current_step, [fact.key for fact in known.facts], len(known.messages), known.left_out)
        print(await app.run(offer, "lamp", id="offer-2"))
        for fact in (await app.state("offer-2")).working.known_facts:
            print(fact.key, "of step", fact.step, "concluded from", fact.derived_from)


if __name__ == "__main__":
    asyncio.run(main())
