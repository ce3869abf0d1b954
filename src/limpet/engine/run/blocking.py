"""`BlockingRun`: the same methods for agents that are plain functions. Each call blocks its thread until it returns."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from datetime import datetime
from pathlib import Path
from threading import Thread, get_ident
from typing import Any, Generic, ParamSpec, Unpack, overload

from typing_extensions import TypeForm, TypeVar

from limpet.clock import Duration
from limpet.context.slice import ContextSlice
from limpet.engine.approvals.externals import External
from limpet.engine.definitions.agents import Agent, Budget
from limpet.engine.definitions.tools import Tool
from limpet.engine.execution.strands import as_caller, enter_thread, set_scope
from limpet.engine.replay.scopes import Scope
from limpet.engine.run.compaction import Summarise, Summariser
from limpet.engine.run.conversation import Message, Role
from limpet.engine.run.run import Run, ScopeEntry, Turn, Turns
from limpet.engine.run.shared_records import RecordChange, SharedRecord
from limpet.engine.run.working_state import PatchOptions, SentPatch, State
from limpet.errors import Suspended
from limpet.events import Artifact

__all__ = ["BlockingRun", "run_blocking"]

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C", bound=str)
In = TypeVar("In")
Out = TypeVar("Out")
S = TypeVar("S", default=dict[str, Any])


class Bridge:
    """Calls from the thread of a blocking agent to the event loop."""

    def __init__(self, run: str, loop: asyncio.AbstractEventLoop) -> None:
        self._run, self._loop = run, loop
        self._calls: set[Future[Any]] = set()
        self._suspended = False

    def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Call a method on the event loop, on behalf of this thread, and return its result."""
        reply: Future[T] = Future()
        with as_caller(get_ident()):
            context = copy_context()

        def on_loop() -> None:
            if self._suspended:
                self._refuse(reply)
                return
            try:
                task = self._loop.create_task(context.run(make), context=context)
            except BaseException as error:  # noqa: BLE001 - the calling thread must get every error
                reply.set_exception(error)
            else:
                task.add_done_callback(lambda done: _relay(done, reply))

        self._calls.add(reply)
        try:
            self._loop.call_soon_threadsafe(on_loop)
            return reply.result()
        except RuntimeError as closed:
            if reply.done():
                raise  # the error is the method's own
            raise self._error() from closed
        finally:
            self._calls.discard(reply)

    def get(self, ask: Callable[[], T]) -> T:
        """Call a plain function on the event loop and return its result."""

        async def answer() -> T:
            return ask()

        return self.call(answer)

    def suspend(self) -> None:
        """Make blocked and later calls raise Suspended: the run is no longer driven here."""
        self._suspended = True
        for reply in list(self._calls):
            self._refuse(reply)

    def _refuse(self, reply: "Future[Any]") -> None:
        if not reply.done():
            reply.set_exception(self._error())

    def _error(self) -> Suspended:
        return Suspended(run=self._run, reason="parked or stopped")


def _relay(done: "asyncio.Task[T]", reply: "Future[T]") -> None:
    if reply.done():
        with suppress(asyncio.CancelledError):
            done.exception()
        return
    if done.cancelled():
        reply.cancel()
    elif (error := done.exception()) is not None:
        reply.set_exception(error)
    else:
        reply.set_result(done.result())


