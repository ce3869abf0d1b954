"""One execution of a run's code by one worker: what all its verbs share.

The code runs while the execution is open. It is held while the run parks or stops: whoever calls a verb then waits, and
goes on if it did not come to that. Once it is closed, every verb raises Suspended and takes no effect.
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
from limpet.events import AnyBody, Effects, Outside, Payload, StatePatch, Wait, inline
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
    """Something the code waits for at this moment."""

    name: str
    wait: Wait
    wake: int | None
    """When it must be looked at, by the store's clock."""
    look: Callable[[], b.WaitEnded | None]
    """How it ended, if it has."""
    ended: "asyncio.Future[tuple[b.WaitEnded, int]]"
    request: b.RequestOpened | None = None


class ToolCaller(Protocol):
    """How the functions of a tool are called."""

    async def __call__(self, tool: Tool[..., Any, Any], /, fn: Callable[..., Any], args: Bound, call: Call) -> Any:
        """What the function returns; `current()` is this call."""

    def call_inline(self, tool: Tool[..., Any, Any], args: Bound, call: Call) -> Any:
        """The same on this thread, for a function that is a transaction."""

    def is_stubbed(self, tool: Tool[..., Any, Any]) -> bool:
        """Whether a test says what it returns; then it is in no transaction."""


@dataclass(frozen=True, kw_only=True)
class Kit:
    """What a worker lends to the runs that it drives."""

    store: Store
    clock: Clock
    ids: Ids
    worker: str
    perform: ToolCaller
    now: Callable[[], int]
    """An estimate of the store's clock."""
    linger: int = SECOND
    """How long a run that only waits stays in memory, in microseconds."""
    hush: int = SECOND // 10
    """How long a run may be busy before commands to it are looked for."""
    backoffs: bool = True
    """Whether the time between attempts is waited for."""
    port: Port | None = None
    """What handles of other runs are made over."""
    channels: tuple[str, ...] = ()
    """Where people are told of requests."""
    parole: tuple[int, ...] = PAROLE
    """How long a quarantined run rests before each further try, in microseconds."""


