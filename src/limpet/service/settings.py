"""What an app stands on, and how it works."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from limpet.clock import SECOND, Clock
from limpet.engine.definitions.agents import Agent
from limpet.engine.execution.execution import Kit, ToolCaller
from limpet.engine.execution.handle import Port
from limpet.engine.execution.user_code import UserCode
from limpet.engine.execution.views import Request
from limpet.engine.worker.worker import StoreClock, Timing, Worker, WorkerLoop
from limpet.ids import Ids
from limpet.service.webhooks import Webhook
from limpet.stores import Store

__all__ = ["Channel", "Settings"]

Channel = Webhook | Callable[[Request], object]
"""Where people are told of requests: an address, or a function of the user's own, async or not."""


class Settings:
    """The parts of an app; the defaults are those of production."""

    def __init__(self, store: Store, clock: Clock, ids: Ids) -> None:
        self.store, self.clock, self.ids = store, clock, ids
        self.url = ""
        """Where the store is, for whoever is told that there is none."""
        self.creates_store = True
        """Whether a store is made where none is."""
        self.worker: Worker | None = Worker()
        self.timing = Timing()
        self.perform: ToolCaller = UserCode()
        self.linger = SECOND
        """How long a run that only waits stays in memory."""
        self.hush = SECOND // 10
        """How long a run may be busy before commands to it are looked for."""
        self.listen = SECOND // 50
        """How often changes of other processes are looked for, at most."""
        self.backoffs = True
        """Whether the time between attempts is waited for."""
        self.people: Mapping[str, Sequence[str]] | None = None
        """Who is in which group; without it, whoever decides is believed."""
        self.channels: Mapping[str, Channel] = {}
        """Where people are told of requests, by name."""
        self.interface = "python"
        """Through what commands come."""

    def worker_loop(
        self, agents: Sequence[Agent[Any, Any]], worker: Worker, time: StoreClock, port: Port
    ) -> WorkerLoop:
        """A worker for some agents."""
        kit = Kit(
            store=self.store,
            clock=self.clock,
            ids=self.ids,
            worker=f"w-{self.ids.new()}",
            perform=self.perform,
            now=time.now,
            linger=self.linger,
            silent_after=self.hush,
            backoffs=self.backoffs,
            port=port,
            channels=tuple(self.channels),
            parole=worker.parole,
        )
        return WorkerLoop(kit, agents, worker, time, self.timing)
