"""Worker processes that are started again when they die."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock, Thread
from typing import Self

__all__ = ["WorkerFleet"]


class WorkerFleet:
    """A number of processes with the same command, each of which is restarted when it was killed; use as `with`."""

    def __init__(
        self, command: Sequence[str], *, size: int, folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._command, self._folder = tuple(command), folder
        self._environment = {**os.environ, **(environment or {})}
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * size
        self._lock = Lock()
        self._is_stopping = False
        self._threads: list[Thread] = []
        self.deaths = 0
        """Number of processes that were killed."""
        self.failure = ""
        """Why a process ended that was not killed; "" if none did."""

    def __enter__(self) -> Self:
        for place in range(len(self._processes)):
            self._threads.append(Thread(target=self._keep_alive, args=(place,), name=f"fleet-{place}", daemon=True))
            self._threads[-1].start()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._is_stopping = True
        for place in range(len(self._processes)):
            self.kill(place)
        for thread in self._threads:
            thread.join()

    def kill(self, place: int) -> None:
        """Kill a process with SIGKILL."""
        with self._lock:
            process = self._processes[place]
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGKILL)

    def _keep_alive(self, place: int) -> None:
        while (process := self._start(place)) is not None:
            code = process.wait()
            if self._is_stopping:
                return
            if code >= 0:
                self.failure = f"a worker ended with code {code}; see {self._log(place)}"
                return
            self.deaths += 1

    def _start(self, place: int) -> subprocess.Popen[bytes] | None:
        """Start a process; or return None if the fleet stops."""
        with self._lock, self._log(place).open("ab") as log:
            if self._is_stopping:
                return None
            process = subprocess.Popen(  # noqa: S603 - the command of the engine's author
                self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            self._processes[place] = process
            return process

    def _log(self, place: int) -> Path:
        return self._folder / f"worker-{place}.log"
