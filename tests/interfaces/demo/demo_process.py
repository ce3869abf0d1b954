"""The demo as a real process, with or without a terminal, and the processes that it leaves behind."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["DEMO", "Terminal", "env_of", "left_behind", "on_terminal", "plain"]

DEMO = (sys.executable, "-m", "limpet.demo")
# Makes stdin the controlling terminal of a process, so that it receives Ctrl-C.
CONTROLLING = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGINT, signal.default_int_handler); os.execv(sys.argv[1], sys.argv[1:])"
)
MARKER = "LIMPET_TEST_MARKER"


def env_of(folder: Path, **more: str) -> dict[str, str]:
    """Return an environment that marks every process of a test, with `limpet` on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    around = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    return {**around, MARKER: str(folder), "PATH": path, "TERM": "xterm-256color", **more}


def left_behind(folder: Path) -> list[str]:
    """Return the command lines of running processes with this marker."""
    found, marker = [], f"{MARKER}={folder}".encode()
    for each in Path("/proc").iterdir():
        try:
            if each.name.isdecimal() and marker in (each / "environ").read_bytes().split(b"\0"):
                found.append((each / "cmdline").read_text(encoding="utf-8").replace("\0", " "))
        except OSError:
            continue  # it has ended, or belongs to another user
    return found


def plain(text: str) -> str:
    """Return terminal output without control sequences; overwritten text stays."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r\n", "\n").replace("\r", "\n")


class Terminal:
    """A process on its own terminal."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process, self._master = process, master
        self.said = ""

    def until(self, words: str) -> str:
        """Read until these words appear, and return all output."""
        while words not in plain(self.said):
            read = self._read()
            assert read, f"the process ended without printing {words!r}:\n{self.said}"
        return plain(self.said)

    def rest(self) -> str:
        """Read until the process ends, and return all output."""
        while self._read():
            pass
        self.process.wait()
        return plain(self.said)

    def type(self, text: str) -> None:
        r"""Press keys; Ctrl-C is \x03."""
        os.write(self._master, text.encode())

    def _read(self) -> bytes:
        try:
            found = os.read(self._master, 65536)
        except OSError:
            return b""  # Linux reports a closed other end this way
        self.said += found.decode(errors="replace")
        return found


@contextmanager
def on_terminal(*words: str, cwd: Path, env: dict[str, str], columns: int = 80) -> Iterator[Terminal]:
    """Run a process whose controlling terminal has this width."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    on_it = [sys.executable, "-c", CONTROLLING, *words]
    with subprocess.Popen(
        on_it, cwd=cwd, env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    ) as process:
        os.close(slave)
        try:
            yield Terminal(process, master)
        finally:
            process.kill()
            os.close(master)
