"""Worker processes that are started again when they die."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock, Thread
from typing import IO, Protocol, Self

__all__ = ["FleetProcess", "Spawn", "WorkerFleet", "spawn_process"]


class FleetProcess(Protocol):
    """A running process."""

    def wait(self) -> int:
        """Wait for its end, and return its exit code, which is negative if a signal ended it."""

    def send_signal(self, sig: int, /) -> None:
        """Send a signal, if it runs."""


Spawn = Callable[[Sequence[str], Mapping[str, str], IO[bytes]], FleetProcess]
"""Starts a process from its command, its environment and the file for its output."""


def spawn_process(command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> FleetProcess:
    """Start a process as usual."""
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603


class WorkerFleet:
    """A number of processes with the same command, each of which is restarted when it was killed; use as `with`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        size: int,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        spawn: Spawn = spawn_process,
    ) -> None:
        """`folder` is for the logs of the processes, and `environment` is added to that of this process."""
        self._command, self._folder, self._spawn = tuple(command), folder, spawn
        self._environment = {**os.environ, **(environment or {})}
        self._processes: list[FleetProcess | None] = [None] * size
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
            if process is not None:
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

    def _start(self, place: int) -> FleetProcess | None:
        """Start a process; or return None if the fleet stops."""
        with self._lock, self._log(place).open("ab") as log:
            if self._is_stopping:
                return None
            process = self._spawn(self._command, self._environment, log)
            self._processes[place] = process
            return process

    def _log(self, place: int) -> Path:
        return self._folder / f"worker-{place}.log"
