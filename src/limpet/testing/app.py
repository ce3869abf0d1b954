"""An app for tests: everything is in memory, and time passes only when the test advances it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from typing import Any, ParamSpec, TypeVar

from msgspec.structs import replace

from limpet.arguments import brief
from limpet.clock import Clock, Duration, FrozenClock, SystemClock, microseconds
from limpet.engine.definitions.agents import Agent, check_agent
from limpet.engine.definitions.tools import Tool
from limpet.engine.execution.handle import Port, Result
from limpet.engine.worker.duties import Duty
from limpet.engine.worker.worker import WorkerLoop
from limpet.engine.worker.worker_settings import StoreClock, Timing, Worker
from limpet.errors import InvalidArgument
from limpet.ids import SeededIds
from limpet.llm.model import Model
from limpet.service.app import App
from limpet.service.batch_agent import OWN
from limpet.service.settings import Settings
from limpet.service.views import LIVE
from limpet.stores import Backend, RunFilter, RunRow
from limpet.stores.memory import MemoryBackend
from limpet.testing.crash_points import CrashPoint, FaultyStore, When, events
from limpet.testing.stubs import Stubs
from limpet.testing.timeout_warning import warn_of_timeouts

__all__ = ["TestApp", "TestSettings", "app"]

P = ParamSpec("P")
T = TypeVar("T")
FOREVER = "9000d"
# Turns of the event loop before threads get real time.
PATIENCE = 50


class TestSettings(Settings):
    """Settings for tests: an in-memory store without threads, a frozen clock, the same ids in every test, no pauses."""

    __test__ = False

    def __init__(self, backend: Callable[[Clock], Backend] = MemoryBackend, clock: FrozenClock | None = None) -> None:
        self.frozen = clock or FrozenClock()
        self.faulty = FaultyStore(backend(self.frozen))
        super().__init__(self.faulty, self.frozen, _Ids())
        self.worker = Worker(lease=FOREVER)
        never = microseconds(FOREVER)
        self.timing = Timing(poll=never, idle=0, look=never, sweep=never, lease_thread=False)
        self.perform = self.stubs = Stubs()
        self.linger = self.listen_interval = self.command_poll = 0
        self.backoffs = False

    def worker_loop(
        self,
        agents: Sequence[Agent[Any, Any]],
        worker: Worker,
        time: StoreClock,
        port: Port,
        duties: Sequence[Duty] = (),
    ) -> WorkerLoop:
        """Create a worker loop with the same id each time, so that it takes over its predecessor's runs immediately."""
        loop = super().worker_loop(agents, worker, time, port, duties)
        names = sorted(each.name for each in agents if not each.name.startswith(OWN))
        loop.host.rename(f"w-{'-'.join(names)}")
        return loop


class _Ids:
    """The same ids in every test. Values drawn by agent code do not depend on the number of processes."""

    def __init__(self) -> None:
        self.new, self.bits = SeededIds(0).new, SeededIds(1).bits


