"""Serve the HTTP API inside your own FastAPI service, with its sessions.

python examples/inside_fastapi.py
"""

import asyncio

import httpx
from fastapi import FastAPI, Request

import limpet
from limpet import web

SESSIONS = {"3f9a": "ann"}


@limpet.agent()
async def greet(run: limpet.Run, name: str) -> str:
    """Greet a customer."""
    await run.patch(goal=f"greet {name}")
    return f"Hello, {name}!"


app = limpet.open("sqlite:///greetings.db", agents=[greet])


def caller(request: Request) -> limpet.Principal | None:
    """Return who sends a request, None for a caller without a session."""
    name = SESSIONS.get(request.cookies.get("session", ""))
    return None if name is None else limpet.Principal(name=name, roles=("operator",))


service = FastAPI()
web.install(service, app, prefix="/agents", principal=caller)


async def main() -> None:
    """Call the service as a browser would."""
    client = httpx.AsyncClient(transport=httpx.ASGITransport(service), base_url="http://shop.example.com")
    async with service.router.lifespan_context(service), client:
        body = {"agent": "greet", "input": "Bob", "id": "greet-bob"}
        print((await client.post("/agents/v1/runs", json=body)).json()["code"])
        client.cookies["session"] = "3f9a"
        run = (await client.post("/agents/v1/runs", json=body, headers={"Prefer": "wait=20"})).json()
        print(run["status"], run["output"])


if __name__ == "__main__":
    asyncio.run(main())
