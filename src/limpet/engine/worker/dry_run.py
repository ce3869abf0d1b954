"""A dry run: the code of a run executed against its log, without calling tools and without writing anything.

Recorded calls return their recorded results. The first call that is not recorded ends the dry run, unless its tool is
allowed. It uses the same driver as a worker, so it finds what a worker would find; only the end of the run is reported
instead of written.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Literal

from msgspec import Struct

from limpet.engine.definitions.agents import Agent
from limpet.engine.definitions.call_context import Call
from limpet.engine.definitions.tools import Tool
from limpet.engine.execution.execution import Execution
from limpet.engine.execution.kit import Kit
from limpet.engine.execution.user_code import Bound, UserCode
from limpet.engine.worker.run_driver import RunDriver
from limpet.errors import ContractError, Divergence, LimpetError, NotRecorded
from limpet.events import Wait
from limpet.state import AgentState
from limpet.stores import Claimed

__all__ = ["AllowedTools", "DryRun", "DryRunResult"]


class DryRunResult(Struct, frozen=True, kw_only=True):
    """How far the code got."""

    how: Literal["returned", "raised", "waits", "reached", "diverged", "refused"]
    """`reached`: the end of the recorded calls. `refused`: the input or the log was refused."""
    value: Any = None
    """Return value of the function, as JSON."""
    error: BaseException | None = None
    waits: tuple[str, ...] = ()
    steps: frozenset[int] = frozenset()
    """Numbers of the steps that the code reached."""
    state: AgentState
    """Working state at that point."""


class AllowedTools(UserCode):
    """Calls only the tools that are allowed by name."""

    def __init__(self, allow: Collection[str] = ()) -> None:
        super().__init__()
        self._allow = frozenset(allow)
        self.stop: Callable[[LimpetError], object] = lambda _: None
        """Called with the error that ends the dry run."""
        self.catch_up: Callable[[], Awaitable[None]] | None = None
        """Waits before that, because the code may cancel the call."""

    async def __call__(self, tool: Tool[..., Any, Any], /, fn: Callable[..., Any], args: Bound, call: Call) -> Any:
        """Call an allowed function, or end the dry run."""
        if tool.name in self._allow and fn is tool.fn:
            return await super().__call__(tool, fn, args, call)
        if self.catch_up is not None:
            await self.catch_up()
        self.stop(NotRecorded(tool=tool.name, effect=tool.traits.effect))
        raise asyncio.CancelledError

    def is_stubbed(self, _: Tool[..., Any, Any]) -> bool:
        """Return True: a transaction must not be started either."""
        return True


class DryRun(RunDriver):
    """A dry run of one claimed copy of a run."""

    def __init__(
        self,
        kit: Kit,
        claimed: Claimed,
        agent: Agent[Any, Any],
        blocked: AllowedTools,
        on_step: Callable[[int], object] | None = None,
        last: int | None = None,
    ) -> None:
        super().__init__(kit, claimed, agent)
        self._blocked, self._on_step, self._last = blocked, on_step, last
        self._done: DryRunResult | None = None
        self._steps: set[int] = set()

    async def execute(self) -> DryRunResult:
        """Execute the code until it ends, waits, or reaches a call that is not recorded."""
        await self.drive()
        assert self._done is not None
        return self._done

    def _execution(self, *, is_undoing: bool = False) -> Execution:
        x = super()._execution(is_undoing=is_undoing)
        self._blocked.stop, self._blocked.catch_up, x.is_dry_run = x.gate.stop, x.catch_up, True
        x.on_step = lambda number: self._on_step_reached(x, number)
        return x

    def _on_step_reached(self, x: Execution, number: int) -> None:
        self._steps.add(number)
        if self._last is not None and number > self._last:
            x.gate.stop(NotRecorded(tool=f"step {number}", effect="after the last requested step"))
        elif self._on_step is not None:
            self._on_step(number)

    async def _conclude(self, x: Execution, task: "asyncio.Task[Any]") -> None:
        x.close("function ended")
        if x.gate.stopped is not None:
            await self._handle_stop(x, task)
            return
        error = asyncio.CancelledError("the code cancelled itself") if task.cancelled() else task.exception()
        value = None
        try:
            x.lookup.check_end()
            if error is None:
                value = self._agent.dump_output(task.result())
        except LimpetError as refused:
            error = refused
        how: Any = "returned" if error is None else "diverged" if isinstance(error, Divergence) else "raised"
        self._end_with(how, x, value=value, error=error)

    async def _park(self, x: Execution, waits: tuple[Wait, ...], wake: int | None, last_seen: int) -> bool:  # noqa: ARG002
        self._end_with("waits", x, waits=tuple(map(str, waits)))
        return True

    async def _handle_stop(self, x: Execution, task: "asyncio.Task[Any] | None") -> None:
        error = x.gate.stopped
        x.close("stopped")
        if task is not None:
            await self._cancel_code(task)
        how: Any = "reached" if isinstance(error, NotRecorded) else "refused"
        self._end_with("diverged" if isinstance(error, Divergence) else how, x, error=error)

    async def _park_for_operator(self, key: str, why: str, wake: int | None = None) -> None:  # noqa: ARG002
        assert self._x is not None
        self._end_with("refused", self._x, error=ContractError(agent=self._agent.name, what="input", reason=why))

    async def _reject(self, error: ContractError) -> None:
        assert self._x is not None
        self._end_with("refused", self._x, error=error)

    def _end_with(self, how: Any, x: Execution, **more: Any) -> None:
        self._done = DryRunResult(how=how, state=x.state.working.freeze(), steps=frozenset(self._steps), **more)
