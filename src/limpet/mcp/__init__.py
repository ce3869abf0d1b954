"""The MCP interface: tools, resources, prompts and tasks over a store, for agents and their models."""

from importlib.util import find_spec

from limpet.errors import ExtraMissing

if find_spec("mcp") is None:
    raise ExtraMissing(extra="mcp")

from limpet.mcp.server import over_http, over_pipes, server_of

__all__ = ["over_http", "over_pipes", "server_of"]
