"""Query a run from elsewhere: a service over HTTP, and another agent over MCP.

python examples/ask_from_elsewhere.py
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

import limpet
from limpet.adapters.mcp import MCPTools
from limpet.testing import ScriptedModel, calls

STORE, TOKEN = "sqlite:///asked.db", "a-token-of-twenty-characters"
LIMPET = str(Path(sys.executable).with_name("limpet"))

COMMAND = [LIMPET, "mcp", "--role", "auditor", "--url", STORE]
state_of = MCPTools(COMMAND, name="limpet", only=["context"], effects={"context": "none"})
successor = limpet.llm_agent(
    "successor",
    model=ScriptedModel(calls("context", run="ticket-42", max_tokens=500), "The order is o-1; I go on with `refund`."),
    instructions="Go on where the other one was.",
    tools=[state_of],
)


@limpet.agent()
async def support(run: limpet.Run, order: str) -> bool:
    """An agent that stops half way."""
    await run.patch(goal=f"settle {order}", plan=["look", "refund"], facts={"order": order})
    async with run.scope("look"):
        await run.artifact("It arrived broken. " * 500, type="text/plain", summary="the customer's letter")
    return await run.ask("Refund it?", to="finance")


@asynccontextmanager
async def serving() -> AsyncIterator[str]:
    """Run `limpet serve`, and yield the URL that it prints."""
    command = [LIMPET, "serve", "--port", "0", "--url", STORE, "--json"]
    server = await asyncio.create_subprocess_exec(*command, env={"LIMPET_TOKEN": TOKEN}, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    try:
        yield json.loads(await server.stdout.readline())["url"]
    finally:
        server.terminate()
        await server.wait()


async def main() -> None:
    """Read the same context through every interface."""
    async with limpet.open(STORE, agents=[support, successor]) as app:
        handle = await app.start(support, "o-1", id="ticket-42")
        async for event in handle.events():
            if event.kind == "request.opened":
                break
        async with serving() as address, httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
            answer = await http.get(f"{address}/v1/runs/ticket-42/context", params={"max_tokens": 500})
            known = answer.json()
            print(known["goal"], known["current_step"], [fact["key"] for fact in known["facts"]])
            [artifact] = known["artifacts"]
            path = f"/v1/runs/ticket-42/artifacts/{artifact['artifact_id']}"
            print(artifact["summary"], (await http.get(address + path)).json()["text"][:18])
            print((await http.get(f"{address}/v1/runs/ticket-43/context")).json()["detail"])
        print(await app.run(successor, "Go on, please.", id="successor-1"))


if __name__ == "__main__":
    asyncio.run(main())
