"""The parts of the suite: behaviours, the harness that a store's author provides, and the world of a behaviour."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar

from msgspec import Struct

from limpet.clock import SECOND, FrozenClock, microseconds
from limpet.errors import LimpetError, NotFound
from limpet.events import AnyBody, Event, Failure, Head, Payload, Sealed, Wait, canonical, inline, seal_all
from limpet.events import bodies as b
from limpet.events.values import digest
from limpet.stores import (
    Appended,
    Backend,
    Capabilities,
    Claimed,
    ContractRow,
    Create,
    Executor,
    Extend,
    Missed,
    RunRow,
    Store,
    Taken,
    Threads,
    WorkerRow,
)
from limpet.stores.blobs import Blob
from limpet.stores.cipher import MasterKeys
from limpet.stores.writes import Transacted, Work

__all__ = ["BEHAVIOURS", "Behaviour", "Harness", "Owner", "World", "behaviour", "expect"]

E = TypeVar("E", bound=LimpetError)
LEASE = 10 * SECOND
# A behaviour that hangs fails; no other check depends on time.
PATIENCE = 120.0


@dataclass(kw_only=True)
class Harness:
    """Provided by a store's author: backends that all reach the same data, with a clock that the suite moves."""

    backend: Callable[[FrozenClock], Backend]
    handover: Callable[[], Executor] = Threads
    """Executor of blocking work."""
    keys: MasterKeys | None = None
    """Keys to encrypt the store with."""
    child: tuple[str, str] | None = None
    """For other processes: `module:callable` and the argument with which it returns a backend on the same data."""


class Behaviour(Struct, frozen=True):
    """One behaviour that every store must have."""

    topic: str
    name: str
    summary: str
    check: Callable[["World"], Awaitable[None]]
    needs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.topic}:{self.name}"

    def run(self, harness: Harness) -> None:
        """Check the behaviour on a new store. Raises if the store behaves differently."""
        asyncio.run(self._run(harness))

    async def _run(self, harness: Harness) -> None:
        async with asyncio.timeout(PATIENCE), World(harness) as world:
            await self.check(world)


BEHAVIOURS: list[Behaviour] = []


def behaviour(
    *needs: str, name: str | None = None, summary: str | None = None
) -> Callable[[Callable[["World"], Awaitable[None]]], Callable[["World"], Awaitable[None]]]:
    """Add a function to the suite, with its name and docstring."""

    def add(check: Callable[["World"], Awaitable[None]]) -> Callable[["World"], Awaitable[None]]:
        topic = check.__module__.rpartition(".")[2]
        title = name or check.__name__.replace("_", "-")
        BEHAVIOURS.append(Behaviour(topic, title, summary or check.__doc__ or "", check, needs))
        return check

    return add


async def expect(error: type[E], awaitable: Awaitable[object]) -> E:
    """Return the error that the awaitable must raise."""
    try:
        done = await awaitable
    except error as raised:
        return raised
    raise AssertionError(f"expected {error.__name__}, got {done!r}")


