"""A real Temporal server that tests start, kill and start again. The program comes in a wheel."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

from tests.servers.postgres import free_port

__all__ = ["TemporalServer"]

PROGRAM = Path(sys.prefix) / "bin" / "temporal"
# Faster, and safe if only the process dies.
PRAGMAS = ("journal_mode=wal", "synchronous=normal")
# Pausing a workflow must be allowed first.
SETTINGS = ("frontend.WorkflowPauseEnabled=true",)
ATTRIBUTES = ("LimpetAgent=Keyword", "LimpetStatus=Keyword")


class TemporalServer:
    """A server with one namespace, whose state is in a file, as a context manager."""

    def __init__(self, folder: Path | None = None, *, port: int | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=".limpet-temporal-", dir=folder))
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def host(self) -> str:
        """Its host and port."""
        return f"127.0.0.1:{self.port}"

    def url(self, heartbeat: str = "10s") -> str:
        """Its address, as `limpet.open` takes it."""
        return f"temporal://{self.host}/default?heartbeat={heartbeat}"

    def start(self) -> None:
        """Start it, with the state that it has, and wait until it can be called."""
        words = ["server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(self.port)]
        words += ["--db-filename", str(self.folder / "temporal.db"), "--log-level", "never"]
        words += [word for each in PRAGMAS for word in ("--sqlite-pragma", each)]
        words += [word for each in SETTINGS for word in ("--dynamic-config-value", each)]
        words += [word for each in ATTRIBUTES for word in ("--search-attribute", each)]
        log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen([PROGRAM, *words], stdout=log, stderr=log, start_new_session=True)
        log.close()
        limit = time.monotonic() + 60
        while self._call("operator", "cluster", "health").returncode:
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < limit, "the server does not answer"

    def kill(self) -> None:
        """Kill it as a crash would."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def workflow(self, *words: str) -> str:
        """Run a command on workflows, such as `cancel -w ID`, and return what it prints."""
        done = self._call("workflow", *words)
        assert not done.returncode, done.stderr
        return done.stdout

    def _call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, *words, "--address", self.host], capture_output=True, text=True, check=False, timeout=60
        )
