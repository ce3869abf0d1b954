"""One busy run, the same each time: retries, an unknown outcome, an edited approval, parallel branches, a child, turns
of a model, a failure that the code catches, and a compensation.
"""

import asyncio
from pathlib import Path
from typing import Any

import limpet
from limpet import testing
from limpet.testing.scripted_model import ScriptedModel, calls

RETRY = limpet.Retry(5, first="1s")


@limpet.tool(name="busy_order", effect="none", retry=RETRY)
async def read_order(order: str) -> dict[str, Any]:
    """Read an order; stubbed."""
    raise NotImplementedError


@limpet.tool(name="busy_quote", effect="none", retry=1)
async def quote(carrier: str) -> int:
    """Return the price of a parcel."""
    return {"post": 590, "courier": 1290}[carrier]


@limpet.tool(name="busy_charge", effect="once")
async def charge(cents: int) -> str:
    """Charge a card."""
    return f"C-{cents}"


@charge.compensate
async def undo_charge(charged: str | None, cents: int) -> None:
    """Give the money back."""


@limpet.tool(name="busy_refund", effect="once", risk="external_action")
async def refund(order: str, cents: int) -> str:
    """Refund an order."""
    return f"R-{order}-{cents}"


@limpet.tool(name="busy_stock", effect="none", retry=1)
async def stock(article: str) -> int:
    """Fail: the service knows no such article."""
    raise LookupError(f"no article {article!r}")


@limpet.agent(name="busy_billing")
async def billing(run: limpet.Run, cents: int) -> str:
    """Charge, as a run of its own."""
    return await run.step(charge, cents)


writer = limpet.llm_agent(
    "busy_writer",
    model=ScriptedModel(
        (calls("set_plan", items=["price", "letter"]), calls("note_fact", key="tone", value="friendly")),
        (calls("busy_quote", carrier="post"), calls("set_plan", done=["price"])),
        "Dear customer, the parcel costs 5.90.",
    ),
    instructions="Write a letter.",
    tools=[quote],
)


@limpet.agent(name="busy_desk", approvals=limpet.Approvals("external_action", to="finance"))
async def desk(run: limpet.Run, order: str) -> str:
    """Handle a complaint."""
    await run.patch(goal=f"settle {order}", plan=["look", "ship", "refund", "bill", "write", "close"])
    async with run.scope("look"):
        found = await run.step(read_order, order)
        await run.patch(facts={"price": found["cents"]}, source="busy_order")
    async with run.scope("ship"):
        prices = await asyncio.gather(run.step(quote, "post"), run.step(quote, "courier"))
        carrier = await run.decide(
            "Which carrier?", choose="post", over=["post", "courier"], because=f"{prices[0]} is less than {prices[1]}"
        )
        await run.patch(facts={"carrier": carrier}, derived_from=["price"])
    try:
        await run.step(stock, "x-1")
    except limpet.StepFailed:
        await run.patch(flags=["article unknown"])
    async with run.scope("refund"):
        receipt = await run.step(refund, order, found["cents"])
        await run.patch(facts={"receipt": receipt})
    async with run.scope("bill"):
        await run.call(billing, prices[0])
    charged = await run.step(charge, prices[0])
    async with run.scope("write"):
        await run.call(writer, f"A letter about {order}.")
    await run.ask("Is the customer content?", to="sales")
    return charged


async def busy_store(path: Path) -> None:
    """Write the busy run to an SQLite file, as `o-1`; it is cancelled at the end."""
    async with testing.app(desk, billing, writer) as app:
        busy, lost = ConnectionError("the order service is busy"), TimeoutError("no reply in 5 s")
        app.stub(read_order, busy, lost, {"order": "o-1", "cents": 4900})
        app.crash_at("after", "step.started", tool="busy_charge", name="busy_charge#1")
        handle = await app.start(desk, "o-1", id="o-1", user="eve", labels={"team": "north"})
        await app.settle()
        await app.advance("40m")
        [request] = await app.inbox()
        await app.approve(request, by="ann", args={"cents": 900})
        await app.settle()
        for _ in range(3):
            for each in await app.inbox():
                if each.kind == "unknown":
                    await app.answer(each, "not_applied", by="bob")
            await app.settle()
        await app.advance("2h")
        await app.cancel(handle.id, reason="the customer withdrew it", by="ann")
        await app.settle()
        await app.export(handle.id, path.with_suffix(".zip"), with_handoffs=True)
    async with limpet.open(f"sqlite:///{path}", worker=False) as store:
        await store.load(path.with_suffix(".zip"))
