"""A real MCP server that sends letters, over pipes or over HTTP at a port that it prints.

python -m tests.servers.mcp_server LETTERS [http]
"""

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

__all__ = ["desk"]


def desk(letters: Path) -> MCPServer:
    """Return the server; each sent letter is a line of a file, with its idempotency key."""
    server = MCPServer("desk")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def lookup(name: str) -> str:
        """Look up where a person lives."""
        return f"{name} lives at 7 Harbour Road"

    @server.tool()
    def send(name: str, text: str, ctx: Context[Any, Any]) -> dict[str, Any]:
        """Send a letter."""
        meta: Any = ctx.request_context.meta or {}
        with letters.open("a") as file:
            file.write(f"{name}: {text} {meta.get('limpet/idempotency_key', '')}\n")
        return {"sent": True, "to": name}

    @server.tool()
    def deliver(name: str, process: int, ctx: Context[Any, Any]) -> str:
        """Send a letter; the process dies after the first one, before it replies."""
        meta: Any = ctx.request_context.meta or {}
        is_first = not letters.stat().st_size
        with letters.open("a") as file:
            file.write(f"{name} {meta.get('limpet/idempotency_key', '')}\n")
        if is_first:
            os.kill(process, signal.SIGKILL)
        return "delivered"

    @server.tool(name="odd.name")
    def odd(how: str) -> str:
        """Fail in some way."""
        if how == "die":
            os._exit(3)
        raise ToolError(f"it failed: {how}")

    return server


def main() -> None:
    """Serve."""
    server = desk(Path(sys.argv[1]))
    if len(sys.argv) == 2:
        server.run("stdio")
        return
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        print(listening.getsockname()[1], flush=True)
        app = server.streamable_http_app()
        uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])


if __name__ == "__main__":
    main()
