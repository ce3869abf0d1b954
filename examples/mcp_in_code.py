"""An agent in code that calls tools of an MCP server and reads its resources, as recorded steps.

python examples/mcp_in_code.py
"""

import asyncio
import sys
from typing import Any

import limpet
from limpet.adapters.mcp import MCPTools

desk = MCPTools(
    [sys.executable, __file__, "serve"],  # or a URL: "http://localhost:8000/mcp"
    name="desk",
    effects={"quote": "none", "send": "once"},
    risks={"send": "external_action"},
)
prices = desk.resource("prices://{city}", name="prices", ttl="5m")


@limpet.agent(approvals=limpet.Approvals("external_action"))
async def parcel(run: limpet.Run, city: str) -> Any:
    """Offer a parcel."""
    tools = await desk.tools(run)  # a step: the run uses this list until its end
    price = await run.read(prices, city)  # a step, unless the run has read it in the last five minutes
    quote = await run.step(tools["quote"], city=city, cents=price["cents"])
    return await run.step(tools["send"], city=city, text=quote)


def serve() -> None:
    """A small MCP server for the example; most are run by others."""
    from mcp.server import MCPServer  # noqa: PLC0415 - the agent does not need it

    server = MCPServer("desk")

    @server.tool()
    def quote(city: str, cents: int) -> str:
        """Make an offer."""
        return f"a parcel to {city} costs {cents} cents"

    @server.tool()
    def send(city: str, text: str) -> str:
        """Send an offer."""
        return f"sent to {city}: {text}"

    @server.resource("prices://{city}", mime_type="application/json")
    def price(city: str) -> dict[str, int]:
        """Price of a parcel to a city."""
        return {"cents": 100 + len(city)}

    server.run("stdio")


async def main() -> None:
    """The approval shows the arguments of the tool."""
    async with limpet.open("sqlite:///parcels.db", agents=[parcel]) as app:
        handle = await app.start(parcel, "Cork", id="parcel-1")
        async for event in handle.events():
            for request in await app.inbox(run=handle.id) if event.kind == "request.opened" else ():
                print("may it?", request.tool, request.args)
                await app.approve(request, by="ben")
        print(await handle.result())


if __name__ == "__main__":
    serve() if sys.argv[1:] else asyncio.run(main())