class Execution:
    """What the verbs of one run share while a worker drives it."""

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
        """Grows with every change of `working`."""
        self.deadline, self.user, self.session = created.deadline, created.user, created.session
        self.children = history.last_child
        """The number of the last run that was named after this one."""
        self.flagged: set[str] = set()
        """What was flagged here, and may not be in the log yet."""
        self.at_work = 0
        """How many verbs are doing something that must not be cut."""
        self.performing = 0
        """How many functions of tools are running."""
        self.activity = 0
        """Grows with everything that the code does."""
        self.waiting: Mapping[str, OpenWait] = {}
        """What the code waits for."""
        self.subscribers: dict[Wait, Callable[[], object]] = {}
        """What the code hears beside that: told whenever something came; it wakes a run that is parked."""
        self.touched = kit.clock.ticks()
        self.memory = memory
        self.versions: dict[str, dict[str, bool]] = {}
        """What was chosen here, and may not be in the log yet."""
        self.handed_to: str | None = None
        """The agent that goes on for good in this one's place."""
        self.is_undoing = False
        """This is the undoing itself."""
        self.is_dry_run = False
        """This is a replay in isolation: nothing new is begun."""
        self.stopped: LimpetError | None = None
        """Why the code cannot go on: it has diverged, the lease is lost, or the store fails."""
        self.changed: Callable[[], object] = lambda: None
        """Told whenever the one who attends to this run should look."""
        self.on_step: Callable[[int], object] | None = None
        """Told the number of each step as the code comes to it, in the code's own call."""
        self._open = asyncio.Event()
        self._open.set()
        self._closed: Suspended | None = None
        self._never: list[asyncio.Future[None]] = []
        self._flags = list(history.flags)
        self._overrides = list(memory.overrides)
        self._overridden: list[tuple[int, StatePatch]] = []
        self._work, self._acting = _Work(self), _Acting(self)

    # Coming in

    def take_name(self, name: str) -> str:
        """The identity of a call that the code makes now."""
        if self.handed_to is not None and self._closed is None:
            raise HandedOff(run=self.run, agent=self.handed_to)
        self.note_call()
        return current_scope().take(name, current_caller())

    def peek_name(self, name: str) -> str:
        """The identity that the next call of this name will have here."""
        return current_scope().peek(name)

    def note_call(self) -> None:
        """The code has come to something that is durable; nothing is, once this is closed."""
        if self._closed is not None:
            raise self._closed
        self.return_order.note_call()
        self.touch()

    def touch(self) -> None:
        """Something happened."""
        self.activity += 1
        self.touched = self.kit.clock.ticks()

    def find(self, name: str, kind: type[object], asked: str = "", versions: Versions = NOTHING) -> Record | None:
        """The record of a call; one that was another call stops the run."""
        try:
            record = self.lookup.find(name, kind, asked, versions)
        except Divergence as error:
            self.stop(error)
            raise
        if record is None:
            while self._overrides:  # whatever is left of what is shared, the code has come past it
                self._override()
        elif record.shared and record.is_other(asked, versions):
            self.raise_flag(f"{name} is asked with other arguments", "it answers as it did before the fork")
        return record

    async def check_new(self, name: str) -> None:
        """Stop the run before an effect that the log has no place for, once the code has come as far as it can."""
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
        """Return when the code has done nothing for some turns of the event loop."""
        seen = -1
        while seen != self.activity:
            seen = self.activity
            for _ in range(2 * QUIET):
                await asyncio.sleep(0)  # noqa: TID251 - turns of the event loop, not time

    async def wait_until_open(self) -> None:
        """Go on while the execution is open; if it is closed meanwhile, the code is being cancelled."""
        if self._is_told_to_stop:
            self.hold()
            self.changed()
        if not self._open.is_set():
            await self._open.wait()
            if self._closed is not None:
                raise asyncio.CancelledError
        elif self._closed is not None:
            raise self._closed

    @property
    def _is_told_to_stop(self) -> bool:
        fold = self.journal.fold
        return (fold.cancel is not None or fold.pausing) and not self.is_undoing and self._closed is None

    def work(self) -> "_Work":
        """What is done inside is finished before the run parks or stops."""
        return self._work

    def end_work(self) -> None:
        """Something is finished; whoever waits for that is told."""
        self.at_work -= 1
        self.touch()
        if not self.at_work and (self.waiting or not self._open.is_set()):
            self.changed()

    def running_tool(self) -> "_Acting":
        """A tool runs inside, and what came of it is put into the log: kept beside it, if the run is lost meanwhile."""
        return self._acting

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way that must not be cut; once nothing can be written any more, only tools are."""
        return not (self.at_work if self.stopped is None else self.performing)

    @property
    def is_silent(self) -> bool:
        """Whether it has been busy for a while without a sign."""
        return self.kit.clock.ticks() >= self.touched + self.kit.hush

    def hold(self) -> None:
        """Let no further verb begin."""
        self._open.clear()

    def reopen(self) -> None:
        """Let verbs begin again."""
        self._open.set()

    def close(self, reason: str) -> None:
        """From now on every verb raises Suspended; those that are waiting are cancelled, whoever has them."""
        self._closed = Suspended(run=self.run, reason=reason)
        self._open.set()
        for future in (*self._never, *self.return_order.waiting):
            future.cancel()
        for slot in self.waiting.values():
            slot.ended.cancel()

    @property
    def is_closed(self) -> bool:
        """Whether no verb takes effect any more."""
        return self._closed is not None

    def stop(self, error: LimpetError) -> None:
        """The code cannot go on here; the first reason counts."""
        self.stopped = self.stopped or error
        self.hold()
        self.changed()

    # Writing and returning

    def settle(self, *bodies: AnyBody, blobs: Sequence[Blob] = ()) -> int:
        """Put the end of a call into the log; its place in the order of ends."""
        self.journal.add(*bodies, blobs=blobs)
        return self.return_order.issue_ticket()

    def must_flush(self, moment: Moment) -> bool:
        """Whether the code waits for the disk now, as the agent chose."""
        return must_flush(self.agent.rules.checkpoint, moment)

    async def flush(self) -> None:
        """Return when everything so far is durable; if it never will be, stop the run, and never return."""
        await self.write_until_stored(self.journal.flush)

    async def write_until_stored(self, write: Callable[[], Awaitable[T]]) -> T:
        """What writing gives, repeated until the store is there: it lands once. If it is refused, the run stops.

        An argument of a wrong type is refused before anything is written, and is the code's own error.
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
        """Never return to the code, until it is cancelled."""
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._closed is not None:
            raise asyncio.CancelledError
        self._never.append(never)
        await never
        raise AssertionError

    async def append(self, body: AnyBody) -> None:
        """Put something into the log, durably."""
        self.journal.add(body)
        await self.flush()

    async def finish(self, ticket: int, moment: Moment | None = None) -> None:
        """Return to the code when the end is durable, where it must be, and its turn has come."""
        try:
            if self.journal.has_much or (moment is not None and self.must_flush(moment)):
                await self.flush()
                await self.snapshot()
            await self.enter(ticket)
        except asyncio.CancelledError:
            self.return_order.cancel_ticket(ticket)
            raise

    async def snapshot(self) -> None:
        """Cache the state, if that is due; it is but a cache: whatever goes wrong, the run goes on."""
        if not self.journal.is_snapshot_due:
            return
        with self.work():
            try:
                await self.journal.snapshot()
            except Exception:
                log.exception("no snapshot of run %s was written", self.run)

    async def enter(self, end: int) -> None:
        """Return to the code when it is the turn of this end."""
        await self.return_order.wait_turn(end)
        self.touch()
        if self.waiting:
            self.changed()  # it may be that only waits are left
        while self._flags and self._flags[0][0] < end:
            self.flag(self._flags.pop(0)[1])

    async def recall(self, record: Record, kind: type[Opened]) -> Opened:
        """What is recorded of a call that was over at once, when it is its turn to return."""
        assert record.end is not None
        await self.enter(record.end)
        assert isinstance(record.opened, kind)
        return record.opened

    async def record(self, name: str, value: object) -> None:
        """Put a value into the log that the code is given again, and return to the code."""
        await self.finish(self.settle(b.ValueRecorded(name=name, value=inline(value))))

    def start_turn(self, loop: str) -> None:
        """The code enters a loop at its current turn, and knows what it knew at its start."""
        self.set_working_state(Working(self.memory.states[loop]))
        began = self.memory.turned.get(loop, 0)
        self._overrides = [each for each in self._overrides if each[0] > began]  # what came before is in there
        self._overridden = []

    # What the code knows

    @property
    def working(self) -> Working:
        """What the code has passed so far; what a fork knows otherwise, when it has come through all that is shared."""
        while self._overrides and not self.return_order.has_before(self._overrides[0][0]):
            self._override()
        return self._working

    def set_working_state(self, working: Working) -> None:
        """What the code knows is this."""
        self._working = working
        self.patched += 1

    def learn(self, change: Callable[[Working], T], end: int | None = None) -> T:
        """The code learns something, now or at a recorded end; what a fork knows otherwise since then stays so."""
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

    def flag(self, flag: str) -> None:
        """The code sees a flag that a policy raised."""
        self.learn(lambda working: working.flag(flag))

    def raise_flag(self, flag: str, detail: str) -> bool:
        """Say once in the log what people should see; whether it was new."""
        if flag in self.flagged or self.journal.fold.working.has_flag(flag):
            return False
        self.flagged.add(flag)
        self.journal.add(b.RiskFlagged(flag=flag, detail=detail))
        self.flag(flag)
        return True

    @property
    def effects(self) -> Effects:
        """What becomes of effects here."""
        return self.memory.created.effects

    def is_stubbed(self, tool: Tool[..., Any, Any]) -> bool:
        """Whether a tool is not called here: nothing outside is touched, unless whoever made the fork said so."""
        if self.effects != "stub":
            return False
        outside: Outside = "model" if tool.kind == "model" else "reads"
        return tool.traits.effect != "none" or outside not in self.memory.created.live

    def shown(self, value: object) -> Payload:
        """Something that a request shows: it stands in the event, however long it is."""
        return self.kit.store.pack(value, inline=1 << 30)[0]

    async def unpack(self, payload: Payload | None) -> Any:
        """The value of a payload, wherever it is."""
        if payload is None:
            return None
        return payload.value() if payload.is_inline else await self.retry_store(lambda: self.kit.store.unpack(payload))

    async def retry_store(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What the store gives, asked again until it is there; an append is repeated as it was, and lands once."""
        while True:
            try:
                return await ask()
            except (ConnectionLost, StoreBusy):
                await self.kit.clock.sleep(SECOND)

    @property
    def is_late(self) -> bool:
        """Whether the run's deadline has passed."""
        return self.deadline is not None and self.kit.now() >= self.deadline

    def deadline_error(self, verb: str) -> DeadlineExceeded:
        """The error of a verb that the deadline ended, or that began after it."""
        assert self.deadline is not None
        return self.attribute_error(DeadlineExceeded(deadline=self.deadline), verb)

    def attribute_error(self, error: E, verb: str) -> E:
        """The error with the verb whose error it is: if it ends the run, a resume takes back just that."""
        error.__dict__["limpet_verb"] = verb
        return error

    def random_fraction(self) -> float:
        """A number from 0 to 1."""
        return float(self.kit.ids.bits(53)) / (1 << 53)


class _Work:
    """Around what must not be cut; the same one for all of an execution."""

    __slots__ = ("_x",)

    def __init__(self, execution: Execution) -> None:
        self._x = execution

    def __enter__(self) -> None:
        self._x.at_work += 1

    def __exit__(self, *exc: object) -> None:
        self._x.end_work()


class _Acting:
    """Around a tool that runs; the same one for all of an execution."""

    __slots__ = ("_x",)

    def __init__(self, execution: Execution) -> None:
        self._x = execution

    def __enter__(self) -> None:
        self._x.performing += 1

    def __exit__(self, *exc: object) -> None:
        self._x.performing -= 1
        if self._x.stopped is not None:
            self._x.changed()


def current_scope() -> Scope:
    """The scope that this code is in."""
    scope = _scope.get()
    if scope is None:
        raise unscoped("A method of run")
    return scope


def set_scope(scope: Scope) -> None:
    """Code that follows is in this scope."""
    _scope.set(scope)


def current_caller() -> object:
    """Who is calling: the thread of a blocking agent, or the asyncio task."""
    thread = _thread.get()
    return asyncio.current_task() if thread is None else thread


def enter_thread(thread: int) -> None:
    """This context belongs to the thread of a blocking agent."""
    _thread.set(thread)


@contextmanager
def as_caller(thread: int) -> Iterator[None]:
    """What is called inside is called by this thread."""
    token = _thread.set(thread)
    try:
        yield
    finally:
        _thread.reset(token)
