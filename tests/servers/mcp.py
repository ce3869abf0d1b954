"""A real MCP server for a test, over pipes or over HTTP."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["SERVER", "serving"]

SERVER = (sys.executable, "-m", "tests.servers.mcp_server")


@contextmanager
def serving(how: str, letters: Path) -> Iterator[Any]:
    """Start a server and return its address for an agent; sent letters are written to a file."""
    letters.touch()
    if how == "pipes":
        yield [*SERVER, str(letters)]
        return
    with subprocess.Popen([*SERVER, str(letters), "http"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp"
        process.terminate()
