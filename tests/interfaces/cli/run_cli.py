"""Helpers for tests of the command line: a small store, the command in this process or another, and a terminal."""

import fcntl
import json
import os
import pty
import re
import select
import struct
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from limpet import RunFailed, sync
from limpet.cli.commands import command
from tests.interfaces.cli.shop import both, letter, order
from tests.servers import preloaded
from tests.servers.preloaded import Program

ROOT = Path(__file__).parents[3]
LIMPET = preloaded.LIMPET
COMMAND: Any = get_command(command)
# Seconds after which a silent terminal is broken.
PATIENCE = 30


def fill(folder: Path) -> str:
    """Make a store with a failed run, one that waits for a person, and one whose agent no worker serves."""
    url = f"sqlite:///{folder}/limpet.db"
    with sync.open(url, agents=both) as app:
        app.start(letter, "ann", id="letter-1", user="ann", labels={"team": "a"})
        with pytest.raises(RunFailed):
            app.run(order, "dust", id="order-1")
        until_parked(app)
    with sync.open(url, agents=both, worker=False) as app:
        app.start(order, "book", id="order-2")
    return url


def until_parked(app: sync.App) -> None:
    """Wait until the letter waits for a person and no process holds it."""
    while not app.get("letter-1").info().waits_for:
        threading.Event().wait(0.01)


def limpet(*words: str, input: str | None = None, **env: str) -> Result:
    """Run the command in this process. The patch avoids rebuilding all commands for each call."""
    with patch("typer.testing._get_command", lambda _: COMMAND):
        return CliRunner().invoke(command, words, env=env, input=input, prog_name="limpet")


def limpet_json(*words: str, **more: Any) -> Any:
    """Run a command and return the JSON that it prints; of a list, its items."""
    done = limpet(*words, "--json", **more)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    return found["items"] if isinstance(found, dict) and found.keys() == {"items", "next"} else found


def lines(text: str) -> list[list[str]]:
    """Return the cells of a table."""
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines() if line.strip()]


class Terminal:
    """A process on its own terminal."""

    def __init__(self, process: Program, file: int) -> None:
        self._process, self._file = process, file
        self.seen = ""

    def until(self, text: str) -> str:
        """Read and return everything up to a text that was not shown before."""
        while text not in self.seen:
            assert self._read(), f"the process ended without {text!r}: {self.seen}"
        before, found, self.seen = self.seen.partition(text)
        return before + found

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._file, text.encode())

    def end(self, *, impatient: str = "") -> tuple[str, int]:
        """Read to the end, and return the output and the exit code. `impatient` is a key pressed again after each
        second.
        """
        while self._read(impatient):
            pass
        return self.seen, self._process.wait()

    def _read(self, impatient: str = "") -> bool:
        ready, _, _ = select.select([self._file], [], [], 1 if impatient else PATIENCE)
        if impatient and not ready:
            self.type(impatient)
            return self._read()
        assert ready, f"no more output: {self.seen}"
        try:
            data = os.read(self._file, 65536)
        except OSError:  # the other side is closed
            return False
        self.seen += data.decode().replace("\r\n", "\n")
        return bool(data)


@contextmanager
def terminal(*words: str, columns: int = 80, **env: str) -> Iterator[Terminal]:
    """Run a process on a terminal with this many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    around = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    with Program(
        words, streams=(theirs,) * 3, cwd=ROOT, env={**around, "TERM": "xterm", **env}, own_terminal=True
    ) as process:
        os.close(theirs)
        try:
            yield Terminal(process, ours)
        finally:
            process.kill()
            os.close(ours)
