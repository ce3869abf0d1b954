"""Workers of the scenarios as processes, and the faults that they and the Temporal server must survive."""

import random  # noqa: TID251 - when each fault happens
import sys
from contextlib import AbstractContextManager
from threading import Event, Thread
from typing import Self

from limpet.engines.scenarios import WorkerFleet
from tests.servers.temporal import TemporalServer

__all__ = ["LEASE", "Faults", "worker_command"]

LEASE = "2s"


def worker_command(store: str, engine: str | None, agents: str = "limpet.engines.scenarios.agents:agents") -> list[str]:
    """Return the command of a worker."""
    words = [sys.executable, "-m", "limpet", "worker", agents, "--url", store, "--lease", LEASE]
    return words if engine is None else [*words, "--engine", engine]


class Faults(AbstractContextManager["Faults"]):
    """Kills the server with its state on disk, and starts it again; and kills workers. Until it is left."""

    def __init__(
        self, server: TemporalServer | None, fleet: WorkerFleet | None = None, *, size: int = 0, seed: int = 7
    ) -> None:
        self._server, self._fleet, self._size = server, fleet, size
        self._chance, self._stop = random.Random(seed), Event()
        self.outages = self.kills = 0
        self._threads = [Thread(target=self._kill_workers)] if fleet else []
        self._threads += [Thread(target=self._restart_server)] if server else []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _restart_server(self) -> None:
        assert self._server is not None
        while not self._stop.wait(self._chance.uniform(5, 10)):
            self._server.kill()
            self._stop.wait(self._chance.uniform(0, 2))
            self._server.start()
            self.outages += 1

    def _kill_workers(self) -> None:
        assert self._fleet is not None
        while not self._stop.wait(self._chance.uniform(2, 6)):
            self._fleet.kill(self._chance.randrange(self._size))
            self.kills += 1
