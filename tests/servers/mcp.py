"""A real MCP server for a test: a command that is spoken to over pipes, or one that serves over HTTP meanwhile."""

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
    """A server, as it is named to an agent; what it sends is written to a file."""
    letters.touch()
    if how == "pipes":
        yield [*SERVER, str(letters)]
        return
    with subprocess.Popen([*SERVER, str(letters), "http"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp"
        process.terminate()