async def run_blocking(fn: Callable[..., Any], run: Run[Any], args: Sequence[Any]) -> Any:
    """Run a blocking agent's function on its own thread, and return its result."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()
    bridge = Bridge(run.id, loop)
    context = copy_context()

    def report(result: Any, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_exception(error) if error is not None else ended.set_result(result)

    def work() -> None:
        enter_thread(get_ident())
        set_scope(Scope("", get_ident()))
        result, error = None, None
        try:
            result = fn(BlockingRun(run, bridge), *args)
        except BaseException as raised:  # noqa: BLE001 - the waiting task must get every error
            error = RuntimeError(f"the agent raised {raised!r}") if isinstance(raised, StopIteration) else raised
        with suppress(RuntimeError):  # the loop was closed, so nothing waits for the result
            loop.call_soon_threadsafe(report, result, error)

    Thread(target=lambda: context.run(work), name=f"limpet:{run.id}", daemon=True).start()
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        bridge.suspend()
        with suppress(Exception):
            await ended
        raise


class BlockingRun(Generic[S]):
    """A run, for the code of a blocking agent. Its methods are those of `Run`, but they block."""

    def __init__(self, run: Run[S], bridge: Bridge) -> None:
        self._run, self._bridge = run, bridge

    @property
    def id(self) -> str:
        """Stable id of the run."""
        return self._run.id

    @property
    def state(self) -> State[S]:
        """The agent's working state at this point of the code."""
        return self._run.state

    def step(self, tool: Tool[P, T, Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a tool as a step, and return its recorded result; see `Run.step`."""
        return self._bridge.call(lambda: self._run.step(tool, *args, **kwargs))

    def read(self, source: External[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the data of an external source, reading it again if it has expired; see `Run.read`."""
        return self._bridge.call(lambda: self._run.read(source, *args, **kwargs))

    @overload
    def call(
        self,
        agent: Agent[In, Out],
        input: In,
        /,
        *,
        budget: Budget | None = None,
        deadline: Duration | None = None,
        facts: Sequence[str] = (),
        artifacts: Sequence[str] = (),
    ) -> Out: ...

    @overload
    def call(
        self,
        agent: str,
        input: Any,
        /,
        *,
        budget: Budget | None = None,
        deadline: Duration | None = None,
        facts: Sequence[str] = (),
        artifacts: Sequence[str] = (),
    ) -> Any: ...

    def call(self, agent: Any, input: Any, /, **how: Any) -> Any:
        """Call another agent, wait for its run, and return its result; see `Run.call`."""
        return self._bridge.call(lambda: self._run.call(agent, input, **how))

    @overload
    def handoff(
        self, agent: Agent[In, Out], input: In, /, *, facts: Sequence[str] = (), artifacts: Sequence[str] = ()
    ) -> Out: ...

    @overload
    def handoff(
        self, agent: str, input: Any, /, *, facts: Sequence[str] = (), artifacts: Sequence[str] = ()
    ) -> Any: ...

    def handoff(self, agent: Any, input: Any, /, **how: Any) -> Any:
        """Hand the work off to another agent permanently, and return its result; see `Run.handoff`."""
        return self._bridge.call(lambda: self._run.handoff(agent, input, **how))

    @overload
    def start(self, agent: Agent[In, Any], input: In, /, *, id: str | None = None) -> str: ...

    @overload
    def start(self, agent: str, input: Any, /, *, id: str | None = None) -> str: ...

    def start(self, agent: Any, input: Any, /, *, id: str | None = None) -> str:
        """Start another agent's run without waiting for it, and return its id; see `Run.start`."""
        return self._bridge.call(lambda: self._run.start(agent, input, id=id)).id

    @overload
    def ask(
        self,
        question: str,
        /,
        *,
        to: str | Sequence[str] = ...,
        expires: Duration | None = None,
        escalate: Sequence[str] = (),
        default: bool = ...,
        name: str | None = None,
    ) -> bool: ...

    @overload
    def ask(
        self,
        question: str,
        /,
        *,
        options: Sequence[C],
        to: str | Sequence[str] = ...,
        expires: Duration | None = None,
        escalate: Sequence[str] = (),
        default: C = ...,
        name: str | None = None,
    ) -> C: ...

    @overload
    def ask(
        self,
        question: str,
        /,
        *,
        answer: TypeForm[T],
        to: str | Sequence[str] = ...,
        expires: Duration | None = None,
        escalate: Sequence[str] = (),
        default: T = ...,
        name: str | None = None,
    ) -> T: ...

    def ask(self, question: str, /, **how: Any) -> Any:
        """Ask a person, wait for the answer, and return it; see `Run.ask`."""
        return self._bridge.call(lambda: self._run.ask(question, **how))

    def artifact(self, data: bytes | str | Path, /, *, type: str, summary: str) -> Artifact:
        """Store large content as an artifact, and return its description; see `Run.artifact`."""
        return self._bridge.call(lambda: self._run.artifact(data, type=type, summary=summary))

    def content(self, artifact: Artifact | str, /) -> bytes:
        """Return the content of an artifact of this run, or of one that its caller passed on."""
        return self._bridge.call(lambda: self._run.content(artifact))

    def sleep(self, how_long: Duration, /) -> None:
        """Wait for a duration. The run uses no process while it waits."""
        self._bridge.call(lambda: self._run.sleep(how_long))

    def receive(self, name: str, type: type[T], /, *, timeout: Duration | None = None) -> T:
        """Wait for a signal, and return its value as `type`; see `Run.receive`."""
        return self._bridge.call(lambda: self._run.receive(name, type, timeout=timeout))

    def signal(self, run: str, name: str, value: Any = None, /) -> None:
        """Send a value to another run, as a step; see `Run.signal`."""
        self._bridge.call(lambda: self._run.signal(run, name, value))

    def send_patch(self, run: str, /, **change: Unpack[SentPatch]) -> None:
        """Send a patch of the working state to another run, as a step; see `Run.send_patch`."""
        self._bridge.call(lambda: self._run.send_patch(run, **change))

    def record(self, name: str, /) -> SharedRecord:
        """Read a shared record, as a step; see `Run.record`."""
        return self._bridge.call(lambda: self._run.record(name))

    def patch_record(self, record: SharedRecord, /, **change: Unpack[RecordChange]) -> None:
        """Change a shared record that the run has read, as a step; see `Run.patch_record`."""
        self._bridge.call(lambda: self._run.patch_record(record, **change))

    def say(self, text: str, /, *, role: Role = "assistant") -> None:
        """Append a message to the run's conversation, once."""
        self._bridge.call(lambda: self._run.say(text, role=role))

    def messages(self, *, last: int | None = None) -> list[Message]:
        """Return the messages of the run's conversation in order; see `Run.messages`."""
        return self._bridge.call(lambda: self._run.messages(last=last))

    def compact(
        self, summarise: Summarise | Summariser, /, *, above: int | None = None, keep: int | None = None
    ) -> bool:
        """Let a summary replace the older messages of the conversation; see `Run.compact`."""
        return self._bridge.call(lambda: self._run.compact(summarise, above=above, keep=keep))

    def context(self, *, max_tokens: int | None = None, max_bytes: int | None = None) -> ContextSlice:
        """Return the most important part of the state and the messages that fits the limits."""
        return self._bridge.call(lambda: self._run.context(max_tokens=max_tokens, max_bytes=max_bytes))

    def patch(self, **change: Unpack[PatchOptions[S]]) -> None:
        """Change the agent's working state, completely or not at all; see `Run.patch`."""
        self._bridge.call(lambda: self._run.patch(**change))

    def decide(
        self, question: str, /, *, choose: T, over: Sequence[T], because: str, confidence: float | None = None
    ) -> T:
        """Record a decision with its options and reason. On replay, return the recorded choice. See `Run.decide`."""
        return self._bridge.call(
            lambda: self._run.decide(question, choose=choose, over=over, because=because, confidence=confidence)
        )

    @contextmanager
    def scope(self, name: str, /) -> Iterator[None]:
        """Give the calls inside the block their own scope; see `Run.scope`."""
        entered = ScopeEntry(self._run, name)
        marking = entered.enter()
        self._bridge.call(lambda: marking)
        try:
            yield
        except BaseException:
            entered.leave(done=False)
            raise
        leaving = entered.leave(done=True)
        if leaving is not None:
            self._bridge.call(lambda: leaving)

    def turns(self, *, max: int | None = None) -> Iterator[Turn]:
        """Iterate over turns, at most `max`; see `Run.turns`."""
        loop = self._run.turns(max=max)
        assert isinstance(loop, Turns)
        while self._bridge.call(loop.advance):
            yield loop.enter_turn()
        loop.leave()

    def version(self, change: str, /) -> bool:
        """Return whether this run uses the new code of a change; see `Run.version`."""
        return self._bridge.get(lambda: self._run.version(change))

    def now(self) -> datetime:
        """Return the current time, the same in every execution."""
        return self._bridge.get(self._run.now)

    def random(self) -> float:
        """Return a random number from 0 to 1, the same in every execution."""
        return self._bridge.get(self._run.random)

    def uuid(self) -> str:
        """Return a random UUID, the same in every execution."""
        return self._bridge.get(self._run.uuid)
