"""Handle of a run, wherever it is driven. It uses a small port, which the service implements."""

from collections.abc import AsyncIterator
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from limpet.clock import Duration
from limpet.engine.definitions.agents import Agent
from limpet.engine.definitions.upgrades import Versions
from limpet.engine.execution.local_runs import LocalRuns
from limpet.engine.execution.principal import Principal
from limpet.engine.execution.views import EventView, RunInfo
from limpet.errors import WrongState

__all__ = ["Handle", "Port", "ReadOnlyPort", "Result"]

Out = TypeVar("Out")


class Result(NamedTuple):
    """Result of a run as JSON, with the versions of the user's types that it was written with."""

    value: Any
    versions: Versions


class Port(Protocol):
    """Operations that a handle needs."""

    @property
    def local_runs(self) -> LocalRuns:
        """The runs that this process has handles on."""

    async def result(self, run: str, timeout: Duration | None, *, quiet: bool = False) -> Result:
        """Return the result of a run. Raises if it did not complete."""

    async def info(self, run: str) -> RunInfo:
        """Return the summary of a run."""

    def events(self, run: str, after: int, *, follow: bool) -> AsyncIterator[EventView]:
        """Return the events of a run."""

    def replies(self, run: str, after: int) -> AsyncIterator[str]:
        """Return the text of a run's model replies in pieces."""

    async def cancel(self, run: str, /, *, reason: str, by: Principal | str | None = None) -> None:
        """Cancel a run."""


class ReadOnlyPort:
    """Port for code of forks and dry runs: it reads any run, and cancels only runs that this one started."""

    def __init__(self, port: Port, run: str) -> None:
        self._port, self._run = port, run

    @property
    def local_runs(self) -> LocalRuns:
        """The runs that this process has handles on."""
        return self._port.local_runs

    async def result(self, run: str, timeout: Duration | None, *, quiet: bool = False) -> Result:
        """Return the result of a run."""
        return await self._port.result(run, timeout, quiet=quiet)

    async def info(self, run: str) -> RunInfo:
        """Return the summary of a run."""
        return await self._port.info(run)

    def events(self, run: str, after: int, *, follow: bool) -> AsyncIterator[EventView]:
        """Return the events of a run."""
        return self._port.events(run, after, follow=follow)

    def replies(self, run: str, after: int) -> AsyncIterator[str]:
        """Return the text of a run's model replies in pieces."""
        return self._port.replies(run, after)

    async def cancel(self, run: str, /, *, reason: str, by: Principal | str | None = None) -> None:
        """Cancel a run that this one started. Raises WrongState for others."""
        if not run.startswith(f"{self._run}."):
            fix = f"Run `limpet cancel {run}`, or call app.cancel."
            raise WrongState(
                run=run, status="not a run that this fork or replay started", wanted="cancelling it", fix=fix
            )
        await self._port.cancel(run, reason=reason, by=by)


class Handle(Generic[Out]):
    """A run that was started, in any process. Get one from `app.start` or `run.start`."""

    def __init__(
        self, port: Port, id: str, agent: Agent[Any, Out] | None = None, sender: Principal | None = None
    ) -> None:
        self.id = id
        self._port, self._agent, self._sender = port, agent, sender
        self._local = port.local_runs.of(id)

    def __repr__(self) -> str:
        return f"<handle of run {self.id}>"

    async def result(self, *, timeout: Duration | None = None, quiet: bool = False) -> Out:
        """Wait for the run to end, and return its result.

        Raises RunFailed or RunCancelled if it did not complete, and NotDone after `timeout`. None waits indefinitely.
        If the run failed in this process, `__cause__` of RunFailed is the exception that failed it. If the run waits
        for a person, an operator or a worker, a line on stderr says so, once for each reason, unless `quiet` is true.
        """
        found = await self._port.result(self.id, timeout, quiet=quiet)
        loaded: Out = found.value if self._agent is None else self._agent.output_codec.load(*found)
        return loaded

    async def info(self) -> RunInfo:
        """Return the current status and summary of the run."""
        return await self._port.info(self.id)

    def events(self, *, after: int = 0, follow: bool = True) -> AsyncIterator[EventView]:
        """Yield the events of the run after sequence `after`, until the run has ended.

        Without `follow`, stop at the current end of the log.
        """
        return self._port.events(self.id, after, follow=follow)

    def tokens(self, *, after: int = 0) -> AsyncIterator[str]:
        """Yield the text of the run's model replies in pieces, until the run has ended.

        `after` is the sequence of an event to continue after, for a client that was disconnected.
        """
        return self._port.replies(self.id, after)

    async def cancel(self, reason: str, *, by: Principal | str | None = None) -> None:
        """Cancel the run: running effects finish, and completed effects are undone. `by` is recorded."""
        await self._port.cancel(self.id, reason=reason, by=by or self._sender)
