"""The engine seam: how another system, such as Temporal, has the runs of a store driven.

The log is the truth; an engine only guarantees that some worker drives each run that can continue. It needs no
guarantee of its own for that: a run may be driven too often, and a run that it forgets is found by the sweep.
"""

from collections.abc import AsyncIterator
from typing import Protocol, runtime_checkable

from limpet.engine.worker.run_host import RunHost
from limpet.stores import ReadyRun

__all__ = ["Engine"]


@runtime_checkable
class Engine(Protocol):
    """Has runs driven: some worker calls `RunHost.drive` for each run that can continue."""

    name: str
    """Name of the engine, which is recorded with its runs."""

    async def open(self, store: str) -> None:
        """Prepare to have the runs of a store driven; `store` is its identity. The other system may be unavailable."""

    async def wake(self, run: ReadyRun, *, is_missed: bool = False) -> None:
        """Have a worker drive this run soon; return when the other system has stored that.

        This may be called more than once for the same position of the log, and for a run that turns out to have nothing
        to do. It may raise any exception; the sweep calls it again. With `is_missed`, the sweep has found the run: it
        has been ready for a while, whatever the engine knows of it.
        """

    async def serve(self, host: RunHost) -> None:
        """Call `host.drive(run)` in this process for runs that were woken, until cancelled.

        After `Drive`, drive the run again when its delay has passed, or when it is woken with a later sequence. After
        `NotNow`, ask again after its delay, here or in another process. If this process dies, another one must ask
        within seconds. When cancelled, wait for drives under way, which the host drains at the same time.
        """

    def unfinished(self) -> AsyncIterator[str]:
        """Yield the ids of all runs that the engine still has driven."""

    async def close(self) -> None:
        """Disconnect."""
