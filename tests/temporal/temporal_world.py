"""A Temporal server, a store and the processes of a test, and what it can see of them."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus

import limpet
from limpet.clock import SystemClock
from limpet.service.app import App
from tests.servers.preloaded import LIMPET, ROOT, PipedProgram
from tests.servers.temporal import TemporalServer
from tests.temporal.agents import agents
from tests.temporal.ledger import FOLDER, Ledger

__all__ = ["Execution", "TemporalWorld", "WorkerProcess"]

# Seconds after which a test fails that waits for something.
PATIENCE = 60
GLANCE = 20_000
# What worker processes import before they are forked.
ALSO = ("limpet.temporal", "limpet.stores.postgres", "tests.temporal.agents", "limpet.engine.worker.engine_loop")


class Execution:
    """One execution of a workflow, with its history."""

    def __init__(self, found: WorkflowExecution, events: Sequence[HistoryEvent]) -> None:
        self.found, self.events = found, events
        self.status = found.status

    def __repr__(self) -> str:
        return f"<{self.found.id} {self.status and self.status.name} {len(self.events)} events>"


class WorkerProcess:
    """A `limpet worker --engine temporal://…`; its log is read as it is printed."""

    def __init__(self, process: PipedProgram) -> None:
        self._process = process
        self.pid = process.pid
        self.log: list[str] = []
        self._reading = Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        self.log.extend(iter(self._process.stderr.readline, ""))

    def send(self, number: int) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it as a crash would, and wait for its end."""
        self._process.kill()
        self._process.wait()
        self._reading.join()

    def end(self) -> int:
        """Wait for its end, and return its exit code."""
        code = self._process.wait(PATIENCE)
        self._reading.join()
        return code


class TemporalWorld:
    """The parts of one test."""

    def __init__(self, server: TemporalServer, store: str, folder: Path) -> None:
        self.server, self.store, self.ledger = server, store, Ledger(folder)
        self.clock = SystemClock()

    def engine(self, heartbeat: str = "1s") -> str:
        """Return the address of the engine."""
        return self.server.url(heartbeat)

    @asynccontextmanager
    async def app(
        self, served: Sequence[Any] = agents, *, lease: str = "2s", linger: int | None = None, engine: Any = None
    ) -> AsyncIterator[App]:
        """Open an app with a worker in this process."""
        found = limpet.open(
            self.store, engine=engine or self.engine(), agents=served, worker=limpet.Worker(lease=lease)
        )
        if linger is not None:
            found._settings.linger = linger
        async with found as opened:
            yield opened

    def sender(self) -> App:
        """Return an app without a worker, that tells Temporal."""
        return limpet.open(self.store, engine=self.engine(), agents=agents, worker=False)

    def outsider(self) -> App:
        """Return an app without a worker, that does not know Temporal."""
        return limpet.open(self.store, agents=agents, worker=False)

    @contextmanager
    def worker(
        self,
        target: str = "tests.temporal.agents:agents",
        *more: str,
        lease: str = "2s",
        heartbeat: str = "1s",
        ready: bool = True,
    ) -> Iterator[WorkerProcess]:
        """Run a worker process until the end of the block."""
        words = [LIMPET, "worker", target, "--engine", self.engine(heartbeat), "--url", self.store, "--lease", lease]
        env = {**os.environ, FOLDER: str(self.ledger.folder)}
        with PipedProgram([*words, *more], cwd=ROOT, env=env, also=ALSO) as process:
            found = WorkerProcess(process)
            try:
                if ready:
                    self.wait_until(lambda: any("serving" in line for line in found.log))
                yield found
            finally:
                found.send(signal.SIGCONT)
                found.kill()
                print("".join(found.log))

    def wait_until(self, is_so: Callable[[], object]) -> None:
        """Block until something is so."""
        limit = self.clock.ticks() + PATIENCE * 10**6
        while not is_so():
            assert self.clock.ticks() < limit, "waited in vain"
            signal.sigtimedwait([], GLANCE / 10**6)

    async def until(self, is_so: Callable[[], object | Awaitable[object]], *, patience: float = PATIENCE) -> float:
        """Wait until something is so, and return the seconds that it took."""
        began = self.clock.ticks()
        async with asyncio.timeout(patience):
            while True:
                found = is_so()
                if await found if isinstance(found, Awaitable) else found:
                    return (self.clock.ticks() - began) / 10**6
                await self.clock.sleep(GLANCE)

    async def until_parked(self, app: App, run: str) -> None:
        """Wait until a run waits and no worker holds it."""

        async def is_parked() -> bool:
            row = await app.store.get(run)
            return row.worker is None and row.status == "waiting"

        await self.until(is_parked)

    async def recorded(self, line: str) -> None:
        """Wait for an effect."""
        await self.until(lambda: any(each.startswith(line) for each in self.ledger.lines()))

    async def client(self) -> Client:
        """Return a client of Temporal's own."""
        return await Client.connect(self.server.host)

    async def executions(self, run: str) -> list[Execution]:
        """Return all executions of a run's workflow, oldest first, as Temporal lists them."""
        client = await self.client()
        found = [each async for each in client.list_workflows(f"WorkflowId = '{run}'")]
        made = []
        for each in sorted(found, key=lambda one: one.start_time):
            history = await client.get_workflow_handle(run, run_id=each.run_id).fetch_history()
            made.append(Execution(each, history.events))
        return made

    async def until_closed(self, run: str) -> list[Execution]:
        """Wait until no workflow of a run is open, and return its executions."""
        found: list[Execution] = []

        async def is_closed() -> bool:
            found[:] = await self.executions(run)
            return bool(found) and all(each.status is not WorkflowExecutionStatus.RUNNING for each in found)

        await self.until(is_closed)
        return found

    async def attempts(self, run: str) -> int:
        """Return how often the drive that is under way was delivered; 0 if there is none."""
        found = await (await self.client()).get_workflow_handle(run).describe()
        pending = found.raw_description.pending_activities
        return pending[0].attempt if pending else 0
