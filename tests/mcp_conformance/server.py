"""Limpet's own server, behind its own guard, with the fixtures of the official suite; it prints its port.

python -m tests.mcp_conformance.server
"""

import asyncio
import socket

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

import limpet
from limpet import web
from limpet.mcp import over_http
from limpet.mcp.offer import Offer
from limpet.service.tokens import TENANT
from tests.mcp_conformance import content, inputs, work

__all__ = ["offer"]

TOKEN = "conformance-" + "0" * 20


def caller(token: str) -> limpet.Principal | None:
    """Return who the suite is: a person who operates and decides."""
    return limpet.Principal(name="suite", roles=("operator", "approver")) if token == TOKEN else None


def offer() -> Offer:
    """Return the fixtures."""
    return Offer(
        tools=[*content.tools(), *inputs.input_tools(), *work.work_tools()],
        resources=content.resources(),
        prompts=content.prompts(),
    )


def with_token(inside: ASGIApp) -> ASGIApp:
    """Return an application that adds the token, which the suite cannot send."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["headers"] = [*scope["headers"], (b"authorization", f"Bearer {TOKEN}".encode())]
        await inside(scope, receive, send)

    return call


async def main() -> None:
    """Serve until the process ends."""
    app = limpet.open("memory:", agents=work.AGENTS)
    served = web.asgi(app, auth=caller, also={"/mcp": over_http({TENANT: app}, also=offer())}, rate=100_000)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        print(listening.getsockname()[1], flush=True)
        config = uvicorn.Config(with_token(served), log_level="warning", access_log=False)
        await uvicorn.Server(config).serve([listening])


if __name__ == "__main__":
    asyncio.run(main())
