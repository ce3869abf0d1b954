"""The first agent: kill it anywhere, start it again, and it goes on from its step with no action repeated.

python examples/first_agent.py
"""

import asyncio
from dataclasses import dataclass

import limpet


@dataclass
class Order:
    id: str
    cents: int
    email: str


@limpet.tool(effect="none")  # a read: repeat it as you like
async def fetch_order(order: str) -> Order:
    return Order(id=order, cents=4900, email="ann@example.org")


@limpet.tool(effect="idempotent", retry=limpet.Retry(5), timeout="10s")  # safe to repeat with the same key
async def refund(order: str, cents: int) -> str:
    print(f"refund {order}: {cents} cents, key {limpet.idempotency_key()}")  # the same on every attempt
    return "R-7"


@limpet.tool(effect="once")  # never repeated blindly
async def send_mail(to: str, body: str) -> None:
    print(f"mail to {to}: {body}")


@limpet.agent(steps=3)
async def support(run: limpet.Run, order_id: str) -> str:
    order = await run.step(fetch_order, order_id)
    how = await run.decide("refund?", choose="full", over=["none", "full"], because="arrived broken")
    if how == "none":
        return "nothing owed"
    receipt = await run.step(refund, order.id, order.cents)
    await run.step(send_mail, order.email, f"Refunded: {receipt}")
    return receipt


async def main() -> None:
    """Start the run, or continue it: the same id and input always mean the same run."""
    async with limpet.open("sqlite:///support.db", agents=[support]) as app:
        print(await app.run(support, "o-1", id="ticket-42"))


if __name__ == "__main__":
    asyncio.run(main())
