"""What the tests of the command line stand on: a small store, the command in this process or in another, a terminal."""

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
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
from limpet.cli import command
from tests.interfaces.cli.shop import both, letter, order

ROOT = Path(__file__).parents[3]
LIMPET = str(Path(sys.executable).with_name("limpet"))
COMMAND: Any = get_command(command)
# Makes the terminal that a process has its own, so that Ctrl-C comes to it, and becomes the command.
TAKE_IT = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGINT, signal.default_int_handler); os.execv(sys.argv[1], sys.argv[1:])"
)
# Seconds after which a terminal that says nothing more is broken.
PATIENCE = 30


def fill(folder: Path) -> str:
    """A store with a run that failed, one that waits for a person, and one that nobody serves."""
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
    """Until the letter waits for a person, in no process."""
    while not app.get("letter-1").info().waits_for:
        threading.Event().wait(0.01)


def limpet(*words: str, input: str | None = None, **env: str) -> Result:
    """The command in this process; typer would make all commands anew each time."""
    with patch("typer.testing._get_command", lambda _: COMMAND):
        return CliRunner().invoke(command, words, env=env, input=input, prog_name="limpet")


def told(*words: str, **more: Any) -> Any:
    """The JSON that a command prints."""
    done = limpet(*words, "--json", **more)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def lines(text: str) -> list[list[str]]:
    """The cells of a table."""
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines() if line.strip()]


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, process: subprocess.Popen[bytes], file: int) -> None:
        self._process, self._file = process, file
        self.seen = ""

    def until(self, text: str) -> str:
        """Everything up to some text that it has not shown before."""
        while text not in self.seen:
            assert self._read(), f"it ended without {text!r}: {self.seen}"
        before, found, self.seen = self.seen.partition(text)
        return before + found

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._file, text.encode())

    def end(self, *, impatient: str = "") -> tuple[str, int]:
        """What it shows until it ends, and how it ends; somebody impatient presses a key again."""
        while self._read(impatient):
            pass
        return self.seen, self._process.wait()

    def _read(self, impatient: str = "") -> bool:
        ready, _, _ = select.select([self._file], [], [], 1 if impatient else PATIENCE)
        if impatient and not ready:
            self.type(impatient)
            return self._read()
        assert ready, f"nothing comes any more: {self.seen}"
        try:
            data = os.read(self._file, 65536)
        except OSError:  # the other side is closed
            return False
        self.seen += data.decode().replace("\r\n", "\n")
        return bool(data)


@contextmanager
def terminal(*words: str, columns: int = 80, **env: str) -> Iterator[Terminal]:
    """A process on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    around = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    with subprocess.Popen(
        [sys.executable, "-c", TAKE_IT, *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        cwd=ROOT,
        env={**around, "TERM": "xterm", **env},
    ) as process:
        os.close(theirs)
        try:
            yield Terminal(process, ours)
        finally:
            process.kill()
            os.close(ours)
