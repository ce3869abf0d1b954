"""The service layer: commands and queries that every interface (Python, command line, HTTP, MCP) is built on."""

from limpet.service.app import App

__all__ = ["App"]
