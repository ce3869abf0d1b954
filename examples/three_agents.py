"""Three agents: classify, draft, check policy. Each is called under its contract; the last one takes over for good.

python examples/three_agents.py
"""

import asyncio
from dataclasses import dataclass

import limpet


@dataclass
class Mail:
    """What a customer wrote."""

    text: str


@dataclass
class Case:
    """What it is about."""

    kind: str
    mail: Mail


@dataclass
class Reply:
    """What is answered."""

    body: str
    allowed: bool = False


@limpet.agent()
async def classify(run: limpet.Run, mail: Mail) -> Case:
    """Say what it is about."""
    kind = "refund" if "money" in mail.text else "question"
    await run.decide("kind?", choose=kind, over=["refund", "question"], because="by its words")
    return Case(kind, mail)


@limpet.agent()
async def draft(run: limpet.Run, case: Case) -> Reply:
    """Write an answer to whoever it is: that fact came along, and nothing else did."""
    return Reply(f"Dear {run.state.facts['customer']}, about your {case.kind} …")


@limpet.agent()
async def check_policy(run: limpet.Run, reply: Reply) -> Reply:
    """Let it out, or not."""
    verdict = await run.decide("send it?", choose="refund" in reply.body, over=[True, False], because="policy 7")
    return Reply(reply.body, allowed=verdict)


@limpet.agent(budget=limpet.Budget(max_steps=50))
async def answer(run: limpet.Run, mail: Mail) -> Reply:
    """Call, call, and hand over: the outcome of the last one is this run's."""
    await run.patch(facts={"customer": "Ann"})
    case = await run.call(classify, mail)
    reply = await run.call(draft, case, facts=["customer"], budget=limpet.Budget(max_steps=10))
    return await run.handoff(check_policy, reply)


async def main() -> None:
    """An agent whose code is elsewhere is called by name; what does not fit its contract does not leave."""
    async with limpet.open("sqlite:///agents.db", agents=[answer, classify, draft, check_policy]) as app:
        print(await app.run(answer, Mail("I want my money back"), id="mail-1"))
        for info in await app.runs():
            print(info.id, info.status)
        try:
            await app.start("classify", {"txet": "a typing error"})
        except limpet.ContractError as error:
            print(error.faults)


if __name__ == "__main__":
    asyncio.run(main())
