"""Limpet for blocking code: agents that are plain functions, and scripts without an event loop.

An app of this module has an event loop on a thread of its own; each of its methods is the one of `limpet.App` of the
same name, waited for. An interrupt (Ctrl-C) ends the waiting, not the run.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial, wraps
from threading import Thread, current_thread
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

from limpet.clock import Duration
from limpet.compose import open as open_app
from limpet.engine.definitions.agents import Agent
from limpet.engine.execution.handle import Handle as AsyncHandle
from limpet.engine.execution.views import EventView, RunInfo
from limpet.engine.run.blocking import BlockingRun as Run
from limpet.engine.worker.worker import Worker
from limpet.errors import not_open
from limpet.service.app import App as AsyncApp
from limpet.service.app import RunOptions, StartOptions
from limpet.service.settings import Channel

__all__ = ["App", "Handle", "Run", "open"]

P = ParamSpec("P")
T = TypeVar("T")
In = TypeVar("In")
Out = TypeVar("Out")


class Loop:
    """An event loop on a thread of its own, which does not keep the process alive."""

    def __init__(self) -> None:
        self._ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = Thread(target=lambda: asyncio.run(self._live()), name="limpet-sync", daemon=True)
        self._thread.start()
        self._loop, self._over = self._ready.result()

    async def _live(self) -> None:
        over = asyncio.Event()
        self._ready.set_result((asyncio.get_running_loop(), over))
        await over.wait()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What it returns or raises; whoever is interrupted stops waiting."""
        if current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("this code runs on the app's own event loop: use limpet.open() and await there")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def end(self) -> None:
        """Stop it, and wait until its thread has ended."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()


class Handle(Generic[Out]):
    """A run that was started."""

    def __init__(self, handle: AsyncHandle[Out], app: "App") -> None:
        self._handle, self._app = handle, app
        self.id = handle.id

    def __repr__(self) -> str:
        return f"<handle of run {self.id}>"

    def result(self, *, timeout: Duration | None = None) -> Out:
        """What it returned, once it has; raises RunFailed, RunCancelled, or NotDone after the time-out."""
        return self._app.wait(lambda _: self._handle.result(timeout=timeout))

    def info(self) -> RunInfo:
        """Where it is now."""
        return self._app.wait(lambda _: self._handle.info())

    def events(self, *, after: int = 0, follow: bool = True) -> Iterator[EventView]:
        """What happens, event by event, until it has ended; without `follow`, what has happened so far."""
        return self._app.each(lambda _: self._handle.events(after=after, follow=follow))

    def tokens(self, *, after: int = 0) -> Iterator[str]:
        """What its model says, piece by piece, until the run has ended; `after` an event, for whoever was cut off."""
        return self._app.each(lambda _: self._handle.tokens(after=after))

    def cancel(self, reason: str) -> None:
        """Stop it: effects under way finish, what can be undone is."""
        self._app.wait(lambda _: self._handle.cancel(reason))


Method = Callable[Concatenate[AsyncApp, P], Coroutine[Any, Any, T]]


def _waited(method: Method[P, T]) -> Callable[Concatenate["App", P], T]:
    """A method of the app, waited for."""

    @wraps(method)
    def call(app: "App", /, *args: P.args, **named: P.kwargs) -> T:
        return app.wait(lambda behind: method(behind, *args, **named))

    return call


def _handle(method: Method[P, AsyncHandle[Out]]) -> Callable[Concatenate["App", P], Handle[Out]]:
    """The same for one that gives a handle."""

    @wraps(method)
    def call(app: "App", /, *args: P.args, **named: P.kwargs) -> Handle[Out]:
        return Handle(app.wait(lambda behind: method(behind, *args, **named)), app)

    return call


def _each(method: Callable[Concatenate[AsyncApp, P], AsyncIterator[T]]) -> Callable[Concatenate["App", P], Iterator[T]]:
    """The same for one that gives many, one after the other."""

    @wraps(method)
    def call(app: "App", /, *args: P.args, **named: P.kwargs) -> Iterator[T]:
        return app.each(lambda behind: method(behind, *args, **named))

    return call


async def _next(found: AsyncIterator[T]) -> list[T]:
    """The next one, if there is any."""
    try:
        return [await anext(found)]
    except StopAsyncIteration:
        return []


class App:
    """Start runs, answer, look, steer, from blocking code. Use as `with`, or open it and close it."""

    def __init__(self, app: AsyncApp) -> None:
        self._app = app
        self._loop: Loop | None = None

    def open(self) -> Self:
        """Open the store; with agents, begin to work, and go on with what an earlier process left behind."""
        self._loop = Loop()
        try:
            self._loop.wait(self._app.open())
        except BaseException:
            self._stop()
            raise
        return self

    def close(self) -> None:
        """Let effects under way finish, give back what is being driven, and close the store."""
        if self._loop is None:
            return
        try:
            self._loop.wait(self._app.close())
        finally:
            self._stop()

    def _stop(self) -> None:
        loop, self._loop = self._loop, None
        assert loop is not None
        loop.end()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def wait(self, make: Callable[[AsyncApp], Coroutine[Any, Any, T]]) -> T:
        """What the app itself, on its event loop, gives."""
        if self._loop is None:
            raise not_open()
        return self._loop.wait(make(self._app))

    def each(self, make: Callable[[AsyncApp], AsyncIterator[T]]) -> Iterator[T]:
        """The same, one after the other."""
        found = make(self._app)
        while more := self.wait(lambda _: _next(found)):
            yield from more

    # Starting

    @overload
    def run(self, agent: Agent[None, Out], /, **how: Unpack[RunOptions]) -> Out: ...

    @overload
    def run(self, agent: Agent[In, Out], input: In, /, **how: Unpack[RunOptions]) -> Out: ...

    def run(self, agent: Agent[Any, Any], input: Any = None, /, **how: Unpack[RunOptions]) -> Any:
        """Start a run, or find the one of this id, and wait for its result."""
        return self.wait(lambda app: app.run(agent, input, **how))

    @overload
    def start(self, agent: Agent[None, Out], /, **how: Unpack[StartOptions]) -> Handle[Out]: ...

    @overload
    def start(self, agent: Agent[In, Out], input: In, /, **how: Unpack[StartOptions]) -> Handle[Out]: ...

    @overload
    def start(self, agent: str, input: Any = None, /, **how: Unpack[StartOptions]) -> Handle[Any]: ...

    def start(self, agent: Agent[Any, Any] | str, input: Any = None, /, **how: Unpack[StartOptions]) -> Handle[Any]:
        """Start a run, or find the one of this id with the same input; it goes on by itself."""
        return Handle(self.wait(lambda app: app.start(agent, input, **how)), self)

    @overload
    def get(self, run: str, agent: Agent[Any, Out], /) -> Handle[Out]: ...

    @overload
    def get(self, run: str, /) -> Handle[Any]: ...

    def get(self, run: str, agent: Agent[Any, Any] | None = None, /) -> Handle[Any]:
        """A handle on a run that exists."""
        return Handle(self.wait(lambda app: app.get(run) if agent is None else app.get(run, agent)), self)

    def once(self, key: str, fn: Callable[[], T], /) -> T:
        """Do something once for a key, and give the same result ever after: for whoever writes a tool's server."""
        return self.wait(lambda app: app.once(key, partial(asyncio.to_thread, fn)))

    # Steering

    resume = _handle(AsyncApp.resume)
    pause = _waited(AsyncApp.pause)
    cancel = _waited(AsyncApp.cancel)
    signal = _waited(AsyncApp.signal)

    # Talking

    say = _waited(AsyncApp.say)
    messages = _waited(AsyncApp.messages)
    conversations = _waited(AsyncApp.conversations)
    sessions = _waited(AsyncApp.sessions)

    # People

    inbox = _waited(AsyncApp.inbox)
    answer = _waited(AsyncApp.answer)
    approve = _waited(AsyncApp.approve)
    reject = _waited(AsyncApp.reject)
    grants = _waited(AsyncApp.grants)
    revoke = _waited(AsyncApp.revoke)

    # Looking

    runs = _waited(AsyncApp.runs)
    info = _waited(AsyncApp.info)
    result = _waited(AsyncApp.result)
    log = _waited(AsyncApp.log)
    events = _each(AsyncApp.events)
    value = _waited(AsyncApp.value)
    artifact = _waited(AsyncApp.artifact)
    timeline = _waited(AsyncApp.timeline)
    state = _waited(AsyncApp.state)
    context = _waited(AsyncApp.context)
    prompt = _waited(AsyncApp.prompt)
    diff = _waited(AsyncApp.diff)
    compare = _waited(AsyncApp.compare)

    # Going back

    fork = _handle(AsyncApp.fork)
    replay = _waited(AsyncApp.replay)
    replay_all = _each(AsyncApp.replay_all)

    # Keeping

    verify = _waited(AsyncApp.verify)
    save_heads = _waited(AsyncApp.save_heads)
    export = _waited(AsyncApp.export)
    load = _handle(AsyncApp.load)
    prune = _waited(AsyncApp.prune)

    # Across runs

    search = _waited(AsyncApp.search)
    decisions = _waited(AsyncApp.decisions)
    errors = _waited(AsyncApp.errors)
    tool_calls = _waited(AsyncApp.tool_calls)
    agents = _waited(AsyncApp.agents)
    workers = _waited(AsyncApp.workers)
    stats = _waited(AsyncApp.stats)


def open(
    url: str | None = None,
    *,
    agents: Sequence[Agent[Any, Any]] = (),
    worker: bool | Worker = True,
    people: Mapping[str, Sequence[str]] | None = None,
    notify: Mapping[str, Channel] | None = None,
    redact: bool | Sequence[str | re.Pattern[str]] | None = None,
) -> App:
    """An app for blocking code; see `limpet.open`. Nothing is touched until it is entered."""
    return App(open_app(url, agents=agents, worker=worker, people=people, notify=notify, redact=redact))
