"""Approve a tool call: a risky step opens a request with its exact arguments, and the run waits in no process.

python examples/approve_a_call.py
"""

import asyncio

import limpet


@limpet.tool(effect="idempotent", risk="external_action")
async def refund(order: str, cents: int) -> str:
    """Refund an order."""
    print(f"refund {order}: {cents} cents")
    return "R-7"


@limpet.agent(approvals=limpet.Approvals("external_action", to="finance", expires="2d", escalate=["boss"]))
async def support(run: limpet.Run, order: str) -> str:
    """Settle a complaint, if finance agrees."""
    try:
        return await run.step(refund, order, 4900)
    except limpet.Rejected as no:
        return f"{no.by} said no: {no.because}"


async def ask() -> None:
    """The first process opens the request and exits."""
    async with limpet.open("sqlite:///approvals.db", agents=[support]) as app:
        handle = await app.start(support, "o-1", id="ticket-1")
        async for event in handle.events():
            if event.kind == "request.opened":
                break


async def decide() -> None:
    """Someone in finance decides days later, from any machine."""
    people = {"finance": ["ann"], "boss": ["eve"]}
    async with limpet.open("sqlite:///approvals.db", people=people) as app:
        [request] = await app.inbox(to="ann")
        assert request.context is not None
        print(f"{request.tool}({request.args}): {request.context.why}")
        for choice in request.context.choices:
            print(f"- {choice.answer}: {choice.effect}")
        await app.approve(request, by="ann", args={"cents": 2500})


async def go_on() -> None:
    """Another process resumes the run from the step, with the approved arguments."""
    async with limpet.open("sqlite:///approvals.db", agents=[support]) as app:
        print(await (await app.get("ticket-1", support)).result())


if __name__ == "__main__":
    for part in (ask, decide, go_on):
        asyncio.run(part())
