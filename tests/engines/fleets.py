"""Workers of the scenarios as processes, and the faults that they and the Temporal server must survive."""

import random  # noqa: TID251 - when each fault happens
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Event, Thread
from typing import IO, Self

from limpet.engines.scenarios import WorkerFleet
from tests.servers.preloaded import LIMPET, ROOT, Program
from tests.servers.temporal import TemporalServer

__all__ = ["Faults", "fork_worker", "worker_command"]

LEASE = "2s"
# Workers have imported these modules before they are forked.
ALSO = (
    *("limpet.engine.worker.engine_loop", "limpet.engines.scenarios.agents", "limpet.stores.postgres"),
    *("limpet.temporal", "tests.engines.load"),
)


def worker_command(store: str, engine: str | None, agents: str = "limpet.engines.scenarios.agents:agents") -> list[str]:
    """Return the command of a worker."""
    words = [LIMPET, "worker", agents, "--url", store, "--lease", LEASE]
    return words if engine is None else [*words, "--engine", engine]


def fork_worker(command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> Program:
    """Start a worker process, in less time than a new interpreter needs."""
    with Path("/dev/null").open("rb") as nothing:
        streams = (nothing.fileno(), log.fileno(), log.fileno())
        return Program(command, streams=streams, env=environment, cwd=ROOT, also=ALSO)


class Faults(AbstractContextManager["Faults"]):
    """Kills the server with its state on disk, and starts it again; and kills workers. Until it is left."""

    def __init__(
        self, server: TemporalServer, fleet: WorkerFleet | None = None, *, size: int = 0, seed: int = 7
    ) -> None:
        """`fleet` has `size` workers, which are killed; None for faults of the server only."""
        self._server, self._fleet, self._size = server, fleet, size
        self._chance, self._stop = random.Random(seed), Event()
        self.outages = 0
        self._threads = [Thread(target=each) for each in (self._restart_server, self._kill_workers)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _restart_server(self) -> None:
        while not self._stop.wait(self._chance.uniform(8, 16)):
            self._server.kill()
            self._stop.wait(self._chance.uniform(0, 2))
            self._server.start()
            self.outages += 1

    def _kill_workers(self) -> None:
        while self._fleet is not None and not self._stop.wait(self._chance.uniform(3, 8)):
            self._fleet.kill(self._chance.randrange(self._size))
