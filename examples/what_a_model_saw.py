"""Why did the model say this? Rebuild its prompt, with the origin of each part; and retract facts that were wrong.

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
        calls("note_fact", key="price"),
        "I must look again.",
    ),
    instructions="You write offers.",
)


@limpet.tool(effect="none")
def price(article: str) -> int:
    """Return the price."""
    return {"lamp": 100}[article]


@limpet.agent()
async def offer(run: limpet.Run, article: str) -> list[str]:
    """Record facts, where they come from, and what they were derived from."""
    await run.patch(facts={"price": await run.step(price, article)}, source="price")
    await run.patch(facts={"total": 3 * run.state.facts["price"]}, derived_from=["price"])
    doubtful = [fact.key for fact in run.state.derived_from("price")]
    await run.patch(retract=["price"])  # it was wrong, so facts derived from it may be wrong, too
    return doubtful


async def main() -> None:
    """Everything is in the log, so any process can read it at any time."""
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
