"""A small shop whose effects write traces to a folder, for real workers."""

import os
import time
from pathlib import Path

import limpet

FOLDER = Path(os.environ.get("SHOP", "."))


def trace(text: str) -> None:
    """Record an effect."""
    with (FOLDER / "traces").open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


@limpet.tool(effect="none", retry=1)
def shop_price(item: str) -> int:
    if item == "dust":
        raise ValueError("dust is not for sale")
    return 100


@limpet.tool(effect="once")
def shop_charge(cents: int) -> str:
    """Block until the file `go` exists."""
    trace("charge begins")
    while not (FOLDER / "go").exists():
        time.sleep(0.005)  # noqa: TID251 - a slow effect
    trace("charge ends")
    return "R-1"


@limpet.tool(effect="once", risk="external_action")
def shop_mail(receipt: str) -> None:
    trace("mail")


@limpet.agent()
async def order(run: limpet.Run, item: str) -> str:
    await run.patch(goal=f"sell {item}", plan=["price", "charge", "mail"])
    async with run.scope("price"):
        cents = await run.step(shop_price, item)
    async with run.scope("charge"):
        receipt = await run.step(shop_charge, cents)
    async with run.scope("mail"):
        await run.step(shop_mail, receipt)
    return receipt


@limpet.agent(approvals=limpet.Approvals("external_action", to="sales"))
async def letter(run: limpet.Run, to: str) -> str:
    if await run.ask("Which colour?", options=["red", "blue"], to="sales") == "red":
        await run.step(shop_mail, to)
    return to


app = limpet.open(agents=[order, letter], worker=False)
both = [order, letter]
