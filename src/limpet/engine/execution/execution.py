"""One execution of a run's code by one worker: the state that all methods of `Run` share.

The code runs while the execution is open. While the run is about to park or stop, the execution is held: calls wait,
and continue if it is reopened. Once it is closed, every call raises Suspended and has no effect.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

from limpet.clock import SECOND, Clock
from limpet.engine.definitions.agents import Agent
from limpet.engine.definitions.call_context import Call
from limpet.engine.definitions.tools import Tool
from limpet.engine.definitions.upgrades import NOTHING, Versions
from limpet.engine.execution.handle import Port
from limpet.engine.execution.user_code import Bound
from limpet.engine.replay.history import Opening, Record
from limpet.engine.replay.learned import Learned
from limpet.engine.replay.lookup import Lookup
from limpet.engine.replay.return_order import QUIET, ReturnOrder
from limpet.engine.replay.scopes import Scope, unscoped
from limpet.errors import (
    ConnectionLost,
    DeadlineExceeded,
    Divergence,
    HandedOff,
    InvalidValue,
    LimpetError,
    StoreBusy,
    Suspended,
)
from limpet.events import AnyBody, Effects, Limits, Outside, Payload, StatePatch, Wait, inline
from limpet.events import bodies as b
from limpet.ids import Ids
from limpet.journal import Journal
from limpet.policy.checkpoint import Moment, must_flush
from limpet.policy.quarantine import PAROLE
from limpet.state import AgentState
from limpet.state.patch import Working, still_fits
from limpet.stores import Store
from limpet.stores.blobs import Blob

__all__ = [
    "Execution",
    "Kit",
    "OpenWait",
    "ToolCaller",
    "as_caller",
    "current_caller",
    "current_scope",
    "enter_thread",
    "set_scope",
]

log = logging.getLogger("limpet")

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
Opened = TypeVar("Opened", bound=Opening)

_scope: ContextVar[Scope | None] = ContextVar("limpet_scope", default=None)
_thread: ContextVar[int | None] = ContextVar("limpet_thread", default=None)


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


class ToolCaller(Protocol):
    """Calls the functions of tools."""

    async def __call__(self, tool: Tool[..., Any, Any], /, fn: Callable[..., Any], args: Bound, call: Call) -> Any:
        """Call a function and return its result; `current()` is this call."""

    def call_inline(self, tool: Tool[..., Any, Any], args: Bound, call: Call) -> Any:
        """Call the tool's function on this thread, for a transaction."""

    def is_stubbed(self, tool: Tool[..., Any, Any]) -> bool:
        """Return whether a test provides the tool's result; then no transaction is needed."""


@dataclass(frozen=True, kw_only=True)
class Kit:
    """Dependencies and settings that a worker shares with the runs it drives."""

    store: Store
    clock: Clock
    ids: Ids
    worker: str
    perform: ToolCaller
    now: Callable[[], int]
    """Returns an estimate of the store's clock, in microseconds."""
    linger: int = SECOND
    """How long a run that only waits stays in memory, in microseconds."""
    silent_after: int = SECOND // 10
    """How long a run may be busy before commands to it are polled, in microseconds."""
    backoffs: bool = True
    """Whether to wait between attempts."""
    port: Port | None = None
    """Access to other runs for their handles."""
    channels: tuple[str, ...] = ()
    """Channels that notify people of requests."""
    parole: tuple[int, ...] = PAROLE
    """Rest of a quarantined run before each retry, in microseconds."""


