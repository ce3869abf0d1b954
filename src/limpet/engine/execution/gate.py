"""Whether the calls of a run's code may start: the gate is open, held or closed.

While the run is about to park or stop, the gate is held: calls wait, and continue if it is reopened. Once it is closed,
every call raises Suspended and has no effect. The gate also counts what must not be interrupted.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple, NoReturn

from limpet.engine.execution.kit import Kit
from limpet.engine.replay.return_order import QUIET
from limpet.errors import LimpetError, Suspended
from limpet.events import Wait
from limpet.events import bodies as b
from limpet.state import Fold

__all__ = ["Gate", "OpenWait"]

log = logging.getLogger("limpet")


class OpenWait(NamedTuple):
    """Something that the code waits for at this moment."""

    name: str
    wait: Wait
    wake: int | None
    """When the wait itself is due, by the store's clock in microseconds. The run's deadline also ends it."""
    check: Callable[[], b.WaitEnded | None]
    """Returns how the wait ended, or None if it has not."""
    ended: "asyncio.Future[tuple[b.WaitEnded, int]]"
    request: b.RequestOpened | None = None


class Gate:
    """Lets the calls of one execution start, or not."""

    def __init__(self, kit: Kit, run: str, fold: Fold, *, ignores_commands: bool) -> None:
        self._run, self._fold, self._clock = run, fold, kit.clock
        self._ignores_commands = ignores_commands
        self._reopened = asyncio.Event()
        self._is_held = False
        self._closed: Suspended | None = None
        self._never: list[asyncio.Future[None]] = []
        self._kept: set[asyncio.Task[None]] = set()
        self.stopped: LimpetError | None = None
        """Why the code cannot continue: a divergence, a lost lease, or a failure of the store."""
        self.busy_calls = 0
        """Number of calls that must not be interrupted now."""
        self.running_tools = 0
        """Number of running tool functions."""
        self.activity = 0
        """Counter of everything that the code does."""
        self.active_at = 0
        """When code that waits began to wait, or was last active elsewhere, in monotonic microseconds."""
        self.wake_driver: Callable[[], object] = lambda: None
        """Wakes the driver of this run."""
        self.waiting: Mapping[str, OpenWait] = {}
        """The open waits of the code. A run that only waits may be parked."""
        self._work, self._running_tool = _Work(self), _RunningTool(self)

    @property
    def is_open(self) -> bool:
        """Whether calls may start: the gate is neither held nor closed."""
        return not self._is_held and self._closed is None

    @property
    def is_closed(self) -> bool:
        """Whether calls no longer have an effect."""
        return self._closed is not None

    @property
    def is_free(self) -> bool:
        """Whether a call may start without waiting: the gate is open, and no command asks the run to stop."""
        fold = self._fold
        is_asked_to_stop = (fold.cancel is not None or fold.pausing) and not self._ignores_commands
        return self._closed is None and not is_asked_to_stop and not self._is_held

    @property
    def _must_stop(self) -> bool:
        fold = self._fold
        return (fold.cancel is not None or fold.pausing) and not self._ignores_commands and self._closed is None

    def note_call(self) -> None:
        """Note that the code makes a call. Raises Suspended once the gate is closed."""
        if self._closed is not None:
            raise self._closed
        self.activity += 1

    async def wait_until_open(self) -> None:
        """Wait until the gate is open. If it is closed meanwhile, the code is being cancelled."""
        if self._must_stop:
            self.hold()
            self.wake_driver()
        if self._is_held:
            await self._reopened.wait()
            if self._closed is not None:
                raise asyncio.CancelledError
        elif self._closed is not None:
            raise self._closed

    def hold(self) -> None:
        """Let no further call start."""
        self._is_held = True
        self._reopened.clear()

    def reopen(self) -> None:
        """Let calls start again."""
        self._is_held = False
        self._reopened.set()

    def close(self, reason: str) -> None:
        """Make every further call raise Suspended, and cancel the calls that wait here."""
        self._closed = Suspended(run=self._run, reason=reason)
        self.reopen()
        for future in self._never:
            future.cancel()
        for task in self._kept:
            task.cancel()
        for slot in self.waiting.values():
            slot.ended.cancel()

    def keep(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do work in a task of its own, which goes on when the code has cancelled its call.

        The run does not park or end before that. Closing the gate cancels it.
        """
        if self._closed is not None:
            return
        task = asyncio.create_task(work(), name=f"limpet:{self._run}:kept")
        self.busy_calls += 1
        self._kept.add(task)
        task.add_done_callback(self._end_kept)

    def _end_kept(self, task: "asyncio.Task[None]") -> None:
        self._kept.discard(task)
        self.end_work()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("run %s: work for a cancelled call failed", self._run, exc_info=error)

    @property
    def kept(self) -> "tuple[asyncio.Task[None], ...]":
        """The kept tasks that have not ended."""
        return tuple(self._kept)

    def stop(self, error: LimpetError) -> None:
        """Stop the code here; the first reason is kept."""
        self.stopped = self.stopped or error
        self.hold()
        self.wake_driver()

    async def halt(self, error: LimpetError) -> NoReturn:
        """Stop the run, and never return to the code."""
        self.stop(error)
        await self.never_return()

    async def never_return(self) -> NoReturn:
        """Wait until the code is cancelled."""
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._closed is not None:
            raise asyncio.CancelledError
        self._never.append(never)
        await never
        raise AssertionError

    # Activity

    def note_return(self) -> None:
        """Note that a call returns to the code."""
        self.activity += 1
        if self.waiting:
            self.active_at = self._clock.ticks()
            self.wake_driver()  # perhaps only waits are left

    def note_wait(self) -> None:
        """Note that the code begins to wait, and wake the driver, to learn when the wait is due."""
        self.active_at = self._clock.ticks()
        self.wake_driver()

    async def wait_until_quiet(self) -> None:
        """Wait until the code has done nothing for some iterations of the event loop."""
        seen = -1
        while seen != self.activity:
            seen = self.activity
            for _ in range(2 * QUIET):
                await asyncio.sleep(0)  # noqa: TID251 - iterations of the event loop, not time

    def work(self) -> "_Work":
        """Return a context: the run does not park or stop before its body has finished."""
        return self._work

    def end_work(self) -> None:
        """End a `work` context, and wake the driver if it waits for that."""
        self.busy_calls -= 1
        self.activity += 1
        if self.waiting or self._is_held:
            self.active_at = self._clock.ticks()
            if not self.busy_calls:
                self.wake_driver()

    def end_tool(self) -> None:
        """End a `running_tool` context, and wake the driver if it waits for that."""
        self.running_tools -= 1
        if self.stopped is not None:
            self.wake_driver()

    def running_tool(self) -> "_RunningTool":
        """Return a context for a running tool and the recording of its outcome.

        If the run is lost meanwhile, the outcome is kept as a late result.
        """
        return self._running_tool

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs that must not be interrupted. Once nothing can be written any more, only tools count."""
        return not (self.busy_calls if self.stopped is None else self.running_tools)


class _Work:
    """Context of work that must not be interrupted; one object per gate."""

    __slots__ = ("_gate",)

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def __enter__(self) -> None:
        self._gate.busy_calls += 1

    def __exit__(self, *exc: object) -> None:
        self._gate.end_work()


class _RunningTool:
    """Context of a running tool; one object per gate."""

    __slots__ = ("_gate",)

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def __enter__(self) -> None:
        self._gate.running_tools += 1

    def __exit__(self, *exc: object) -> None:
        self._gate.end_tool()
