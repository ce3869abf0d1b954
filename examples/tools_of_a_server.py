"""Tools of an MCP server: listed when a run begins, called as steps, approved and never repeated blindly.

python examples/tools_of_a_server.py
"""

import asyncio
import sys

import limpet
from limpet.adapters.mcp import MCPTools
from limpet.testing import ScriptedModel, calls

desk = MCPTools(
    [sys.executable, __file__, "serve"],  # or a URL: "http://localhost:8000/mcp"
    name="desk",
    only=["lookup", "send"],
    effects={"lookup": "none"},  # tools that are not named are `once`
    risks={"send": "external_action"},
)
writer = limpet.llm_agent(
    "writer",
    model=ScriptedModel(calls("lookup", name="Ann"), calls("send", name="Ann", text="hello"), "It is sent."),
    instructions="You write letters.",
    tools=[desk],
    approvals=limpet.Approvals("external_action"),
)


def serve() -> None:
    """A small MCP server for the example; most are run by others."""
    from mcp.server import MCPServer  # noqa: PLC0415 - the agent does not need it

    server = MCPServer("desk")

    @server.tool()
    def lookup(name: str) -> str:
        """Look up where a person lives."""
        return f"{name} lives at 7 Harbour Road"

    @server.tool()
    def send(name: str, text: str) -> str:
        """Send a letter."""
        return f"sent to {name}: {text}"

    @server.tool()
    def burn(name: str) -> str:
        """A tool that is not offered to the model."""
        return f"burnt what {name} wrote"

    server.run("stdio")


async def main() -> None:
    """The call that sends waits for approval; the list of tools is in the log."""
    async with limpet.open("sqlite:///letters.db", agents=[writer]) as app:
        handle = await app.start(writer, "Say hello to Ann.", id="letter-1")
        async for event in handle.events():
            for request in await app.inbox(run=handle.id) if event.kind == "request.opened" else ():
                print("may it?", request.tool, request.args)
                await app.approve(request, by="ben", args={"name": "Ann", "text": "hello, dear"})
        print(await handle.result())
        print([message.text for message in await app.messages("letter-1.chat") if message.role == "tool"])
        for event in await app.log("letter-1"):
            if event.kind == "step.started":
                print(event.body["number"], event.body["tool"], event.body["effect"])


if __name__ == "__main__":
    serve() if sys.argv[1:] else asyncio.run(main())
