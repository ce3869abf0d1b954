"""Your first durable agent: a model chooses, each choice is recorded, and a risky call waits for a person.

python examples/first_llm_agent.py
"""

import asyncio

import limpet
from limpet.testing import ScriptedModel, calls


@limpet.tool(effect="none")
def check_disk() -> str:
    """Check current disk usage."""
    return "95 %"


@limpet.tool(effect="idempotent", risk="write_local")
def clean_logs(older_than_days: int) -> str:
    """Delete old logs to free space."""
    print(f"deleted logs of more than {older_than_days} days, key {limpet.idempotency_key()}")
    return "freed 20 GB"


devops = limpet.llm_agent(
    "devops",
    model=ScriptedModel(  # or "openai:gpt-5-mini", and OPENAI_API_KEY
        ("I look first.", calls("check_disk")),
        ("Too full.", calls("clean_logs", older_than_days=30)),
        "There is space again.",
    ),
    instructions="You keep servers running. Look before you act.",
    tools=[check_disk, clean_logs],
    budget=limpet.Budget(max_llm_tokens=200_000),
    approvals=limpet.Approvals("write_local", to="oncall"),
)


async def main() -> None:
    """Same id, same input: the same run, however often this is started and killed."""
    async with limpet.open("sqlite:///devops.db", agents=[devops]) as app:
        handle = await app.start(devops, "I'm out of disk space. Fix it.", id="disk-1")
        async for event in handle.events():
            for request in await app.inbox(run=handle.id) if event.kind == "request.opened" else ():
                await app.approve(request, by="ann", args={"older_than_days": 7})
        print(await handle.result())
        for made in (await app.state("disk-1")).decisions:
            print(made.chosen, "because", made.because)


if __name__ == "__main__":
    asyncio.run(main())
