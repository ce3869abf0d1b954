"""Fork and replay runs."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec.structs import replace

from limpet.arguments import checked
from limpet.clock import Duration
from limpet.engine.definitions.agents import Budget, limits_of
from limpet.engine.execution.handle import Handle
from limpet.engine.execution.views import RunInfo
from limpet.events import Effects, Outside
from limpet.service.api.core import AppCore
from limpet.service.fork import ForkOptions, make_fork, plan_fork
from limpet.service.given_times import read_time
from limpet.service.initial_state import digest_of
from limpet.service.operation import ALL_DOORS, By, InDoors, Param, RunId, command
from limpet.service.queries import check_last, check_status
from limpet.service.replay import Replay, ReplayCheck, ReplayOptions, check, replay
from limpet.service.resolve import each_run, run_of
from limpet.stores import RunFilter
from limpet.stores.api.base import LARGEST_PAGE

__all__ = ["Forks"]


@checked
class Forks(AppCore):
    """Fork and replay runs."""

    topic = "Replay and fork"

    @command(
        "/runs/{run}/fork",
        needs="control",
        doors=ALL_DOORS,
        result=RunInfo,
        is_idempotent=False,
        example="ticket-42 --at 6 --effects ask",
    )
    async def fork(  # noqa: PLR0913 - keyword-only
        self,
        run: RunId,
        /,
        *,
        at: Annotated[
            int | None, Param(ge=1, description="First step that the fork executes itself.", examples=[6])
        ] = None,
        seq: Annotated[int | None, Param(ge=1, description="Last event to share, instead of `at`.")] = None,
        patch: Annotated[
            Mapping[str, Any] | None,
            Param(description="Changes of the state, such as facts and goal.", examples=[{"facts": {"cents": 900}}]),
            InDoors(dict[str, Any] | None),
        ] = None,
        results: Annotated[
            Mapping[int, Any] | None,
            Param(description="Results of shared steps to replace, by number.", examples=[{"3": "R-7"}]),
            InDoors(dict[int, Any] | None),
        ] = None,
        effects: Annotated[
            Effects,
            Param(description="ask: approve each effect. stub: generate results. live: execute effects."),
        ] = "ask",
        reads: Annotated[
            Literal["live"] | None, Param(description="In a stubbed fork, still call tools without effects.")
        ] = None,
        model: Annotated[Literal["live"] | None, Param(description="In a stubbed fork, still call models.")] = None,
        input: Annotated[Any, Param(description="Another input."), InDoors(None)] = ...,
        version: Annotated[str | None, Param(description="Another version of the agent.")] = None,
        budget: Annotated[
            Budget | Mapping[str, Any] | None,
            Param(description="Other limits: max_steps, max_cost, ….", examples=[{"max_steps": 40}]),
            InDoors(dict[str, int | float | str] | None),
        ] = None,
        deadline: Annotated[
            datetime | Duration | None,
            Param(description="Another deadline: 2h from now, or a time.", examples=["2h"]),
            InDoors(str | None),
        ] = None,
        id: Annotated[str | None, Param(description="Id of the fork.")] = None,
        by: By = None,
    ) -> Handle[Any]:
        """Start a new run that shares the events of another run up to a point, and continues from there on its own.

        The original run does not change. `at` is the first step that is not shared; `seq` is the last event that is
        shared (to open a request again, for example). `patch` changes the state (as for `run.patch`), `results`
        replaces results of shared steps by number, `input` and `version` replace the input and the agent's version.
        `budget` replaces some limits, and `deadline` (a time, or a duration from now) the deadline.

        `effects` controls the effects of the fork: `"ask"` asks a person before each one, `"live"` executes them, and
        `"stub"` makes no external calls. In a stubbed fork, a tool returns what the original run got from the same
        call, or a sample of its type, and a model call parks the fork; `reads="live"` allows external sources and tools
        without an effect, and `model="live"` allows model calls.
        """
        row = await run_of(self.store, run)
        agent = self._find_code(row.agent, version or row.agent_version)
        more: dict[str, Any] = {"patch": patch or {}, "results": results or {}, "input": input}
        more["by"], more["limits"] = self._principal(by), None if budget is None else limits_of(budget)
        deadline = None if deadline is None else read_time(deadline, "deadline")
        more["deadline"] = None if deadline is None else await self._time_of(deadline, "deadline")
        modes: Mapping[Outside, str | None] = {"reads": reads, "model": model}
        live = tuple(outside for outside, mode in modes.items() if mode == "live")
        options = ForkOptions(at=at, seq=seq, effects=effects, live=live, version=version, **more)
        body, blobs = await plan_fork(self.store, row, agent, options, self._time.now())
        if id is not None:  # the event itself tells the other options
            body = replace(body, asked=digest_of({"deadline": deadline}))
        name = await make_fork(self.store, run, body, blobs, actor=self._actor, id=id)
        if self._worker_loop is not None:
            self._worker_loop.wake()
        return Handle(self._port, name, agent)

    async def replay(
        self,
        run: str,
        /,
        *,
        to: int | None = None,
        allow: Collection[str] = (),
        on_step: Callable[[int], object] | None = None,
    ) -> Replay:
        """Replay a run in memory with the current code, up to the end of step `to`, or to the end of its log.

        Nothing is written. Recorded calls return their recorded results; other calls are not made, unless `allow` names
        their tool. `on_step` is called with the number of each step when the code reaches it.
        """
        agent = self._require_code(await run_of(self.store, run))
        return await replay(self.store, run, agent, self._port, to, ReplayOptions(allow, on_step))

    async def replay_all(
        self, *, agent: str | None = None, last: int = 100, status: Sequence[str] = ()
    ) -> AsyncIterator[ReplayCheck]:
        """Replay the newest runs of the app's agents with the current code, and yield whether each still matches its
        log.

        Use this before a deployment. It makes no calls and writes nothing. `last` is the maximum number of runs per
        agent; `agent` and `status` limit the check to one agent or to some statuses.
        """
        check_last(last)
        for each in status:
            check_status(each)
        for name in [agent] if agent is not None else list(self._agents):
            left, where = last, RunFilter(agent=name, status=tuple(status))
            async for row in each_run(self.store, where, page=min(last, LARGEST_PAGE)):
                yield await check(self.store, row.id, self._require_code(row), self._port)
                if (left := left - 1) == 0:
                    break
