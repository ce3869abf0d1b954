"""Settings of an app: its store, clock, worker and channels."""

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from limpet.clock import SECOND, Clock
from limpet.engine.definitions.agents import Agent
from limpet.engine.execution.handle import Port
from limpet.engine.execution.kit import Kit, ToolCaller
from limpet.engine.execution.user_code import UserCode
from limpet.engine.worker.duties import Duty
from limpet.engine.worker.run_host import RunHost
from limpet.engine.worker.worker import WorkerLoop
from limpet.engine.worker.worker_settings import StoreClock, Timing, Worker
from limpet.ids import Ids
from limpet.service.notices import Channel, told_of
from limpet.stores import Store

if TYPE_CHECKING:
    from limpet.engine.worker.engine import Engine
    from limpet.engine.worker.engine_loop import EngineLoop
    from limpet.service.decision_links import LinkMint

__all__ = ["Settings"]


class Settings:
    """The parts of an app. The defaults are those for production."""

    def __init__(self, store: Store, clock: Clock, ids: Ids) -> None:
        self.store, self.clock, self.ids = store, clock, ids
        self.url = ""
        """URL of the store, for the error message if it does not exist."""
        self.creates_store = True
        """Whether opening the app may create the store."""
        self.worker: Worker | None = Worker()
        self.timing = Timing()
        self.perform: ToolCaller = UserCode()
        self.linger = SECOND
        """How long a run that only waits stays in memory, in microseconds."""
        self.command_poll = SECOND // 10
        """How long a run may be busy before its worker polls for commands to it, in microseconds."""
        self.listen_interval = SECOND // 50
        """Minimum interval between two polls for changes by other processes, in microseconds."""
        self.backoffs = True
        """Whether to wait between attempts."""
        self.people: Mapping[str, Sequence[str]] | None = None
        """Members by group. None: any person may decide any request."""
        self.channels: Mapping[str, Channel] = {}
        """Channels that are notified of requests and runs, by name."""
        self.links: LinkMint | None = None
        """Makes links to decide requests, which notices then contain."""
        self.interface = "python"
        """Name of the interface through which commands arrive."""
        self.engine: Engine | None = None
        """The engine that has the app's runs driven; None for the workers of Limpet."""

    def worker_loop(
        self,
        agents: Sequence[Agent[Any, Any]],
        worker: Worker,
        time: StoreClock,
        port: Port,
        duties: Sequence[Duty] = (),
    ) -> WorkerLoop:
        """Create a worker loop for some agents and duties."""
        return WorkerLoop(self._host("", agents, worker, time, port), self.timing, duties)

    def engine_loop(
        self,
        engine: "Engine",
        agents: Sequence[Agent[Any, Any]],
        worker: Worker,
        time: StoreClock,
        port: Port,
        duties: Sequence[Duty] = (),
    ) -> "EngineLoop":
        """Create the loop of a worker of another engine. Few processes need it, so it is imported here."""
        loop = importlib.import_module("limpet.engine.worker.engine_loop").EngineLoop
        made: EngineLoop = loop(engine, self._host(engine.name, agents, worker, time, port), duties)
        return made

    def _host(
        self, engine: str, agents: Sequence[Agent[Any, Any]], worker: Worker, time: StoreClock, port: Port
    ) -> RunHost:
        kit = Kit(
            store=self.store,
            clock=self.clock,
            ids=self.ids,
            worker=f"w-{self.ids.new()}",
            perform=self.perform,
            now=time.now,
            linger=self.linger,
            silent_after=self.command_poll,
            backoffs=self.backoffs,
            port=port,
            channels={name: told_of(each) for name, each in self.channels.items()},
            parole=worker.parole,
            engine=engine,
        )
        return RunHost(kit, agents, worker, time, self.timing)
