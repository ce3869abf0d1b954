"""A real MCP server for a test, over pipes or over HTTP."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers.preloaded import ROOT, PipedProgram

__all__ = ["SERVER", "serving"]

SERVER = (sys.executable, "-m", "tests.servers.mcp_server")


@contextmanager
def serving(how: str, letters: Path) -> Iterator[Any]:
    """Start a server and return its address for an agent; sent letters are written to a file."""
    letters.touch()
    if how == "pipes":
        yield [*SERVER, str(letters)]
        return
    with PipedProgram(
        [*SERVER, str(letters), "http"], cwd=ROOT, stderr=2, also=("tests.servers.mcp_server",)
    ) as process:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp"
        process.kill()
