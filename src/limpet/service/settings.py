"""Settings of an app: its store, clock, worker and channels."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from limpet.clock import SECOND, Clock
from limpet.engine.definitions.agents import Agent
from limpet.engine.execution.handle import Port
from limpet.engine.execution.kit import Kit, ToolCaller
from limpet.engine.execution.user_code import UserCode
from limpet.engine.worker.duties import Duty
from limpet.engine.worker.worker import StoreClock, Timing, Worker, WorkerLoop
from limpet.ids import Ids
from limpet.service.notices import Channel, told_of
from limpet.stores import Store

if TYPE_CHECKING:
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

    def worker_loop(
        self,
        agents: Sequence[Agent[Any, Any]],
        worker: Worker,
        time: StoreClock,
        port: Port,
        duties: Sequence[Duty] = (),
    ) -> WorkerLoop:
        """Create a worker loop for some agents and duties."""
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
        )
        return WorkerLoop(kit, agents, worker, time, self.timing, duties)
