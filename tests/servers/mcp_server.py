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
from mcp.server.caching import CacheHint
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

__all__ = ["desk"]


def desk(letters: Path) -> MCPServer:  # noqa: C901 - some tools
    """Return the server; each sent letter is a line of a file, with its idempotency key."""
    server = MCPServer("desk", cache_hints={"resources/read": CacheHint(ttl_ms=60_000)})

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

    @server.tool(annotations=ToolAnnotations(idempotent_hint=True))
    def stamp(name: str, ctx: Context[Any, Any], die: str = "") -> str:
        """Stamp a letter; the process dies after the first one if `die` is the path of a missing file."""
        meta: Any = ctx.request_context.meta or {}
        with letters.open("a") as file:
            file.write(f"{name} {meta.get('limpet/idempotency_key', '')}\n")
        if die and not Path(die).exists():
            Path(die).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return f"stamped {name}"

    @server.resource("prices://{city}", mime_type="application/json")
    def prices(city: str) -> dict[str, Any]:
        """Postage to a city."""
        with letters.open("a") as file:
            file.write(f"read {city}\n")
        return {"city": city, "cents": 110}

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