class Execution:
    """State that the methods of one run share while a worker drives it."""

    def __init__(self, kit: Kit, journal: Journal, memory: Learned, agent: Agent[Any, Any]) -> None:
        self.kit, self.journal, self.agent = kit, journal, agent
        self.history = history = memory.history
        self.run = journal.run
        self.lookup = Lookup(self.run, history)
        self.return_order = ReturnOrder(record.end for record in history.records.values() if record.end is not None)
        created = memory.created
        self._working = Working(AgentState())
        if created.initial is not None:
            self._working.apply(created.initial)
        self.patched = 0
        """Counter of changes of `working`."""
        self.user, self.session = created.user, created.session
        self.children = history.last_child
        """Number in the last generated id of a called run."""
        self.lent: dict[str, Limits] = {}
        """Budgets of called runs whose calls may not be in the log yet, by run."""
        self.busy_calls = 0
        """Number of calls that must not be interrupted now."""
        self.running_tools = 0
        """Number of running tool functions."""
        self.activity = 0
        """Counter of everything that the code does."""
        self.waiting: Mapping[str, OpenWait] = {}
        """The open waits of the code."""
        self.subscribers: dict[Wait, Callable[[], object]] = {}
        """Callbacks for other conditions that the code subscribes to; these also wake a parked run."""
        self.active_at = kit.clock.ticks()
        self.memory = memory
        self.versions: dict[str, dict[str, bool]] = {}
        """Choices of `run.version` made here, which may not be in the log yet, by scope."""
        self.handed_to: str | None = None
        """The agent that this run was handed off to."""
        self.is_undoing = False
        """Whether this execution is the run's compensation."""
        self.is_dry_run = False
        """Whether this is a dry run, which starts nothing new."""
        self.stopped: LimpetError | None = None
        """Why the code cannot continue: a divergence, a lost lease, or a failure of the store."""
        self.wake_driver: Callable[[], object] = lambda: None
        """Wakes the driver of this run."""
        self.on_step: Callable[[int], object] | None = None
        """Called with the number of each step that the code reaches, synchronously."""
        self._open = asyncio.Event()
        self._open.set()
        self._closed: Suspended | None = None
        self._never: list[asyncio.Future[None]] = []
        self._flags = list(history.flags)
        self._overrides = list(memory.overrides)
        self._overridden: list[tuple[int, StatePatch]] = []
        self._work, self._running_tool = _Work(self), _RunningTool(self)

    # Calls

    def take_name(self, name: str) -> str:
        """Return the name in the log of a call that the code makes now."""
        if self.handed_to is not None and self._closed is None:
            raise HandedOff(run=self.run, agent=self.handed_to)
        self.note_call()
        return current_scope().take(name, current_caller())

    def peek_name(self, name: str) -> str:
        """Return the name in the log that the next call with this name will have here."""
        return current_scope().peek(name)

    def last_step(self) -> int | None:
        """Return the last step that the code called in its scope, or else around it; None if there is none.

        After a resume, steps of finished turns are not called again: then this is the last step in the log.
        """
        return self.lookup.last_step(current_scope().path) or self.journal.fold.step or None

    def note_call(self) -> None:
        """Note that the code makes a durable call. Raises Suspended once the execution is closed."""
        if self._closed is not None:
            raise self._closed
        self.return_order.note_call()
        self.note_activity()

    def note_activity(self) -> None:
        """Note activity."""
        self.activity += 1
        self.active_at = self.kit.clock.ticks()

    def find(self, name: str, kind: type[object], asked: str = "", versions: Versions = NOTHING) -> Record | None:
        """Return the record of a call, or None if it is new. A record of a different call stops the run."""
        try:
            record = self.lookup.find(name, kind, asked, versions)
        except Divergence as error:
            self.stop(error)
            raise
        if record is None:
            while self._overrides:  # the code has passed everything that the fork shares
                self._override()
        elif record.shared and record.has_other_args(asked, versions):
            self.raise_flag(
                f"{name} has other arguments than before the fork", "the recorded result is used, as before the fork"
            )
        return record

    async def check_new(self, name: str) -> None:
        """Stop the run before an effect that diverges from the log, after waiting until the code is quiet."""
        try:
            try:
                self.lookup.check_new(name)
            except Divergence:
                await self.wait_until_quiet()
                self.lookup.check_new(name)
        except Divergence as error:
            self.stop(error)
            raise

    async def wait_until_quiet(self) -> None:
        """Wait until the code has done nothing for some iterations of the event loop."""
        seen = -1
        while seen != self.activity:
            seen = self.activity
            for _ in range(2 * QUIET):
                await asyncio.sleep(0)  # noqa: TID251 - iterations of the event loop, not time

    async def wait_until_open(self) -> None:
        """Wait until the execution is open. If it is closed meanwhile, the code is being cancelled."""
        if self._must_stop:
            self.hold()
            self.wake_driver()
        if not self._open.is_set():
            await self._open.wait()
            if self._closed is not None:
                raise asyncio.CancelledError
        elif self._closed is not None:
            raise self._closed

    @property
    def _must_stop(self) -> bool:
        fold = self.journal.fold
        return (fold.cancel is not None or fold.pausing) and not self.is_undoing and self._closed is None

    def work(self) -> "_Work":
        """Return a context: the run does not park or stop before its body has finished."""
        return self._work

    def end_work(self) -> None:
        """End a `work` context, and wake the driver if it waits for that."""
        self.busy_calls -= 1
        self.note_activity()
        if not self.busy_calls and (self.waiting or not self._open.is_set()):
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

    @property
    def is_silent(self) -> bool:
        """Whether the run has been busy for a while without writing."""
        return self.kit.clock.ticks() >= self.active_at + self.kit.silent_after

    def hold(self) -> None:
        """Let no further call start."""
        self._open.clear()

    def reopen(self) -> None:
        """Let calls start again."""
        self._open.set()

    def close(self, reason: str) -> None:
        """Make every further call raise Suspended, and cancel all waiting calls."""
        self._closed = Suspended(run=self.run, reason=reason)
        self._open.set()
        for future in (*self._never, *self.return_order.waiting):
            future.cancel()
        for slot in self.waiting.values():
            slot.ended.cancel()

    @property
    def is_open(self) -> bool:
        """Whether calls may start: the execution is neither held nor closed."""
        return self._open.is_set() and self._closed is None

    @property
    def is_closed(self) -> bool:
        """Whether calls no longer have an effect."""
        return self._closed is not None

    def stop(self, error: LimpetError) -> None:
        """Stop the code here; the first reason is kept."""
        self.stopped = self.stopped or error
        self.hold()
        self.wake_driver()

    # Writing and returning

    def settle(self, *bodies: AnyBody, blobs: Sequence[Blob] = ()) -> int:
        """Record the end of a call, and return its ticket in the order of returns."""
        self.journal.add(*bodies, blobs=blobs)
        return self.return_order.issue_ticket()

    def must_flush(self, moment: Moment) -> bool:
        """Return whether the code must wait for the disk now, according to the agent's checkpoint strategy."""
        return must_flush(self.agent.rules.checkpoint, moment)

    async def flush(self) -> None:
        """Return when everything so far is durable. If the store refuses it, stop the run and never return."""
        await self.write_until_stored(self.journal.flush)

    async def write_until_stored(self, write: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a write, repeated until the store is reachable. It is applied once.

        If the store refuses it, the run stops. InvalidValue is raised to the code: it is refused before anything is
        written.
        """
        try:
            return await self.retry_store(write)
        except InvalidValue:
            raise
        except LimpetError as error:
            await self.halt(error)

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

    async def append(self, body: AnyBody) -> None:
        """Append an event, durably."""
        self.journal.add(body)
        await self.flush()

    async def finish(self, ticket: int, moment: Moment | None = None) -> None:
        """Return to the code when the end of a call is durable, if it must be, and its turn has come."""
        try:
            if self.journal.has_much or (moment is not None and self.must_flush(moment)):
                await self.flush()
                await self.snapshot()
            await self.enter(ticket)
        except asyncio.CancelledError:
            self.return_order.cancel_ticket(ticket)
            raise

    async def snapshot(self) -> None:
        """Write a snapshot if one is due. Snapshots are only a cache: the run continues if it fails."""
        if not self.journal.is_snapshot_due:
            return
        with self.work():
            try:
                await self.journal.snapshot()
            except Exception:
                log.exception("run %s: snapshot failed", self.run)

    async def enter(self, end: int) -> None:
        """Return to the code when it is the turn of this end."""
        await self.return_order.wait_turn(end)
        self.note_activity()
        if self.waiting:
            self.wake_driver()  # perhaps only waits are left
        while self._flags and self._flags[0][0] < end:
            _, *flag = self._flags.pop(0)
            self._flag(*flag)

    async def recall(self, record: Record, kind: type[Opened]) -> Opened:
        """Return the event of a recorded call without a separate end, when it is its turn to return."""
        assert record.end is not None
        await self.enter(record.end)
        assert isinstance(record.opened, kind)
        return record.opened

    async def record(self, name: str, value: object) -> None:
        """Record a value that replay returns to the code, and return to the code."""
        await self.finish(self.settle(b.ValueRecorded(name=name, value=inline(value))))

    def start_turn(self, loop: str) -> None:
        """Enter a loop at its current turn, with the state at the start of that turn."""
        self.set_working_state(Working(self.memory.states[loop]))
        start = self.memory.turn_starts.get(loop, 0)
        self._overrides = [each for each in self._overrides if each[0] > start]  # the others are part of that state
        self._overridden = []

    # Working state

    @property
    def working(self) -> Working:
        """The working state at this point of the code.

        A fork's overrides apply once the code has passed the shared events.
        """
        while self._overrides and not self.return_order.has_before(self._overrides[0][0]):
            self._override()
        return self._working

    def set_working_state(self, working: Working) -> None:
        """Replace the working state."""
        self._working = working
        self.patched += 1

    def learn(self, change: Callable[[Working], T], end: int | None = None) -> T:
        """Change the working state, now or at a recorded end. A fork's later overrides are applied again."""
        self.patched += 1
        changed = change(self._working)
        for seq, patch in self._overridden:
            if end is not None and end < seq:
                self._working.apply(still_fits(self._working, patch))
        return changed

    def _override(self) -> None:
        seq, patch = self._overrides.pop(0)
        self.learn(lambda working: working.apply(still_fits(working, patch)))
        self._overridden.append((seq, patch))

    def _flag(self, flag: str, detail: str) -> None:
        self.learn(lambda working: working.flag(flag, detail))

    def raise_flag(self, flag: str, detail: str, *, again: bool = False) -> None:
        """Record a risk flag for people, unless it is set; with `again`, also if it is set."""
        if again or self.journal.working.flag_detail(flag) is None:
            self.journal.add(b.RiskFlagged(flag=flag, detail=detail))
            self._flag(flag, detail)

    @property
    def effects(self) -> Effects:
        """How effects are handled in this run: executed, asked for, or stubbed."""
        return self.memory.created.effects

    def is_stubbed(self, tool: Tool[..., Any, Any]) -> bool:
        """Return whether a tool is not called here: effects are stubbed, unless the fork allows this kind of call."""
        if self.effects != "stub":
            return False
        outside: Outside = "model" if tool.kind == "model" else "reads"
        return tool.traits.effect != "none" or outside not in self.memory.created.live

    def shown(self, value: object) -> Payload:
        """Return a value for display in a request: it is always stored inline."""
        return self.kit.store.pack(value, inline=1 << 30)[0]

    async def unpack(self, payload: Payload | None) -> Any:
        """Return the value of a payload, inline or in a blob."""
        if payload is None:
            return None
        return payload.value() if payload.is_inline else await self.retry_store(lambda: self.kit.store.unpack(payload))

    async def retry_store(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what the store returns, retried until it is reachable. A repeated append is applied once."""
        while True:
            try:
                return await ask()
            except (ConnectionLost, StoreBusy):
                await self.kit.clock.sleep(SECOND)

    @property
    def deadline(self) -> int | None:
        """Deadline of the run, which may be extended while it runs. A compensation has none."""
        return None if self.is_undoing else self.history.deadline

    def deadline_of(self, verb: str) -> int | None:
        """Return the deadline of the run when a call ended; the current one if it has not ended yet."""
        record = self.history.records.get(verb)
        return self.deadline if record is None or record.end is None else self.history.deadline_at(record.end)

    @property
    def is_late(self) -> bool:
        """Whether the run's deadline has passed."""
        return self.deadline is not None and self.kit.now() >= self.deadline

    def deadline_error(self, verb: str) -> DeadlineExceeded:
        """Return the error of a call that the deadline ended."""
        return self.attribute_error(DeadlineExceeded(deadline=self.deadline_of(verb) or 0), verb)

    def attribute_error(self, error: E, verb: str) -> E:
        """Return the error, marked with the call that raised it.

        If the error ends the run, a resume undoes just that call.
        """
        error.__dict__["limpet_verb"] = verb
        return error

    def random_fraction(self) -> float:
        """Return a random number from 0 to 1."""
        return float(self.kit.ids.bits(53)) / (1 << 53)


class _Work:
    """Context of work that must not be interrupted; one object per execution."""

    __slots__ = ("_x",)

    def __init__(self, execution: Execution) -> None:
        self._x = execution

    def __enter__(self) -> None:
        self._x.busy_calls += 1

    def __exit__(self, *exc: object) -> None:
        self._x.end_work()


class _RunningTool:
    """Context of a running tool; one object per execution."""

    __slots__ = ("_x",)

    def __init__(self, execution: Execution) -> None:
        self._x = execution

    def __enter__(self) -> None:
        self._x.running_tools += 1

    def __exit__(self, *exc: object) -> None:
        self._x.running_tools -= 1
        if self._x.stopped is not None:
            self._x.wake_driver()


def current_scope() -> Scope:
    """Return the scope of the current code. Raises WrongCall if there is none."""
    scope = _scope.get()
    if scope is None:
        raise unscoped("A method of run")
    return scope


def set_scope(scope: Scope) -> None:
    """Set the scope of the code that follows."""
    _scope.set(scope)


def current_caller() -> object:
    """Return the calling thread of a blocking agent, or the asyncio task."""
    thread = _thread.get()
    return asyncio.current_task() if thread is None else thread


def enter_thread(thread: int) -> None:
    """Mark this context as the thread of a blocking agent."""
    _thread.set(thread)


@contextmanager
def as_caller(thread: int) -> Iterator[None]:
    """Make calls inside the block on behalf of this thread."""
    token = _thread.set(thread)
    try:
        yield
    finally:
        _thread.reset(token)
