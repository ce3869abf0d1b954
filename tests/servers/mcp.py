"""A real MCP server for a test, over pipes or over HTTP.

The server takes a second to import, so that it is forked from a process that has imported it. Over pipes, an agent
starts its command by itself: a small program that hands its pipes over, and lives and ends like the server.
"""

import atexit
import json
import os
import select
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from threading import Thread
from typing import Any

from tests.servers import piped
from tests.servers.preloaded import ROOT, PipedProgram, Program

__all__ = ["command", "serving"]

SERVER = (sys.executable, "-m", "tests.servers.mcp_server")
ALSO = ("tests.servers.mcp_server",)


def command(letters: Path) -> list[str]:
    """Return the command of a server over pipes; sent letters are written to a file."""
    return [sys.executable, "-I", "-S", piped.__file__, _listening(), *SERVER, str(letters)]


@contextmanager
def serving(how: str, letters: Path) -> Iterator[Any]:
    """Start a server and return its address for an agent; sent letters are written to a file."""
    letters.touch()
    if how == "pipes":
        yield command(letters)
        return
    with PipedProgram([*SERVER, str(letters), "http"], cwd=ROOT, stderr=2, also=ALSO) as process:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp"
        process.kill()


@cache
def _listening() -> str:
    """Listen for programs that hand over their pipes, once in this process, and return the path of the socket."""
    folder = mkdtemp(prefix="limpet-pipes-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = f"{folder}/socket"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    Thread(target=_accept, args=(listener,), name="pipes", daemon=True).start()
    return path


def _accept(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        Thread(target=_run, args=(connection,), name="a program with pipes", daemon=True).start()


def _run(connection: socket.socket) -> None:
    """Run a program with the pipes of another; kill it when the other has ended, or send the other its exit code."""
    with connection:
        received, files, _, _ = socket.recv_fds(connection, 1 << 16, 3)
        words, cwd, env = json.loads(received)
        streams = (files[0], files[1], files[2])
        with Program(words, streams=streams, cwd=cwd, env=env, also=ALSO) as program:
            for file in files:
                os.close(file)
            ends: list[socket.socket | Program] = [connection, program]
            if connection in select.select(ends, [], [])[0]:
                program.kill()
            else:
                connection.sendall(b"%d" % program.wait())
