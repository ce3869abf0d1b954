"""Three agents: classify, draft, check policy. Each is called under its contract; the last one takes over.

python examples/three_agents.py
"""

import asyncio
from dataclasses import dataclass

import limpet


@dataclass
class Mail:
    """The message of a customer."""

    text: str


@dataclass
class Case:
    """The topic of a message."""

    kind: str
    mail: Mail


@dataclass
class Reply:
    """The drafted answer."""

    body: str
    allowed: bool = False


@limpet.agent()
async def classify(run: limpet.Run, mail: Mail) -> Case:
    """Classify a message."""
    kind = "refund" if "money" in mail.text else "question"
    await run.decide("kind?", choose=kind, over=["refund", "question"], because="by its words")
    return Case(kind, mail)


@limpet.agent()
async def draft(run: limpet.Run, case: Case) -> Reply:
    """Draft an answer to the customer: that fact was passed along, and nothing else."""
    return Reply(f"Dear {run.state.facts['customer']}, about your {case.kind} …")


@limpet.agent()
async def check_policy(run: limpet.Run, reply: Reply) -> Reply:
    """Release the answer, or not."""
    verdict = await run.decide("send it?", choose="refund" in reply.body, over=[True, False], because="policy 7")
    return Reply(reply.body, allowed=verdict)


@limpet.agent(budget=limpet.Budget(max_steps=50))
async def answer(run: limpet.Run, mail: Mail) -> Reply:
    """Call, call, and hand off: the outcome of the last agent is this run's."""
    await run.patch(facts={"customer": "Ann"})
    case = await run.call(classify, mail)
    reply = await run.call(draft, case, facts=["customer"], budget=limpet.Budget(max_steps=10))
    return await run.handoff(check_policy, reply)


async def main() -> None:
    """Call an agent by name if its code is elsewhere; an input that violates its contract is refused."""
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
