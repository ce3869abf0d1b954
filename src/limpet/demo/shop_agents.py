"""The agents of `limpet demo --dashboard`: a shop whose runs are in every state. They need no network and no key."""

import os
import signal
from typing import Any

import limpet
from limpet.clock import SECOND, SystemClock
from limpet.llm.model import Prompt, Reply, ToolCall, Usage

__all__ = [
    "AGENTS",
    "POISON",
    "importer",
    "onboarding",
    "packing",
    "prices",
    "refunds",
    "reports",
    "research",
    "shipments",
]

POISON = "LIMPET_DEMO_POISON"
"""Set only in the processes that the importer may kill."""
ORDERS = {
    "o-1001": ("Ann Lee", 4900, "arrived broken"),
    "o-1002": ("Ben Okafor", 1250, "never arrived"),
    "o-1003": ("Cem Aydin", 18900, "wrong size"),
    "o-1004": ("Dee Novak", 799, "changed my mind"),
}
RULES = "\n".join(
    f"{n}. Refunds of goods that {why} are paid within {n + 2} days."
    for n, (_, _, why) in enumerate(ORDERS.values(), start=1)
)
AGAIN = limpet.Retry(3, first="10ms")


@limpet.tool(effect="none")
async def find_order(order: str) -> dict[str, Any]:
    """Look up an order."""
    customer, cents, complaint = ORDERS[order]
    return {"order": order, "customer": customer, "cents": cents, "complaint": complaint}


@limpet.tool(effect="none", retry=AGAIN)
async def check_policy(complaint: str) -> dict[str, Any]:
    """Find out what the policy says. The first attempt finds the service busy."""
    call = limpet.current()
    call.spent(cost=0.002)
    if call.attempt == 1 and complaint == "never arrived":
        raise limpet.NotApplied("the policy service is busy")
    return {"pays": complaint != "changed my mind", "rule": 7}


@limpet.tool(effect="idempotent", risk="external_action", retry=AGAIN)
async def pay_back(order: str, cents: int) -> str:
    """Pay an order back. The bank knows the key, so a repeated call pays once."""
    return f"R-{order.removeprefix('o-')}-{cents}-{limpet.idempotency_key()[-4:]}"


@limpet.tool(effect="once")
async def send_letter(to: str, text: str) -> str:
    """Send a letter."""
    return f"sent {len(text)} characters to {to}"


@limpet.agent(version="3", steps=4, approvals=limpet.Approvals("external_action", to="finance"))
async def refunds(run: limpet.Run, order: str) -> str:
    """Settle a complaint: look, decide, pay, write."""
    await run.patch(goal=f"settle the complaint about {order}", plan=["look", "decide", "pay", "write"])
    async with run.scope("look"):
        found = await run.step(find_order, order)
        await run.patch(facts={"customer": found["customer"], "cents": found["cents"]}, source="find_order")
    async with run.scope("decide"):
        policy = await run.step(check_policy, found["complaint"])
        how = await run.decide(
            "Pay it back?",
            choose="in full" if policy["pays"] else "not at all",
            over=["in full", "in part", "not at all"],
            because=f"the complaint is “{found['complaint']}”, and rule {policy['rule']} applies",
            confidence=0.92,
        )
        await run.patch(facts={"refund": how}, source="check_policy", derived_from=["cents"])
    paid = ""
    async with run.scope("pay"):
        if how == "in full":
            paid = await run.step(pay_back, order, run.state.facts["cents"])
    async with run.scope("write"):
        text = f"We pay you back {how}. {paid}" if paid else "We cannot pay you back."
        await run.step(send_letter, found["customer"], text)
    return f"{how}: {paid}" if paid else how


@limpet.tool(effect="none", retry=limpet.Retry(2, first="10ms"))
async def read_prices(supplier: str) -> list[dict[str, Any]]:
    """Read a price list, which may have a fault."""
    if supplier == "Nord":
        return [{"item": "mug", "cents": "12,50 €"}]
    return [{"item": "mug", "cents": 1250}]


@limpet.tool(effect="none", retry=limpet.Retry(2, first="10ms"))
async def sum_up(rows: list[dict[str, Any]]) -> int:
    """Add the prices."""
    return sum(int(row["cents"]) for row in rows)


@limpet.agent(version="1", steps=2)
async def prices(run: limpet.Run, supplier: str) -> int:
    """Check a supplier's prices. One of them sends texts."""
    await run.patch(goal=f"check the prices of {supplier}")
    return await run.step(sum_up, await run.step(read_prices, supplier))


