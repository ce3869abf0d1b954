"""The MCP door: what can be asked of a store, for agents of others and the models that drive them."""

from importlib.util import find_spec

from limpet.errors import ExtraMissing

if find_spec("mcp") is None:
    raise ExtraMissing(extra="mcp")

from limpet.mcp.server import over_http, over_pipes, server_of

__all__ = ["over_http", "over_pipes", "server_of"]
