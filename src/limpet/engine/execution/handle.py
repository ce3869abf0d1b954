"""A handle on a run, wherever it is driven: over a small port, which the service implements."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from limpet.clock import Duration
from limpet.engine.definitions.agents import Agent
from limpet.engine.definitions.upgrades import Versions
from limpet.engine.execution.views import EventView, RunInfo
from limpet.errors import WrongState

__all__ = ["Handle", "Port", "ReadOnlyPort", "Result"]

Out = TypeVar("Out")


class Result(NamedTuple):
    """What a run returned, as JSON, and the versions of the user's types that it was written with."""

    value: Any
    versions: Versions


class Port(Protocol):
    """What a handle needs."""

    async def result(self, run: str, timeout: Duration | None) -> Result:
        """What a run returned; raises how it ended otherwise."""

    async def info(self, run: str) -> RunInfo:
        """A run as lists show it."""

    def events(self, run: str, after: int, *, follow: bool) -> AsyncIterator[EventView]:
        """A run's events."""

    async def value(self, payload: Mapping[str, Any]) -> Any:
        """What is in a payload of an event."""

    async def cancel(self, run: str, /, *, reason: str) -> None:
        """Stop a run."""


class ReadOnlyPort:
    """A port for code that only tries: it looks, and stops nothing that is not its own."""

    def __init__(self, port: Port, run: str) -> None:
        self._port, self._run = port, run

    async def result(self, run: str, timeout: Duration | None) -> Result:
        """What a run returned."""
        return await self._port.result(run, timeout)

    async def info(self, run: str) -> RunInfo:
        """A run as lists show it."""
        return await self._port.info(run)

    def events(self, run: str, after: int, *, follow: bool) -> AsyncIterator[EventView]:
        """A run's events."""
        return self._port.events(run, after, follow=follow)

    async def value(self, payload: Mapping[str, Any]) -> Any:
        """What is in a payload of an event."""
        return await self._port.value(payload)

    async def cancel(self, run: str, /, *, reason: str) -> None:
        """Stop a run, if it was named after this one."""
        if not run.startswith(f"{self._run}."):
            raise WrongState(run=run, status="not this run's own", wanted="a cancel by one that only tries")
        await self._port.cancel(run, reason=reason)


class Handle(Generic[Out]):
    """A run that was started."""

    def __init__(self, port: Port, id: str, agent: Agent[Any, Out] | None = None) -> None:
        self.id = id
        self._port, self._agent = port, agent

    def __repr__(self) -> str:
        return f"<handle of run {self.id}>"

    async def result(self, *, timeout: Duration | None = None) -> Out:
        """What it returned, once it has; raises RunFailed, RunCancelled, or NotDone after the time-out."""
        found = await self._port.result(self.id, timeout)
        loaded: Out = found.value if self._agent is None else self._agent.output_codec.load(*found)
        return loaded

    async def info(self) -> RunInfo:
        """Where it is now."""
        return await self._port.info(self.id)

    def events(self, *, after: int = 0, follow: bool = True) -> AsyncIterator[EventView]:
        """What happens, event by event, until it has ended; without `follow`, what has happened so far."""
        return self._port.events(self.id, after, follow=follow)

    async def tokens(self, *, after: int = 0) -> AsyncIterator[str]:
        """What its model says, piece by piece, until the run has ended; `after` an event, for whoever was cut off."""
        said: dict[int, str] = {}
        async for event in self._port.events(self.id, after, follow=True):
            number, body = event.body.get("number", 0), event.body
            if event.kind == "step.started" and body.get("kind") == "model":
                said[number] = ""
            elif event.kind == "step.progressed" and body.get("partial") is not None:
                said.setdefault(number, "")  # of a loop of one's own: its tool says what there is so far
            payload = body.get("partial" if event.kind == "step.progressed" else "output")
            if event.kind not in ("step.progressed", "step.completed") or number not in said or payload is None:
                continue
            found = await self._port.value(payload)
            text = found.get("text", "") if isinstance(found, dict) else found
            if isinstance(text, str) and text.startswith(said[number]) and text != said[number]:
                yield text[len(said[number]) :]
                said[number] = text

    async def cancel(self, reason: str) -> None:
        """Stop it: effects under way finish, what can be undone is."""
        await self._port.cancel(self.id, reason=reason)