@dataclass
class World:
    """A new store, and helpers to bring it into any state."""

    harness: Harness
    clock: FrozenClock = field(default_factory=FrozenClock)

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        self.store = await self.another()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    @property
    def capabilities(self) -> Capabilities:
        """The store's capabilities."""
        return self.store.capabilities

    async def another(self) -> Store:
        """Open another store on the same data, as another process would."""
        return await self._stack.enter_async_context(self.new_store())

    def new_store(self) -> Store:
        """Return a store on the same data that is not open yet."""
        return Store(self.harness.backend(self.clock), self.harness.handover(), keys=self.harness.keys)

    async def create(self, run: str = "r1", agent: str = "a", input: object = None, **more: Any) -> RunRow:
        """Create a run."""
        row, _ = await self.store.create(run, created(agent, inline(input), **more), actor="test")
        return row

    async def worker(self, id: str = "w1", agents: Sequence[str] = ("a",), store: Store | None = None) -> None:
        """Register a worker."""
        row = WorkerRow(id=id, agents=dict.fromkeys(agents, ("1",)))
        try:
            await (store or self.store).renew(id, lease=LEASE)
        except NotFound:
            await (store or self.store).register(row, lease=LEASE)

    async def claim(self, worker: str = "w1", limit: int = 10, store: Store | None = None) -> tuple[Claimed, ...]:
        """Claim runs for a worker."""
        return await (store or self.store).claim(worker, limit=limit)

    async def own(self, run: str = "r1", worker: str = "w1", **more: Any) -> "Owner":
        """Create a run and claim it for a worker."""
        await self.create(run, **more)
        await self.worker(worker)
        return await self.take(run, worker)

    async def take(self, run: str = "r1", worker: str = "w1") -> "Owner":
        """Claim an existing run for a worker."""
        for claimed in await self.claim(worker):
            if claimed.row.id == run:
                return Owner(self, claimed.row)
        raise AssertionError(f"{worker} could not claim {run}")

    async def take_over(self, run: str = "r1", worker: str = "w2") -> "Owner":
        """Claim a run for another worker, after the lease of the first has expired."""
        self.advance("11s")
        await self.worker(worker)
        return await self.take(run, worker)

    async def waiting(self, what: Literal["person", "signal", "run"], key: str) -> "Owner":
        """Create a run and park it, waiting for one thing."""
        owner = await self.own()
        if what == "person":
            await owner.append(asked(key))
        await owner.append(b.RunWaiting(waits=(Wait(what=what, key=key),)))
        return owner

    async def conversation(self, *messages: b.MessageAdded, **more: Any) -> Head:
        """Create the conversation `c1` and return its head."""
        await self.store.append(Create(run="c1", bodies=(b.ConversationCreated(**more), *messages), actor="test"))
        return (await self.store.get("c1")).head

    def message_leg(self, head: Head, message: b.MessageAdded) -> Extend:
        """Return a leg with a message after a head."""
        now, codec = self.clock.now(), self.store.codec
        events = seal_all(head, "c1", (message,), time=now, fence=0, actor="ann", codec=codec)
        return Extend(run="c1", after=head, fence=None, events=events)

    async def log(self, run: str = "r1") -> list[Event]:
        """Return a whole log."""
        return [event async for event in self.store.log(run)]

    async def bodies(self, run: str = "r1") -> list[AnyBody]:
        """Return the bodies of a whole log."""
        return [self.store.decode(event) for event in await self.log(run)]

    async def kinds(self, run: str = "r1") -> list[str]:
        """Return the kinds of a whole log."""
        return [event.kind for event in await self.log(run)]

    def advance(self, duration: str) -> None:
        """Move the store's clock forward."""
        self.clock.advance(microseconds(duration) / SECOND)

    async def processes(self, job: str, count: int, *arguments: str) -> list[str]:
        """Run a job of `child.py` in several processes concurrently; return the last line that each printed."""
        assert self.harness.child is not None, "a store with processes needs Harness(child=…)"
        module = "limpet.stores.conformance.child"
        commands = [
            [sys.executable, "-m", module, *self.harness.child, job, str(place), *arguments] for place in range(count)
        ]
        return await asyncio.gather(*(_output(command) for command in commands))


async def _output(command: list[str]) -> str:
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode in (0, -9), f"{command[-3:]} ended with {process.returncode}"
    return output.decode().strip().rpartition("\n")[2]