@limpet.tool(effect="none")
async def measure(quarter: str) -> int:
    """Measure for a long time, and report how far it is."""
    clock = SystemClock()
    for minute in range(240):
        limpet.current().progress(f"{quarter}: day {minute + 1} of 240", (minute + 1) / 240)
        await clock.sleep(10 * SECOND)
    return 240


@limpet.agent(version="2", steps=3)
async def reports(run: limpet.Run, quarter: str) -> int:
    """Make a report, which takes an hour."""
    await run.patch(goal=f"report on {quarter}", plan=["collect", "measure", "publish"])
    async with run.scope("collect"):
        await run.step(find_order, "o-1001")
        await run.artifact(RULES * 40, type="text/plain", summary="The refund policy, as it was in this quarter")
    async with run.scope("measure"):
        return await run.step(measure, quarter)


@limpet.agent(version="1")
async def credit_check(run: limpet.Run, company: str) -> str:
    """Check a company, with a person's help for a new one."""
    await run.patch(goal=f"check {company}")
    if company == "Okafor Ltd":
        found: str = await run.ask(f"Is {company} known to us?", options=["known", "unknown"], to="sales")
        return found
    return "known"


@limpet.agent(version="1", steps=2)
async def onboarding(run: limpet.Run, company: str) -> str:
    """Take on a customer: another agent checks them."""
    await run.patch(goal=f"take on {company}", plan=["check", "welcome"])
    async with run.scope("check"):
        known = await run.call(credit_check, company)
    async with run.scope("welcome"):
        await run.step(send_letter, company, f"Welcome! You are {known}.")
    return known


@limpet.agent(version="1")
async def shipments(run: limpet.Run, order: str) -> str:
    """Wait for a parcel, then for the time in which it can be returned."""
    await run.patch(goal=f"follow {order}", plan=["deliver", "return period"])
    async with run.scope("deliver"):
        where: str = await run.receive("delivered", str)
    async with run.scope("return period"):
        await run.sleep("14d")
    return where


@limpet.tool(effect="none")
async def parse_archive(name: str) -> str:
    """Crash the process, as a faulty library would; only in a process that was started for it."""
    if os.environ.get(POISON):
        os.kill(os.getpid(), signal.SIGKILL)
    return name


@limpet.agent(version="1", steps=1)
async def importer(run: limpet.Run, name: str) -> str:
    """Import an archive that kills every worker."""
    await run.patch(goal=f"import {name}")
    return await run.step(parse_archive, name)


@limpet.agent(version="1")
async def packing(run: limpet.Run) -> list[str]:
    """Pack the parcels of a plan that several runs share, and leave the last one to another run."""
    await run.patch(goal="pack what the board has")
    packed: list[str] = []
    while True:
        board = await run.record("packing-board")
        free = [item for item, status in zip(board.plan, board.plan_status, strict=True) if status == "pending"]
        if len(free) < 2:
            return packed
        await run.patch_record(board, revise={free[0]: "doing"})
        found = await run.step(find_order, free[0])
        facts, source = {f"parcel {free[0]}": found["customer"]}, "find_order"
        await run.patch_record(await run.record("packing-board"), facts=facts, source=source, revise={free[0]: "done"})
        packed.append(free[0])


class ShopModel:
    """A model that looks orders up and answers, always in the same way."""

    name = "demo:shop-1"

    async def reply(self, prompt: Prompt, /, *, on_text: Any = None) -> Reply:
        """Return the next reply: a call first, then an answer with the result."""
        last = prompt.messages[-1]
        if last.role == "tool":
            text = f"I looked it up: {last.text[:120]}. The goods can be returned within 14 days."
            reply = Reply(text=text, finish="stop", model=self.name)
        else:
            count = sum(len(each.calls) for each in prompt.messages)
            call = ToolCall(id=f"call-{count + 1}", name="find_order", args=f'{{"order":"o-100{count % 4 + 1}"}}')
            reply = Reply(text="I look at the order first.", calls=(call,), finish="calls", model=self.name)
        if on_text is not None:
            on_text(reply.text)
        usage = Usage(input_tokens=prompt.size, output_tokens=len(reply.text) // 4, cost=prompt.size * 2e-6)
        return Reply(text=reply.text, calls=reply.calls, finish=reply.finish, model=self.name, usage=usage)


research = limpet.llm_agent(
    "research",
    model=ShopModel(),
    instructions="You answer questions of customers about their orders. Look at the order before you answer.",
    tools=[find_order],
)
AGENTS: list[limpet.Agent[Any, Any]] = [
    refunds,
    prices,
    reports,
    credit_check,
    onboarding,
    shipments,
    packing,
    research,
]
"""The agents that the server of the demo executes. The importer is not among them: it would kill the server."""
