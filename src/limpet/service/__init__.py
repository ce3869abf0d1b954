"""The service layer: commands and queries that every interface (Python, command line, HTTP, MCP) is built on."""