class Owner:
    """A worker that holds a run: tracks its head and fence, and seals its events."""

    def __init__(self, world: World, row: RunRow, store: Store | None = None) -> None:
        assert row.worker is not None
        self._world = world
        self._store = store or world.store
        self.run, self.fence, self.worker, self.head = row.id, row.fence, row.worker, row.head

    def seal(self, *bodies: AnyBody, time: int | None = None) -> tuple[Sealed, ...]:
        """Seal events after this owner's head."""
        now = self._world.clock.now() if time is None else time
        codec = self._store.codec
        return seal_all(self.head, self.run, bodies, time=now, fence=self.fence, actor=self.worker, codec=codec)

    def extend(self, *bodies: AnyBody) -> Extend:
        """Return a leg after this owner's head."""
        return Extend(run=self.run, after=self.head, fence=self.fence, events=self.seal(*bodies))

    async def send(self, leg: Extend, blobs: Sequence[Blob] = ()) -> Appended | Missed | Taken:
        """Append a leg with its blobs; adopt the new head if it was written."""
        done = await self._store.append(leg, blobs=blobs)
        if isinstance(done, Appended):
            self.head = leg.events[-1].event.head
        return done

    async def append(self, *bodies: AnyBody, blobs: Sequence[Blob] = ()) -> Head:
        """Append events, which must be written."""
        done = await self.send(self.extend(*bodies), blobs)
        assert isinstance(done, Appended), done
        return self.head

    async def transact(self, work: Work, store: Store | None = None) -> Transacted:
        """Commit a caller's own writes with the returned events, and adopt the new head."""
        where = store or self._store
        done = await where.transact(self.run, after=self.head, fence=self.fence, actor=self.worker, work=work)
        self.head = done.events[-1].event.head
        return done

    async def row(self) -> RunRow:
        """Return the run's current row."""
        return await self._store.get(self.run)


# Bodies that behaviours write

FAILED = b.RunFailed(failure=Failure(type="builtins.ValueError", message="no"))


def created(agent: str = "a", input: Payload | None = None, **more: Any) -> b.RunCreated:
    """Return the creation of a run of version 1 of an agent."""
    fields: dict[str, Any] = {"agent": agent, "agent_version": "1", "input": input or inline(None), **more}
    return b.RunCreated(**fields)


def forked(at: int, of: str = "r1", **more: Any) -> b.RunForked:
    """Return the creation of a fork, of version 1 of an agent."""
    fields: dict[str, Any] = {"run": of, "at": at, "step": 2, "effects": "ask", "agent": "a", "agent_version": "1"}
    return b.RunForked(**{**fields, **more})


def started(number: int = 1, attempt: int = 1) -> b.StepStarted:
    """Return the start of a step."""
    return b.StepStarted(
        name=f"t#{number}", tool="t", number=number, attempt=attempt, asked="", args=inline([]), effect="none"
    )


def completed(number: int = 1, output: object = None) -> b.StepCompleted:
    """Return the completion of a step."""
    return gave(inline(output), number)


def gave(output: Payload, number: int = 1) -> b.StepCompleted:
    """Return the completion of a step with a payload, which may be a blob."""
    return b.StepCompleted(name=f"t#{number}", number=number, attempt=1, output=output)


def asked(request: str = "q1", **more: Any) -> b.RequestOpened:
    """Return the opening of a request."""
    fields: dict[str, Any] = {"request": request, "name": "ask#1", "kind": "ask", "question": "Go on?", **more}
    return b.RequestOpened(**fields)


def answered(request: str = "q1", by: str = "ann", command: str = "c1") -> b.RequestAnswered:
    """Return an answer to a request."""
    return b.RequestAnswered(command=command, request=request, decision="answered", by=by, answer=inline(True))


def signalled(name: str = "go", value: object = None, command: str = "c1") -> b.SignalReceived:
    """Return a signal."""
    return b.SignalReceived(command=command, signal=name, value=inline(value))


def message(text: str = "hello") -> b.MessageAdded:
    """Return a user's message."""
    return b.MessageAdded(message=f"m-{text}", role="user", content=inline(text))


def contract(agent: str = "a", version: str = "1", takes: str = "string") -> ContractRow:
    """Return a contract; the agent's name may be any text."""
    content = {"agent": ascii(agent), "version": ascii(version), "input": {"takes": takes}}
    return ContractRow(agent=agent, version=version, hash=digest(content), contract=canonical(content))
