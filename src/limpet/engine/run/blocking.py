"""The same verbs for agents that are plain functions: each blocks its thread until the event loop has the answer."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from datetime import datetime
from pathlib import Path
from threading import Thread, get_ident
from typing import Any, Generic, ParamSpec, overload

from msgspec import UNSET, UnsetType
from typing_extensions import TypeForm, TypeVar

from limpet.clock import Duration
from limpet.context.slice import ContextSlice
from limpet.engine.approvals.externals import External
from limpet.engine.definitions.agents import Agent, Budget
from limpet.engine.definitions.tools import Tool
from limpet.engine.execution.execution import as_caller, enter_thread, set_scope
from limpet.engine.replay.scopes import Scope
from limpet.engine.run.conversation import Message, Role
from limpet.engine.run.run import Run, ScopeEntry, Turn, Turns
from limpet.engine.run.working_state import State
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
    """From the thread of a blocking agent to the event loop, and back."""

    def __init__(self, run: str, loop: asyncio.AbstractEventLoop) -> None:
        self._run, self._loop = run, loop
        self._calls: set[Future[Any]] = set()
        self._suspended = False

    def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What a verb gives; the verb is called on the event loop, on behalf of this thread."""
        reply: Future[T] = Future()
        with as_caller(get_ident()):
            context = copy_context()

        def on_loop() -> None:
            if self._suspended:
                self._refuse(reply)
                return
            try:
                task = self._loop.create_task(context.run(make), context=context)
            except BaseException as error:  # noqa: BLE001 - whoever waits must hear
                reply.set_exception(error)
            else:
                task.add_done_callback(lambda done: _relay(done, reply))

        self._calls.add(reply)
        try:
            self._loop.call_soon_threadsafe(on_loop)
            return reply.result()
        except RuntimeError as closed:
            if reply.done():
                raise  # it is the verb's own
            raise self._error() from closed
        finally:
            self._calls.discard(reply)

    def get(self, ask: Callable[[], T]) -> T:
        """What a plain function gives on the event loop."""

        async def answer() -> T:
            return ask()

        return self.call(answer)

    def suspend(self) -> None:
        """The run is not driven here any more: blocked calls raise."""
        self._suspended = True
        for reply in list(self._calls):
            self._refuse(reply)

    def _refuse(self, reply: "Future[Any]") -> None:
        if not reply.done():
            reply.set_exception(self._error())

    def _error(self) -> Suspended:
        return Suspended(run=self._run, reason="it is parked or stopped")


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
    """What a blocking agent's function returns, in a thread of its own."""
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
        except BaseException as raised:  # noqa: BLE001 - whoever waits must hear
            error = RuntimeError(f"{raised!r} left an agent") if isinstance(raised, StopIteration) else raised
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
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
    """A run, as the code of a blocking agent sees it."""

    def __init__(self, run: Run[S], bridge: Bridge) -> None:
        self._run, self._bridge = run, bridge

    @property
    def id(self) -> str:
        """Its stable id."""
        return self._run.id

    @property
    def state(self) -> State[S]:
        """What the agent knows, as far as the code has come."""
        return self._run.state

    def step(self, tool: Tool[P, T, Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Do something once, and know its result for ever."""
        return self._bridge.call(lambda: self._run.step(tool, *args, **kwargs))

    def read(self, source: External[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """What a source outside says: read now, or known from before where that still holds."""
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
        """Let another agent do it, and wait for its result."""
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
        """Give the work to another agent for good: its outcome is this run's, and nothing more is done here."""
        return self._bridge.call(lambda: self._run.handoff(agent, input, **how))

    @overload
    def start(self, agent: Agent[In, Any], input: In, /, *, id: str | None = None) -> str: ...

    @overload
    def start(self, agent: str, input: Any, /, *, id: str | None = None) -> str: ...

    def start(self, agent: Any, input: Any, /, *, id: str | None = None) -> str:
        """Let another agent begin, and go on without it; the id of its run."""
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
        """Ask a person: yes or no, one of some options, or an answer of a type."""
        return self._bridge.call(lambda: self._run.ask(question, **how))

    def artifact(self, data: bytes | str | Path, /, *, type: str, summary: str) -> Artifact:
        """Put something big away; the state keeps what it is and a summary."""
        return self._bridge.call(lambda: self._run.artifact(data, type=type, summary=summary))

    def content(self, artifact: Artifact | str, /) -> bytes:
        """What was put away, of this run or come along from the one that called it."""
        return self._bridge.call(lambda: self._run.content(artifact))

    def sleep(self, how_long: Duration, /) -> None:
        """Wait for a time, in no process."""
        self._bridge.call(lambda: self._run.sleep(how_long))

    def receive(self, name: str, type: type[T], /, *, timeout: Duration | None = None) -> T:
        """Wait for a signal, and take it."""
        return self._bridge.call(lambda: self._run.receive(name, type, timeout=timeout))

    def say(self, text: str, /, *, role: Role = "assistant") -> None:
        """Put a message into the run's conversation, once."""
        self._bridge.call(lambda: self._run.say(text, role=role))

    def messages(self, *, last: int | None = None) -> list[Message]:
        """What was said in the run's conversation, in order."""
        return self._bridge.call(lambda: self._run.messages(last=last))

    def context(self, *, max_tokens: int | None = None, max_bytes: int | None = None) -> ContextSlice:
        """The slice that fits of what the agent knows and of what was said."""
        return self._bridge.call(lambda: self._run.context(max_tokens=max_tokens, max_bytes=max_bytes))

    def patch(  # noqa: PLR0913 - all by name, and few at a time
        self,
        *,
        goal: str | None = None,
        facts: Mapping[str, Any] | None = None,
        plan: Sequence[str] | None = None,
        questions: Sequence[str] = (),
        answered: Mapping[str, str] | None = None,
        flags: Sequence[str] = (),
        data: S | UnsetType = UNSET,
        source: str | None = None,
        retract: Sequence[str] = (),
        derived_from: Sequence[str] = (),
    ) -> None:
        """Change what the agent knows: as a whole, or not at all."""
        self._bridge.call(
            lambda: self._run.patch(
                goal=goal,
                facts=facts,
                plan=plan,
                questions=questions,
                answered=answered,
                flags=flags,
                data=data,
                source=source,
                retract=retract,
                derived_from=derived_from,
            )
        )

    def decide(
        self, question: str, /, *, choose: T, over: Sequence[T], because: str, confidence: float | None = None
    ) -> T:
        """Choose at a branch, and say from what and why; the first choice stands."""
        return self._bridge.call(
            lambda: self._run.decide(question, choose=choose, over=over, because=because, confidence=confidence)
        )

    @contextmanager
    def scope(self, name: str, /) -> Iterator[None]:
        """A place of its own for the calls inside; named like an item of the plan, it is that item."""
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
        """A loop whose body depends on `run.state` alone: a resumed run enters at the current turn."""
        loop = self._run.turns(max=max)
        assert isinstance(loop, Turns)
        while self._bridge.call(loop.begin):
            yield loop.arrive()
        loop.leave()

    def version(self, change: str, /) -> bool:
        """Whether this run is on the new side of a change of the code."""
        return self._bridge.get(lambda: self._run.version(change))

    def now(self) -> datetime:
        """The time, the same in every execution."""
        return self._bridge.get(self._run.now)

    def random(self) -> float:
        """A number from 0 to 1, the same in every execution."""
        return self._bridge.get(self._run.random)

    def uuid(self) -> str:
        """A random UUID, the same in every execution."""
        return self._bridge.get(self._run.uuid)
