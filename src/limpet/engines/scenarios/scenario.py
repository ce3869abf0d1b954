"""The parts of the suite: scenarios, the harness that an engine's author provides, and the world of a scenario."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from msgspec import Struct

import limpet
from limpet.clock import SECOND, SystemClock
from limpet.engine.worker.engine import Engine
from limpet.engines.scenarios.agents import agents
from limpet.engines.scenarios.ledger import KILLS, LEDGER, Ledger, LedgerEntry
from limpet.engines.scenarios.worker_fleet import Spawn, WorkerFleet, spawn_process
from limpet.ids import RandomIds
from limpet.state import ENDED

__all__ = ["EngineHarness", "Scenario", "ScenarioWorld", "scenario", "scenarios"]

LOOK = SECOND // 50
# How many workers die for each run.
DEATHS = {"none": 0, "first step": 2, "every step": 1000}


@dataclass(kw_only=True)
class EngineHarness:
    """Provided by an engine's author: a store, the engine, and its workers. Use as `with`.

    The workers are processes, which it keeps running until it is left; or one worker, of an app in this process. Such a
    worker is not killed, and scenarios that need that are left out: `scenarios(processes=False)`.
    """

    store: str
    """URL of the store, which may contain the runs of other scenarios."""
    ledger: Path
    """An empty folder, outside the store, in which tools record their effects, and workers their logs."""
    engine: str | Engine | None = None
    """The engine of clients: an address, or an object. None is the built-in worker."""
    worker: Sequence[str] = ()
    """Command that starts a worker of `limpet.engines.scenarios.agents:agents` with this store and engine."""
    workers: int = 2
    """Number of worker processes."""
    kills: Literal["none", "first step", "every step"] = "none"
    """Whether worker processes die before and after the first effect of each run, or each effect."""
    patience: float = 300.0
    """Seconds after which a scenario that has not ended fails."""
    spawn: Spawn = spawn_process
    """Starts a worker process."""
    app: limpet.App | None = None
    """An open app with a worker of the same agents, if there are no worker processes."""

    def __post_init__(self) -> None:
        environment = {LEDGER: str(self.ledger), KILLS: str(DEATHS[self.kills])}
        size = self.workers if self.worker else 0
        self.fleet = WorkerFleet(self.worker, size=size, folder=self.ledger, environment=environment, spawn=self.spawn)
        """The worker processes; none if the worker is one of this process."""

    def __enter__(self) -> Self:
        self._before = os.environ.get(LEDGER)
        os.environ[LEDGER] = str(self.ledger)
        self.fleet.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.fleet.__exit__(*exc)
        del os.environ[LEDGER]
        if self._before is not None:
            os.environ[LEDGER] = self._before


class Scenario(Struct, frozen=True):
    """One scenario that every engine must pass."""

    name: str
    summary: str
    play: Callable[["ScenarioWorld"], Awaitable[None]]
    needs_processes: bool

    def __str__(self) -> str:
        return self.name

    async def run(self, harness: EngineHarness) -> list[str]:
        """Play the scenario, check each of its runs and effects, and return the ids of its runs."""
        async with asyncio.timeout(harness.patience), _world(self.name, harness) as world:
            await self.play(world)
            return await world.check()


_SCENARIOS: list[Scenario] = []


def scenario(
    *, needs_processes: bool = False
) -> Callable[[Callable[["ScenarioWorld"], Awaitable[None]]], Callable[["ScenarioWorld"], Awaitable[None]]]:
    """Add a function to the suite, with its name and docstring."""

    def add(play: Callable[["ScenarioWorld"], Awaitable[None]]) -> Callable[["ScenarioWorld"], Awaitable[None]]:
        name, summary = play.__name__.replace("_", "-"), play.__doc__ or ""
        _SCENARIOS.append(Scenario(name, summary, play, needs_processes))
        return play

    return add


def scenarios(*, processes: bool = True) -> list[Scenario]:
    """Return all scenarios; without `processes`, those that a worker in this process can play."""
    return [each for each in _SCENARIOS if processes or not each.needs_processes]


@asynccontextmanager
async def _world(name: str, harness: EngineHarness) -> AsyncIterator["ScenarioWorld"]:
    """Return the world of a scenario, with an app without a worker if workers are processes."""
    tag, ledger = f"{name}-{RandomIds(SystemClock()).new()[-8:].lower()}", Ledger(harness.ledger)
    if harness.app is not None:
        yield ScenarioWorld(tag, harness, harness.app, ledger)
        return
    async with limpet.open(harness.store, engine=harness.engine, agents=agents, worker=False) as app:
        yield ScenarioWorld(tag, harness, app, ledger)


@dataclass
class ScenarioWorld:
    """The app of a client, the ledger, and what the scenario expects of its runs."""

    tag: str
    """Prefix of the ids of all its runs."""
    harness: EngineHarness
    app: limpet.App
    """The app of a client, which knows the engine."""
    ledger: Ledger
    _effects: Counter[tuple[str, str]] = field(default_factory=Counter)
    _statuses: dict[str, str] = field(default_factory=dict)

    def id(self, name: str = "run") -> str:
        """Return the id of one of its runs."""
        return f"{self.tag}-{name}"

    def expect(self, owner: str, *labels: str, status: str = "completed") -> None:
        """Expect these effects of a run, each as often as it is named, and the status with which the run ends."""
        self._effects.update((owner, label) for label in labels)
        self._statuses[owner] = status

    async def start(self, agent: limpet.Agent[Any, Any], *input: Any, name: str = "run", **how: Any) -> str:
        """Start a run, and return its id."""
        return (await self.app.start(agent, *input, id=self.id(name), **how)).id

    async def until(self, what: Callable[[], Awaitable[Any]]) -> Any:
        """Wait until a function returns something true, and return it."""
        clock = SystemClock()
        while not (found := await what()):
            assert not self.harness.fleet.failure, self.harness.fleet.failure
            await clock.sleep(LOOK)
        return found

    async def until_ended(self, run: str, status: str = "completed") -> limpet.RunInfo:
        """Wait until a run has ended, assert its status, and return the run."""

        async def look() -> limpet.RunInfo | None:
            info = await self.app.info(run)
            return info if info.status in ENDED else None

        info: limpet.RunInfo = await self.until(look)
        assert info.status == status, f"{run} is {info.status}: {info.error}"
        return info

    async def until_waiting(self, run: str, what: str) -> None:
        """Wait until no worker drives a run, because it waits, for `signal` or `operator:paused`."""

        async def look() -> bool:
            info = await self.app.info(run)
            assert info.status not in ENDED, f"{run} is {info.status}: {info.error}"
            waits = {name for each in info.waits_for for name in (each.what, f"{each.what}:{each.key}")}
            return info.status == "waiting" and what in waits

        await self.until(look)

    async def until_marked(self, mark: str) -> None:
        """Wait until a tool has made a mark in the ledger."""

        async def look() -> bool:
            return self.ledger.has(mark)

        await self.until(look)

    async def until_request(self, run: str) -> limpet.Request:
        """Wait until a run asks, and return the request."""

        async def look() -> limpet.Request | None:
            return next(iter(await self.app.inbox(run=run)), None)

        found: limpet.Request = await self.until(look)
        return found

    def has_happened(self, owner: str, label: str) -> bool:
        """Return whether an effect has happened at least once."""
        return any(each.owner == owner and each.label == label for each in self.ledger.entries(owner))

    def sections(self) -> list[LedgerEntry]:
        """Return when the sections of this scenario began and ended, in order."""
        return self.ledger.entries(f"{self.tag}/sections")

    async def _runs(self) -> list[str]:
        """Return the ids of all runs of the scenario, also of those that its runs made."""
        page = await self.app.runs(last=1000)
        found = [*page]
        while page.next is not None:
            page = await self.app.runs(last=1000, cursor=page.next)
            found += page
        return sorted(each.id for each in found if each.id.startswith(self.tag))

    async def check(self) -> list[str]:
        """Wait until all runs have ended; assert their statuses, their logs, and that each effect happened once.

        Returns the ids of the runs.
        """
        runs = await self._runs()
        assert set(self._statuses) <= {*runs, self.tag}, "a run is missing"
        for run in runs:
            await self.until_ended(run, self._statuses.get(run, "completed"))
            await self.app.verify(run)
        happened = {effect: n for effect, n in self.ledger.count(self.tag).items() if "/sections" not in effect[0]}
        assert happened == dict(self._effects), f"{happened} is not {dict(self._effects)}"
        return runs