class TestApp(App):
    """An app whose clock, tools and crashes a test controls. Created by `limpet.testing.app`."""

    __test__ = False

    def __init__(
        self,
        settings: TestSettings,
        agents: Sequence[Agent[Any, Any]],
        models: Mapping[str, Model] | None = None,
    ) -> None:
        self._models = dict(models or {})
        for each in agents:
            check_agent(each)
        _check_models(self._models, agents)
        super().__init__(settings, [_with_model(each, self._models) for each in agents])
        self._test_settings = settings
        self._crashes = 0
        self._warned: set[str] = set()

    def stub(self, tool: Tool[P, T, Any], *results: T | BaseException) -> None:
        """Set what a tool returns or raises, one value per call. The last one is used for all further calls."""
        self._test_settings.stubs.stub(tool, results)

    def calls(self, tool: Tool[..., Any, Any]) -> list[Mapping[str, Any]]:
        """Return the arguments of all calls of a tool so far, across crashes."""
        return list(self._test_settings.stubs.calls.get(tool.name, ()))

    async def settle(self) -> None:
        """Wait until every run waits or has ended."""
        turns = 0
        while not await self.is_settled():
            turns += 1
            await (asyncio.sleep(0) if turns % PATIENCE else SystemClock().sleep(1000))  # noqa: TID251 - a turn

    async def advance(self, how_long: Duration, /) -> None:
        """Let time pass, executing everything that is due, in order."""
        clock, target = self._test_settings.frozen, self._test_settings.frozen.now() + microseconds(how_long)
        await self.settle()
        while clock.now() < target:
            due = [time for time in (clock.next_alarm, await self._next_wake()) if time is not None]
            clock.set(min([target, *(time for time in due if time > clock.now())]))
            if self._worker_loop is not None:
                self._worker_loop.wake()
            await self.settle()

    def deploy(self, *agents: Agent[Any, Any]) -> None:
        """Replace the served agents from the next process on; call `crash()` to start it.

        `models=` of the app replaces their models, too.
        """
        self._all = tuple(_with_model(each, self._models) for each in agents)
        self._agents = {each.name: each for each in self._all}

    def crash_at(self, when: When, kind: str = "", /, *, nth: int = 1, **facts: Any) -> None:
        """Crash "before" or "after" the n-th commit of an event of this kind whose fields equal `facts`; any commit by
        default.

        Example: `app.crash_at("after", "step.started", tool="refund")`. The crash happens when the test next waits.
        """
        self._test_settings.faulty.faults.append(CrashPoint(when, events(kind, facts), nth))

    @property
    def crashes(self) -> int:
        """Number of crashes so far."""
        return self._crashes

    async def crash(self) -> None:
        """Kill the worker, and start another one on the same store."""
        if self._worker_loop is None:
            return
        self._crashes += 1
        await self._worker_loop.kill()
        self._test_settings.faulty.is_down = False
        await self._start_worker(self._test_settings.worker or Worker())

    async def close(self) -> None:
        """Kill the worker, whatever it is doing, and close the store: no time passes in which it could finish."""
        if self._worker_loop is not None:
            await self._worker_loop.kill()
            self._worker_loop = None
        await super().close()

    async def result(
        self,
        run: str,
        timeout: Duration | None,  # noqa: ARG002 - no time passes
        *,
        quiet: bool = False,  # noqa: ARG002 - NotDone says that it waits
    ) -> Result:
        """Wait until nothing moves, and return the result of a run. Raises NotDone if the run waits."""
        await self.settle()
        return await self._outcome(run)

    async def is_settled(self) -> bool:
        """Return whether every run waits or has ended."""
        if self._test_settings.faulty.is_down:
            await self.crash()
        loop = self._worker_loop
        assert loop is None or isinstance(loop, WorkerLoop)
        for run, task in loop.host.waiting if loop is not None else ():
            if run not in self._warned and warn_of_timeouts(run, task):
                self._warned.add(run)
        return loop is None or (not loop.host.is_busy and await loop.claim() == 0 and not loop.host.is_busy)

    async def _next_wake(self) -> int | None:
        return min((row.ready_at for row in await self._live() if row.ready_at is not None), default=None)

    async def _live(self) -> list[RunRow]:
        page = await self.store.runs(RunFilter(status=LIVE), limit=1000)
        return [row for row in page.rows if row.agent in self._agents]


def _check_models(models: Mapping[str, Model], agents: Sequence[Agent[Any, Any]]) -> None:
    """Raise InvalidArgument for a model that no agent would use."""
    served = [each.name for each in agents if each.llm is not None]
    for name, model in models.items():
        if name not in served:
            reason = f"the app serves no LLM agent {name!r}; it serves: {', '.join(served) or 'none'}"
            raise InvalidArgument(path="models", reason=reason)
        if not callable(getattr(model, "reply", None)):
            reason = f"{brief(model)} is not a model; pass limpet.testing.ScriptedModel(...)"
            raise InvalidArgument(path=f"models[{name!r}]", reason=reason)


def _with_model(agent: Agent[Any, Any], models: Mapping[str, Model]) -> Agent[Any, Any]:
    """Return a copy of an agent with another model, if there is one for its name."""
    if agent.llm is None or agent.name not in models:
        return agent
    found = copy(agent)
    found.llm = replace(agent.llm, model=lambda: models[agent.name])
    return found


@asynccontextmanager
async def app(*agents: Agent[Any, Any], models: Mapping[str, Model] | None = None) -> AsyncIterator[TestApp]:
    """Open an in-memory app for tests: `async with limpet.testing.app(agent) as app`.

    The clock moves only with `app.advance(...)`, except that delays between attempts of a step pass immediately.
    `models` replaces the models of LLM agents, by the agent's name: `models={"support": ScriptedModel("hello")}`.
    """
    async with TestApp(TestSettings(), agents, models) as opened:
        yield opened
